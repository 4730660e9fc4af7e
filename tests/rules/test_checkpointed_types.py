"""Carries, xs and ys of every type through loops that keep few carries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, PYTHON

X = np.float32(0.5)


def test_integers_booleans_and_none():
    """Leaves without derivatives ride along, None leaves keep their place."""

    def body(c, i):
        even = i % 2 == 0
        c = {"n": c["n"] + i, "x": jnp.where(even, c["x"] * 2, c["x"]), "no": None, "even": even}
        return c, (i, None, c["x"])

    def run(lib, x, **options):
        init = {"n": jnp.int32(0), "x": x, "no": None, "even": jnp.bool_(False)}
        return lib.scan(body, init, jnp.arange(5, dtype=jnp.int32), **options)

    assert_same(run(loops, X, checkpoints=2), run(PYTHON, X))
    loss = lambda lib, **o: lambda x: run(lib, x, **o)[0]["x"] + jnp.sum(run(lib, x, **o)[1][2])
    assert_same(jax.grad(loss(loops, checkpoints=2))(X), jax.grad(loss(JAX))(X))


def test_tangents_of_integers_come_back_as_float0():
    """A derivative for an integer init has the type that JAX gives it."""

    def run(n, x):
        return loops.fori_loop(0, 3, lambda _, c: (c[0] + 1, c[1] * x), (n, x), checkpoints=2)

    _, pull = jax.vjp(run, jnp.int32(0), jnp.float32(X))
    n_ct, x_ct = pull((np.zeros((), jax.dtypes.float0), jnp.float32(1)))
    assert n_ct.dtype == jax.dtypes.float0
    assert float(x_ct) == 4 * X**3


@pytest.mark.parametrize("options", [{"checkpoints": 2}, {"max_steps": 9}])
def test_typed_keys(options):
    """A random key in the carry is split at each step, and the way back draws the same numbers."""

    def body(s):
        key, sub = jax.random.split(s[1])
        return s[0] + 1, key, jnp.sin(s[2] + jax.random.normal(sub))

    def by(loop, x):
        return loop(lambda s: s[0] < 5, body, (jnp.int32(0), jax.random.key(0), x))[2]

    ours = jax.grad(lambda x: by(lambda *a: loops.while_loop(*a, **options), x))(X)
    expected = jax.grad(lambda x: by(python_while, x))(X)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def python_while(cond, body, state):
    """A loop whose condition does not depend on what is differentiated."""
    for _ in range(5):
        state = body(state)
    return state


def test_keys_over_which_a_scan_runs():
    """Keys may be xs too, and the scan may end before the last of them."""

    def body(c, key):
        return jnp.sin(c + jax.random.normal(key)), c

    keys = jax.random.split(jax.random.key(0), 6)
    early = lambda x: loops.scan(body, x, keys, until=lambda c: c > 10.0)[0]
    plain = lambda x: jax.lax.scan(body, x, keys)[0]
    assert_same(jax.value_and_grad(early)(X), jax.value_and_grad(plain)(X))


def test_wide_types(x64):
    """With 64-bit types values and gradients are of double precision."""

    def by(lib, x, **options):
        return lib.scan(lambda c, _: (jnp.sin(c * x), c), x, None, 7, **options)[0]

    x = np.float64(0.5)
    ours = jax.value_and_grad(lambda x: by(loops, x, checkpoints=2))(x)
    assert_same(ours, jax.value_and_grad(lambda x: by(JAX, x))(x), rtol=1e-14)


def test_traced_bounds_of_64_bits(x64):
    """Bounds of int64 count an index of int64."""

    def run(n, x):
        return loops.fori_loop(
            np.int64(0), n, lambda i, c: c * x + i.astype(c.dtype), x, checkpoints=2
        )

    gradient = jax.jit(jax.grad(run, 1))(np.int64(3), np.float64(0.5))
    # x -> ((x * x + 0) * x + 1) * x + 2
    np.testing.assert_allclose(gradient, 4 * 0.5**3 + 1, rtol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_floats(dtype):
    """Half precision goes there and back in half precision."""

    def by(lib, x, **options):
        return lib.scan(lambda c, _: (jnp.sin(c * x), None), x, None, 4, **options)[0]

    x = jnp.asarray(0.5, dtype)
    ours = jax.grad(lambda x: by(loops, x, checkpoints=2))(x)
    assert ours.dtype == dtype
    assert_same(ours, jax.grad(lambda x: by(JAX, x))(x), rtol=2e-2)


def test_complex_numbers():
    """A holomorphic step has a holomorphic derivative."""
    run = lambda z: loops.fori_loop(0, 3, lambda _, c: c * z, z, checkpoints=2)
    z = np.complex64(0.5 + 0.25j)
    np.testing.assert_allclose(jax.grad(run, holomorphic=True)(z), 4 * z**3, rtol=1e-5)


def test_weakly_typed_init_is_promoted():
    """An init that is a Python number takes the type that the body returns for it."""

    def run(x, **options):
        return loops.while_loop(lambda c: c < 9, lambda c: c * x + 1, 1, **options)

    bounded = run(np.float32(1.5), max_steps=20)
    plain = run(np.float32(1.5))
    assert_same(bounded, plain)


def test_empty_arrays():
    """A carry of no elements has a gradient of none."""
    run = lambda x: loops.scan(lambda c, _: (jnp.sin(c), c), x, None, 3, checkpoints=2)
    gradient = jax.grad(lambda x: jnp.sum(run(x)[0]) + jnp.sum(run(x)[1]))(jnp.zeros((0, 2)))
    assert gradient.shape == (0, 2)


def test_no_carry():
    """A loop that carries nothing still computes its ys, and their derivatives."""
    xs = jnp.float32([0.1, 0.2, 0.3])
    run = lambda xs: loops.scan(lambda c, x: (c, jnp.sin(x)), None, xs, checkpoints=2)[1]
    np.testing.assert_allclose(jax.grad(lambda xs: run(xs).sum())(xs), np.cos(xs), rtol=1e-6)


def test_disable_jit():
    """Step by step in Python the results and the derivatives are the same."""

    def fun(x):
        body = lambda c, _: (jnp.sin(c), c)
        a, ys = loops.scan(body, x, None, 4, until=lambda c: c < 0.3)
        b = loops.while_loop(lambda c: c < 2.0, lambda c: c * 1.5, x, max_steps=9)
        c = loops.fori_loop(0, 3, lambda i, c: c * x, x, checkpoints=2)
        return a + jnp.sum(ys) + b + c

    with jax.disable_jit():
        found = jax.value_and_grad(fun)(X)
    assert_same(found, jax.value_and_grad(fun)(X))
