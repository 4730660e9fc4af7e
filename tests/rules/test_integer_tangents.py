"""Carries, xs and ys that have no derivative, beside those that have one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import Implementation

FLOAT0 = jax.dtypes.float0
X = jnp.float32([0.5, 1.5])
COUNTS = jnp.int32([3, 1, 2])


def counted(impl: Implementation, n, x, counts):
    """Integers in carry, xs and ys; they steer the float but have no derivative."""

    def step(c, count):
        n, flag, x = c
        x = jnp.where(flag, x * count.astype(x.dtype), x * x)
        return (n + count, ~flag, x), (n, flag, x.sum())

    return impl.scan(step, (n, jnp.bool_(True), x), counts)


def test_tangents_of_integers_are_float0(impl: Implementation):
    """A jvp takes float0 for integers and gives float0 for integers and booleans."""
    primals = (jnp.int32(0), X, COUNTS)
    tangents = (np.zeros((), FLOAT0), jnp.ones_like(X), np.zeros(3, FLOAT0))
    _, ((n, flag, x), (ns, flags, sums)) = jax.jvp(
        lambda *args: counted(impl, *args), primals, tangents
    )
    assert [t.dtype for t in (n, flag, ns, flags)] == [FLOAT0] * 4
    assert [t.shape for t in (n, flag, ns, flags)] == [(), (), (3,), (3,)]
    assert x.dtype == sums.dtype == jnp.float32


def test_cotangents_of_integers_are_float0(impl: Implementation):
    """A vjp takes float0 for integer outputs and gives float0 for integer inputs."""
    out, pull = jax.vjp(lambda *args: counted(impl, *args), jnp.int32(0), X, COUNTS)
    zeros = lambda leaf: (
        jnp.ones_like(leaf) if leaf.dtype == jnp.float32 else np.zeros(leaf.shape, FLOAT0)
    )
    n, x, counts = pull(jax.tree.map(zeros, out))
    assert (n.dtype, n.shape) == (FLOAT0, ())
    assert (counts.dtype, counts.shape) == (FLOAT0, (3,))
    assert x.dtype == jnp.float32


def test_gradient_past_integers(impl: Implementation):
    """The gradient through a loop steered by integers is that of what it computes."""
    fun = lambda x: counted(impl, jnp.int32(0), x, COUNTS)[0][2].sum()
    plain = lambda x: ((x * 3.0) ** 2 * 2.0).sum()
    assert_same(jax.grad(fun)(X), jax.grad(plain)(X))
    assert_same(jax.hessian(fun)(X), jax.hessian(plain)(X), weak_types=False)


def test_gradient_with_integers_allowed(impl: Implementation):
    """`allow_int` gives float0 for the integers that are asked for."""
    fun = lambda n, x, counts: counted(impl, n, x, counts)[0][2].sum()
    n, x, counts = jax.grad(fun, (0, 1, 2), allow_int=True)(jnp.int32(0), X, COUNTS)
    assert (n.dtype, counts.dtype) == (FLOAT0, FLOAT0)
    assert x.shape == (2,)


def test_integer_loop_in_a_differentiated_function(impl: Implementation):
    """A loop over integers alone is no obstacle to a gradient."""

    def fun(x):
        n = impl.fori_loop(0, 3, lambda i, c: c + i, 0)
        _, ns = impl.scan(lambda c, _: (c + 1, c), 0, None, length=3)
        return (x * (n + ns.sum()).astype(x.dtype)).sum()

    assert jax.grad(fun)(X).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("transform", ["jvp", "vmap", "grad"])
def test_keys_beside_floats(impl: Implementation, transform):
    """Typed keys go through every transformation of a loop, and have no derivative."""
    keys = jax.random.split(jax.random.key(0), 3)

    def fun(x):
        step = lambda c, key: ((key, c[1] * x), (c[0], c[1]))
        (last, value), (seen, values) = impl.scan(step, (keys[0], jnp.ones_like(x)), keys)
        return value.sum() + values.sum(), last, seen

    if transform == "jvp":
        (value, last, seen), (tangent, *rest) = jax.jvp(fun, (X,), (jnp.ones_like(X),))
        assert [t.dtype for t in rest] == [FLOAT0, FLOAT0]
        assert_same(tangent, (3.0 * X**2 + 1.0 + 2.0 * X).sum())
    elif transform == "vmap":
        value, last, seen = jax.vmap(fun)(X)
        assert_same(value, X**3 + 1.0 + X + X**2)
        last, seen = last[0], seen[0]
    else:
        last, seen = fun(X)[1:]
        gradient = jax.grad(lambda x: fun(x)[0])(X)
        assert_same(gradient, 3.0 * X**2 + 1.0 + 2.0 * X)
    assert_same(last, keys[-1])
    assert_same(seen, keys[jnp.array([0, 0, 1])])
