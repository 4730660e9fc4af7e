"""NaNs and infinities that never matter do not reach what does."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)
compiled = pytest.mark.parametrize("compile_", [lambda fun: fun, jax.jit], ids=["eager", "jit"])

X = jnp.float32(1.5)


def spoil(good, bad):
    """Doubles one value; the other becomes NaN at once, its derivative too, and is never read."""
    return good * 2.0, jnp.sqrt(-jnp.abs(good)) * bad


@primitives
@compiled
def test_unread_nan_in_the_carry_does_not_poison_the_gradient(loops: Implementation, compile_):
    """No zero cotangent is multiplied with the NaN's derivative."""

    def with_scan(x):
        (good, _), _ = loops.scan(lambda c, _: (spoil(*c), None), (x, x), None, length=3)
        return good

    def with_fori(x):
        return loops.fori_loop(0, 3, lambda i, c: spoil(*c), (x, x))[0]

    assert float(compile_(jax.grad(with_scan))(X)) == 8.0
    assert float(compile_(jax.grad(with_fori))(X)) == 8.0


@primitives
@compiled
def test_unread_nan_in_the_ys_does_not_poison_the_gradient(loops: Implementation, compile_):
    """A y that nobody differentiates has no cotangent at all."""

    def fun(x):
        c, _ = loops.scan(lambda c, _: (c * 2.0, jnp.sqrt(-jnp.abs(c))), x, None, length=3)
        return c

    assert float(compile_(jax.grad(fun))(X)) == 8.0


@primitives
def test_second_derivative_ignores_the_nan_too(loops: Implementation):
    """Forward over reverse keeps what is unread out."""

    def fun(x):
        step = lambda c, _: ((c[0] * x, jnp.sqrt(-jnp.abs(c[0])) * c[1]), None)
        return loops.scan(step, (x, x), None, length=2)[0][0]

    assert float(jax.jvp(jax.grad(fun), (X,), (jnp.float32(1.0),))[1]) == pytest.approx(6.0 * 1.5)


@primitives
def test_unread_nan_of_one_lane(loops: Implementation):
    """The gradient of a batch is right in every lane."""

    def fun(x):
        return loops.fori_loop(0, 3, lambda i, c: spoil(*c), (x, x))[0]

    assert jax.vmap(jax.grad(fun))(jnp.float32([0.5, 0.0])).tolist() == [8.0, 8.0]


@primitives
def test_nan_that_matters_is_passed_on(loops: Implementation):
    """What is read is not cleaned up."""
    fun = lambda x: loops.scan(lambda c, _: (jnp.log(c), None), x, None, length=3)[0]
    assert jnp.isnan(fun(jnp.float32(-1.0)))
    assert jnp.isnan(jax.grad(fun)(jnp.float32(0.5)))
