"""Functions with derivatives of their own, called in the body of a loop.

JAX 0.10.2 forgets a custom_jvp rule in a scan's body once it has been differentiated in reverse:
the second derivative is then that of the function itself. Ours keeps the rule, as plain Python and
newer releases of JAX do, so second derivatives are compared with Python alone.
"""

from functools import partial

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, PYTHON, Implementation
from tests.helpers.programs import doubled, tripled
from tests.rules.transformations import FIRST, PAIRS, REST

X = jnp.float32(0.7)


def through_scan(loops: Implementation, rule):
    """Two steps that apply `rule` to the carry, with ys."""

    def fun(x):
        c, ys = loops.scan(lambda c, _: (jnp.sin(rule(c)), rule(c)), x, None, length=2)
        return c + ys.sum()

    return fun


def through_fori(loops: Implementation, rule):
    """Two steps of a fori_loop that closes over the differentiated value."""
    return lambda x: loops.fori_loop(0, 2, lambda i, c: jnp.sin(c) + rule(c * x), x)


FORWARD = {
    "jvp": lambda fun: jax.jvp(fun, (X,), (X,)),
    "jacfwd_twice": lambda fun: jax.jacfwd(jax.jacfwd(fun))(X),
}
REVERSE = {
    "grad": lambda fun: jax.value_and_grad(fun)(X),
    "vmap_of_grad": lambda fun: jax.vmap(jax.grad(fun))(jnp.stack([X, 2 * X])),
    "grad_of_grad": lambda fun: jax.grad(jax.grad(fun))(X),
    "jit_of_grad": lambda fun: jax.jit(jax.grad(fun))(X),
}

loop_kinds = pytest.mark.parametrize("through", [through_scan, through_fori])


@loop_kinds
@pytest.mark.parametrize("differentiate", (FORWARD | REVERSE).values(), ids=FORWARD | REVERSE)
def test_custom_jvp(through, differentiate):
    """A custom_jvp rule holds in a loop at every order of differentiation."""
    assert_same(differentiate(through(OURS, doubled)), differentiate(through(PYTHON, doubled)))


@loop_kinds
@pytest.mark.parametrize("differentiate", REVERSE.values(), ids=REVERSE)
def test_custom_vjp(through, differentiate):
    """A custom_vjp rule holds in a loop, also one whose backward pass calls it again."""

    @jax.custom_vjp
    def itself(x):
        return 3.0 * x

    itself.defvjp(lambda x: (itself(x), None), lambda _, g: (itself(g),))
    for rule in (tripled, itself):
        assert_same(differentiate(through(OURS, rule)), differentiate(through(PYTHON, rule)))


def test_forward_mode_of_custom_vjp_is_refused():
    """A function with only a reverse rule has no tangent in a loop either."""
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(through_scan(OURS, tripled), (X,), (X,))


def test_loop_inside_a_custom_rule(impl: Implementation):
    """A loop may be the function that has a custom derivative, and its rule may loop too."""

    @jax.custom_vjp
    def power(x):
        return impl.fori_loop(0, 3, lambda i, c: c * x, jnp.float32(1.0))

    backward = lambda x, g: (3.0 * impl.fori_loop(0, 2, lambda i, c: c * x, g),)
    power.defvjp(lambda x: (power(x), x), backward)
    value, slope = jax.value_and_grad(power)(X)
    assert_same((value, slope), (X**3, 3.0 * X**2))
    assert_same(jax.grad(jax.grad(power))(X), 6.0 * X)


def root_by(loops: Implementation):
    """The square root, by a loop of Newton steps until it is exact, with JAX's rule for roots."""

    def newton(f, guess):
        def step(state):
            _, y = state
            return jnp.abs(f(y)), y - f(y) / (2.0 * y)

        start = (jnp.ones_like(guess), guess)
        return loops.while_loop(lambda state: state[0] > 1e-6, step, start)[1]

    divide = lambda g, y: y / g(jnp.ones_like(y))
    return lambda x: lax.custom_root(lambda y: y * y - x, jnp.ones_like(x), newton, divide)


def quotient_by(loops: Implementation):
    """`x / (2 + x)`, by loops that apply the map and its inverse, with JAX's rule for solutions."""

    def fun(x):
        shifted = lambda y: loops.fori_loop(0, 2, lambda i, c: c + (1.0 + 0.5 * x) * y, 0.0 * y)
        improve = lambda f, b: lambda i, y: y + 0.3 * (b - f(y))
        solve = lambda f, b: loops.fori_loop(0, 30, improve(f, b), 0.0 * b)
        return lax.custom_linear_solve(shifted, x, solve, symmetric=True)

    return fun


@loop_kinds
@pytest.mark.parametrize("differentiate", (FORWARD | REVERSE).values(), ids=FORWARD | REVERSE)
def test_custom_root(through, differentiate):
    """A root that a loop finds is differentiated by JAX's rule, in a loop too, at every order."""
    roots = differentiate(through(OURS, root_by(OURS)))
    assert_same(roots, differentiate(through(PYTHON, jnp.sqrt)), rtol=1e-4)


@loop_kinds
@pytest.mark.parametrize("differentiate", (FORWARD | REVERSE).values(), ids=FORWARD | REVERSE)
def test_custom_linear_solve(through, differentiate):
    """So is the solution of a linear system whose map and whose solver loop."""
    solutions = differentiate(through(OURS, quotient_by(OURS)))
    quotients = differentiate(through(PYTHON, lambda x: x / (2.0 + x)))
    assert_same(solutions, quotients, rtol=1e-4)


@jax.custom_batching.custom_vmap
def marked(x):
    """The sine, and a hundred more where it is batched, to tell the rule from the truth."""
    return jnp.sin(x)


@marked.def_vmap
def _(size, in_batched, x):
    return jnp.sin(x) + 100.0, in_batched[0]


def loop_of_sines(loops: Implementation):
    """A loop with a rule that maps, by a loop, where it is batched."""

    @jax.custom_batching.custom_vmap
    def fun(x):
        return loops.fori_loop(0, 3, lambda i, c: jnp.sin(c), x)

    @fun.def_vmap
    def _(size, in_batched, x):
        return loops.map(lambda row: 2.0 * fun(row), x), True

    return fun


LANES = jnp.stack([X, 0.2 * X])


@loop_kinds
@pytest.mark.parametrize(
    "batch",
    [
        lambda fun: jax.vmap(fun)(LANES),
        lambda fun: jax.jit(jax.vmap(fun))(LANES),
        lambda fun: jax.jvp(jax.vmap(fun), (LANES,), (LANES,)),
        lambda fun: jax.vmap(lambda x: jax.jvp(fun, (x,), (x,)))(LANES),
        lambda fun: fun(X),
    ],
    ids=["vmap", "jit_of_vmap", "jvp_of_vmap", "vmap_of_jvp", "eager"],
)
def test_custom_vmap(through, batch):
    """A batching rule holds in a loop's body, and for a loop that has one, at every step."""
    for rule in (lambda loops: marked, loop_of_sines):
        assert_same(batch(through(OURS, rule(OURS))), batch(through(JAX, rule(JAX))), rtol=1e-4)


def test_custom_vmap_of_what_is_not_batched():
    """A rule is not asked for a value that is the same for all lanes, though others are not."""

    def fun(loops, fixed):
        step = lambda c, _: (c + marked(fixed), None)
        return jax.vmap(lambda x: loops.scan(step, x, None, length=2)[0])(LANES)

    assert_same(fun(OURS, X), fun(JAX, X))
    assert_same(fun(OURS, X), LANES + 2.0 * jnp.sin(X))


def test_sequential_vmap():
    """A loop that is mapped lane by lane gives each lane its value."""
    fun = jax.custom_batching.sequential_vmap(loop_of_sines(OURS).__wrapped__)
    assert_same(jax.vmap(fun)(LANES), jax.vmap(lambda x: jnp.sin(jnp.sin(jnp.sin(x))))(LANES))


@jax.custom_jvp
def scaled(x):
    """The sine times a number; its rule makes it of a NumPy array that it closes over."""
    return jnp.sin(x) * 3


@scaled.defjvp
def scaled_jvp(primals, tangents):
    """A rule with constants that are found only when the rule is traced."""
    (x,), (dx,) = primals, tangents
    table = np.ones((3, 2), np.float32)
    return jnp.sin(x) * table.sum(0)[0] + 0 * jnp.sum(table @ jnp.ones(2)), dx * jnp.cos(x) * 3


RULES_WITH_CONSTANTS = {
    "scan": lambda loops, x: loops.scan(lambda c, _: (scaled(c) * x, scaled(c)), x, length=3),
    "fori_loop": lambda loops, x: loops.fori_loop(0, 3, lambda i, c: scaled(c) * x, x),
    "nest": lambda loops, x: loops.scan(
        lambda c, _: (loops.fori_loop(0, 2, lambda i, c: scaled(c), c) * x, None), x, length=2
    )[0],
}


@pytest.mark.parametrize("program", RULES_WITH_CONSTANTS.values(), ids=RULES_WITH_CONSTANTS)
@pytest.mark.parametrize("transformation", [*FIRST, *REST, *PAIRS], ids=lambda t: t.name)
def test_constants_of_rules(program, transformation):
    """A body may hold arrays that a custom rule brought in, under every transformation."""
    args = (jnp.float32(0.7),)
    ours, theirs = (partial(program, loops) for loops in (OURS, JAX))
    assert_same(transformation.apply(ours, args), transformation.apply(theirs, args))


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("program", RULES_WITH_CONSTANTS.values(), ids=RULES_WITH_CONSTANTS)
def test_constants_of_rules_under_checkpoint(program, newer):
    """So it may in both implementations of `jax.checkpoint`, also around its tangent."""

    def gradients(loops):
        run = lambda x: sum(jax.tree.leaves(jax.tree.map(jnp.sum, program(loops, x))))
        tangent = lambda x: jax.jvp(run, (x,), (x,))[1]
        x = jnp.float32(0.7)
        return [jax.grad(jax.checkpoint(fun))(x) for fun in (run, tangent)]

    before = getattr(jax.config, "jax_remat3")  # noqa: B009, no attribute for types
    jax.config.update("jax_remat3", newer)
    try:
        assert_same(gradients(OURS), gradients(JAX))
    finally:
        jax.config.update("jax_remat3", before)
