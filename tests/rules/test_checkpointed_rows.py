"""Rows of xs that lanes share, in scans whose lanes end at different steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops

SIZE = 3  # as many as there are lanes, so that an axis in the wrong place would go unnoticed
ROWS = np.linspace(-0.4, 1.3, 5 * SIZE, dtype=np.float32).reshape(5, SIZE)
STARTS = np.linspace(0.2, 1.1, 3 * SIZE, dtype=np.float32).reshape(3, SIZE)
STEPS = np.array([3, 0, 5], np.int32)


def step(c, x):
    """A step that reads its row twice."""
    return jnp.sin(c) * x + 0.1 * x, c * x


def ours(xs, start, steps, reverse=False):
    """A scalar of all that a scan returns that ends early."""

    def counted(state, x):
        c, y = step(state[1], x)
        return (state[0] + 1, c), y

    init = (jnp.int32(0), start)
    (_, c), ys = loops.scan(
        counted, init, xs, reverse=reverse, until=lambda s: s[0] >= steps, checkpoints=2
    )
    return jnp.sum(jnp.cos(c)) + jnp.sum(ys * ys)


def plain(xs, start, steps, reverse=False):
    """The same with steps that change nothing at the end."""

    def masked(state, x):
        i, c = state
        new, y = step(c, x)
        goes_on = i < steps
        return (i + 1, jnp.where(goes_on, new, c)), jnp.where(goes_on, y, 0.0)

    (_, c), ys = jax.lax.scan(masked, (jnp.int32(0), start), xs, reverse=reverse)
    return jnp.sum(jnp.cos(c)) + jnp.sum(ys * ys)


def over_lanes(fun):
    """The sum over lanes that share the rows."""
    return lambda xs: jnp.sum(jax.vmap(fun, (None, 0, 0))(xs, STARTS, STEPS))


def over_lanes_of_lanes(fun):
    """The same with lanes in lanes, of which the outer ones have rows of their own."""
    lanes = jax.vmap(fun, (None, 0, 0))
    more = lambda xs: jax.vmap(lanes, (0, None, 0))(
        jnp.stack([xs, xs[::-1]]), STARTS, np.stack([STEPS, STEPS[::-1]])
    )
    return lambda xs: jnp.sum(more(xs))


def over_lanes_that_share_all(fun):
    """Lanes in lanes that all share the rows, and differ in their steps at both levels."""
    lanes = jax.vmap(fun, (None, 0, 0))
    more = jax.vmap(lanes, (None, None, 0))
    return lambda xs: jnp.sum(more(xs, STARTS, np.stack([STEPS, STEPS[::-1]])))


def gradient_in_lanes(fun):
    """A gradient for the shared rows in each lane."""
    gradients = lambda xs: jax.vmap(jax.grad(fun), (None, 0, 0))(xs, STARTS, STEPS)
    return lambda xs: jnp.sum(gradients(xs) ** 2)


SUMS = [over_lanes, over_lanes_of_lanes, over_lanes_that_share_all, gradient_in_lanes]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("total", SUMS, ids=lambda total: total.__name__)
def test_shared_rows(total, order):
    """The gradient of a shared row is the sum over the lanes that ran so far."""
    found = []
    for fun in (ours, plain):
        gradient = jax.grad(total(fun))
        if order == 2:
            gradient = jax.grad(lambda xs, g=gradient: jnp.sum(g(xs) ** 2))
        found.append(jax.jit(gradient)(ROWS))
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


def test_shared_rows_in_reverse():
    """The same where the last row is run first."""
    found = [
        jax.jit(jax.grad(over_lanes(lambda *args, f=fun: f(*args, reverse=True))))(ROWS)
        for fun in (ours, plain)
    ]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_shared_rows_forwards():
    """A tangent of a shared row reaches each lane that runs so far."""
    found = [jax.jvp(over_lanes(fun), (ROWS,), (np.cos(ROWS),)) for fun in (ours, plain)]
    np.testing.assert_allclose(*found, rtol=1e-4)
