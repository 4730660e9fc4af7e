"""What a step would compute after the end of a loop never reaches a gradient, NaN or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops


def singular(w, x):
    """A step to `x - w` with a quotient, a logarithm and a root that are singular at zero."""
    return x - w + 0.0 * (w / x + jnp.log(x) + jnp.sqrt(x))


def down_to_zero(w, x):
    """Steps as long as the value is positive."""
    return loops.while_loop(lambda c: c > 0.0, lambda c: singular(w, c), x, max_steps=8)


def until_zero(w, x):
    """The same by a scan that ends early."""
    body = lambda c, _: (singular(w, c), c)
    return loops.scan(body, x, None, 8, until=lambda c: c <= 0.0)[0]


def counted(w, x):
    """The same by a number of steps that is known only while running."""
    steps = jnp.ceil(x / w).astype(jnp.int32)
    return loops.fori_loop(0, steps, lambda _, c: singular(w, c), x, max_steps=8)


ROADS = {"while": down_to_zero, "until": until_zero, "fori": counted}


@pytest.mark.parametrize("road", ROADS)
def test_the_step_after_the_end(road):
    """The gradients of the steps taken, of first and second order, are finite."""
    fun = lambda w, x: ROADS[road](w, x) ** 2
    w, x = np.float32(1), np.float32(3)
    first = jax.jit(jax.grad(fun, (0, 1)))(w, x)
    second = jax.jit(jax.hessian(fun, (0, 1)))(w, x)
    np.testing.assert_allclose(first, (0.0, 0.0), atol=1e-6)
    np.testing.assert_allclose(second, [[18.0, -6.0], [-6.0, 2.0]], rtol=1e-5)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("order", [1, 2])
def test_lanes_that_share_a_weight(road, order):
    """A lane that has ended at a singular point adds nothing to what the lanes share."""
    starts = np.array([0.0, 1.0, 4.0], np.float32)

    def fun(w):
        ends = jax.vmap(lambda x: ROADS[road](w, x))(starts)
        return jnp.sum(ends * ends + ends)

    derivative = fun
    for _ in range(order):
        derivative = jax.grad(derivative)
    # The lanes take 0, 1 and 4 steps, and end at x - steps * w.
    expected = {1: -5.0, 2: 2.0 * (1 + 16)}
    np.testing.assert_allclose(jax.jit(derivative)(np.float32(1)), expected[order], rtol=1e-5)


def test_a_singular_step_that_is_taken():
    """What is wrong in a step that the loop does take is seen, as without checkpoints."""
    fun = lambda x: loops.scan(lambda c, _: (jnp.sqrt(c), None), x, None, 2, checkpoints=1)[0]
    assert not np.isfinite(jax.grad(fun)(np.float32(0)))


def test_debug_nans_finds_nothing():
    """No NaN is made on the way, so `jax.debug_nans` lets a gradient pass."""
    with jax.debug_nans(True):
        assert float(jax.grad(down_to_zero)(np.float32(1), np.float32(3))) == -3.0
