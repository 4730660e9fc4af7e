"""What the forward loop keeps for the backward one: as little as it must.

JAX's loops do the same, so each test runs on both.
"""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.equations import body_primitives, equations, scan_layout, stacked_outputs
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ONE = jnp.float32(1.0)
ROWS = jnp.linspace(0.5, 1.5, 4, dtype=jnp.float32)


def forward_and_backward(fun, *args):
    """The two scan equations of a gradient for every argument."""
    argnums = tuple(range(len(args)))
    forward, backward = equations(jax.grad(fun, argnums), *args, name="scan")
    return forward, backward


@primitives
def test_loop_invariant_residual_is_not_stacked(loops: Implementation):
    """The sine of a constant is kept once, not once for each step."""
    factor = jnp.float32(0.7)

    def fun(c):
        return loops.scan(lambda c, _: (c * jnp.sin(factor), None), c, None, length=4)[0]

    forward, backward = forward_and_backward(fun, ONE)
    assert stacked_outputs(forward) == []
    assert scan_layout(backward).xs == 0
    assert "sin" not in body_primitives(backward)


@primitives
def test_only_what_changes_is_stacked(loops: Implementation):
    """With the constant differentiated as well the carry is stacked, and nothing else."""

    def fun(c, w):
        return loops.scan(lambda c, _: (c * jnp.sin(w), None), c, None, length=4)[0]

    forward, _ = forward_and_backward(fun, ONE, ONE)
    assert [aval.shape for aval in stacked_outputs(forward)] == [(4,)]


@primitives
def test_xs_are_not_stacked_again(loops: Implementation):
    """A row of xs that the backward loop needs is read from the xs themselves."""

    def fun(c):
        return loops.scan(lambda c, x: (c * x, None), c, ROWS)[0]

    forward, backward = forward_and_backward(fun, ONE)
    assert stacked_outputs(forward) == []
    assert scan_layout(backward).xs == 1


@primitives
def test_linear_loop_keeps_nothing(loops: Implementation):
    """A loop that is linear in all that is differentiated has no residuals."""

    def fun(c, xs):
        return loops.scan(lambda c, x: (0.5 * c + x, None), c, xs)[0]

    forward_and_only = equations(jax.grad(fun, (0, 1)), ONE, ROWS, name="scan")
    assert all(scan_layout(eqn).ys <= 1 for eqn in forward_and_only)
    backward = forward_and_only[-1]
    assert scan_layout(backward).xs == 0
    assert scan_layout(backward).consts == 0


@primitives
def test_nothing_is_computed_twice_or_in_vain(loops: Implementation):
    """One sine and one cosine forwards, neither backwards."""

    def fun(c):
        return loops.scan(lambda c, _: (jnp.sin(c), None), c, None, length=4)[0]

    forward, backward = forward_and_backward(fun, ONE)
    assert sorted(set(body_primitives(forward)) & {"sin", "cos"}) == ["cos", "sin"]
    assert not set(body_primitives(backward)) & {"sin", "cos"}


@primitives
def test_invariant_residual_is_right(loops: Implementation):
    """A residual that is kept once gives the gradient that one per step would."""

    def fun(c, w):
        return loops.scan(lambda c, x: (c * jnp.sin(w) + x * jnp.exp(w), c), c, ROWS)[0]

    def unrolled(c, w):
        for x in ROWS:
            c = c * jnp.sin(w) + x * jnp.exp(w)
        return c

    got = jax.grad(fun, (0, 1))(ONE, jnp.float32(0.3))
    want = jax.grad(unrolled, (0, 1))(ONE, jnp.float32(0.3))
    assert jnp.allclose(jnp.stack(got), jnp.stack(want), rtol=1e-5)
