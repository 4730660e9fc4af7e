"""Taylor coefficients through loops: beside derivatives taken one by one, and closed forms.

JAX has no rule for its own loops, so there is nothing else to compare with.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

import loops
from tests.helpers.comparison import assert_same, is_float
from tests.helpers.equations import the_equation
from tests.helpers.implementations import OURS
from tests.helpers.programs import CORE, Program
from tests.rules.transformations import tangents_of

ORDER = 3
X = 1.3


def derivatives(fun, args, directions):
    """The derivatives of `t -> fun(args + t * directions)` at zero up to `ORDER`, by jvp of jvp."""

    def along(t):
        return fun(*(x + t * v for x, v in zip(args, directions, strict=True)))

    def derivative_of(fun):
        return lambda t: jax.jvp(fun, (t,), (jnp.ones_like(t),))[1]

    found, zero = [], jnp.zeros((), args[0].dtype)
    for _ in range(ORDER + 1):
        found.append(along(zero))
        along = derivative_of(along)
    return found


def by_jet(fun, args, directions):
    """The same derivatives by jet."""
    series = [[v, *[jnp.zeros_like(v)] * (ORDER - 1)] for v in directions]
    values, terms = jet(fun, args, series)
    return [values, *([t[k] for t in terms] for k in range(ORDER))]


def powers(x, n=4):
    """The derivatives of `x**n`, n of them."""
    return [math.perm(n, k) * x ** (n - k) for k in range(ORDER + 1)]


def jet_of(fun, x=X):
    """Value and derivatives of a function of one number."""
    value, terms = jet(fun, (jnp.float32(x),), ((1.0, *[0.0] * (ORDER - 1)),))
    return [value, *terms]


# jet has no rule for the cond and the checkpoint in the body of scan_inner_functions.
@pytest.mark.parametrize(
    "entry", [e for e in CORE if e.name != "scan_inner_functions"], ids=lambda entry: entry.name
)
def test_every_program(entry: Program, x64):
    """Each core program has the derivatives of higher order that jvp of jvp gives."""
    fun = lambda *args: [x for x in jax.tree.leaves(entry.bind(OURS)(*args)) if is_float(x)]
    args = entry.arguments(np.float64)
    directions = tangents_of(args)

    assert_same(by_jet(fun, args, directions), derivatives(fun, args, directions), weak_types=False)


def repeated_product(x):
    """`x**4` by a fori_loop."""
    return loops.fori_loop(0, 4, lambda i, c: c * x, jnp.ones_like(x))


def product_of_rows(x):
    """`x**4` by a scan over rows, backwards and unrolled."""
    return loops.scan(lambda c, y: (c * y, None), x, jnp.stack([x] * 3), reverse=True, unroll=2)[0]


def product_until_large(x):
    """`x**4` by a while loop that stops by its value, between steps at `x == 1.3`."""
    return loops.while_loop(lambda c: c < 2.5, lambda c: c * x, x)


def squared_twice(x):
    """`x**4` by a loop in a loop."""
    square = lambda x: loops.fori_loop(0, 1, lambda i, c: c * x, x)
    return loops.fori_loop(0, 2, lambda i, c: square(c), x)


def counted_product(x):
    """`x**4` with an integer, a boolean and a key in the carry."""

    def body(c):
        key, _ = jax.random.split(c["key"])
        return {"key": key, "n": c["n"] + 1, "on": ~c["on"], "x": c["x"] * x}

    init = {"key": jax.random.key(0), "n": 0, "on": False, "x": jnp.float32(1.0)}
    return loops.while_loop(lambda c: c["n"] < 4, body, init)["x"]


def product_in_ys(x):
    """`x**4` as the last row of the ys."""
    return loops.scan(lambda c, _: (c * x, c * x), jnp.float32(1.0), None, length=4)[1][-1]


@pytest.mark.parametrize(
    "fun",
    [
        repeated_product,
        product_of_rows,
        product_until_large,
        squared_twice,
        counted_product,
        product_in_ys,
        jax.jit(repeated_product),
        jax.grad(lambda x: repeated_product(x) * x / 5.0),
        lambda x: jax.vmap(product_until_large)(jnp.stack([x, x]))[1],
    ],
)
def test_closed_form(fun):
    """The derivatives of a power are the known ones, by whatever loop it is computed."""
    assert_same(jet_of(fun), [jnp.float32(p) for p in powers(X)], rtol=1e-4, weak_types=False)


def test_coefficients_of_an_input():
    """The terms of the input enter too: `(1 + t + t**2)**4` has the coefficients 1, 4, 10, 16."""
    one = jnp.ones(2)
    value, terms = jet(repeated_product, (one,), ((one, 1, 0.0),), factorial_scaled=False)

    want = [jnp.full(2, c, jnp.float32) for c in (1, 4, 10, 16)]
    assert_same([value, *terms], want, rtol=1e-4)


def test_jet_of_jet():
    """The second derivative of the second derivative is the fourth."""
    second = lambda x: jet(repeated_product, (x,), ((1.0, 0.0),))[1][1]
    fourth = jet(second, (jnp.float32(X),), ((1.0, 0.0),))[1][1]

    assert_same(fourth, jnp.float32(24.0), rtol=1e-4, weak_types=False)


def test_transformed_jet():
    """What jet makes of a loop can be compiled, batched and differentiated again."""
    third = lambda x: jet_of(repeated_product, x)[3]
    xs = jnp.float32([1.0, 1.3])

    assert_same(jax.jit(jax.vmap(third))(xs), 24.0 * xs, rtol=1e-4, weak_types=False)
    assert_same(jax.vmap(jax.grad(third))(xs), jnp.full(2, 24.0), rtol=1e-4, weak_types=False)


def test_a_factor_that_leaves_the_loop():
    """What a gradient hoists out of its loop is expanded too, here `sin(x)` of `sin(x)**4`."""

    def fun(x):
        return jax.grad(lambda c: loops.fori_loop(0, 4, lambda i, c: c * jnp.sin(x), c))(1.0)

    want = derivatives(lambda x: jnp.sin(x) ** 4, (jnp.float32(X),), (jnp.float32(1.0),))
    for run in (fun, jax.jit(fun)):
        assert_same(jet_of(run), want, rtol=1e-4, weak_types=False)


def test_floats_from_integers():
    """A loop that takes integers alone and returns floats has terms that are zero."""

    def fun(x):
        count = lambda n, _: (n + 1, n.astype(jnp.float32))
        return loops.scan(count, x.astype(jnp.int32), None, length=3)[1]

    zeros = [jnp.zeros(3)] * ORDER
    assert_same(jet_of(fun), [jnp.float32([1.0, 2.0, 3.0]), *zeros], weak_types=False)


def test_only_floats_have_terms():
    """An integer in the carry stays one value beside the terms of the floating-point one."""
    loop = the_equation(lambda x: jet_of(counted_product, x), jnp.float32(X), name="while")

    floats = [v for v in loop.outvars if v.aval.dtype == jnp.float32]
    assert 1 + ORDER == len(floats)
    assert 4 + ORDER == len(loop.outvars)


def test_a_body_is_expanded_once():
    """Two calls with the same body and order share one jaxpr, which JAX's caches know again."""
    body = lambda i, c: jnp.sin(c)
    fun = lambda x: loops.fori_loop(0, 3, body, x)
    first, second = (
        the_equation(lambda x: jet_of(fun, x), jnp.float32(X), name="scan") for _ in range(2)
    )

    assert first.params["jaxpr"] is second.params["jaxpr"]
