"""A root found by Newton's method, in a `while_loop` that has both derivatives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import loops


class State(NamedTuple):
    """The carry of Newton's loop."""

    x: Array
    settled: Array  # how many steps have been taken since one was small


def find_root(
    function: Callable[[Array, Any], Array],
    guess: Array | float,
    parameters: Any,
    *,
    tolerance: float = 1e-8,
    extra: int = 1,
    max_steps: int = 50,
) -> Array:
    """Find x with `function(x, parameters) = 0`.

    Each step squares the error, so the first one that is shorter than the tolerance ends as close
    to the root as rounding allows. It also doubles the number of terms that are right in the Taylor
    series of x in the parameters: from a perfect guess, whose series has the value alone, one step
    leads to the first derivative and two lead to the third. So after a small step comes another.

    Args:
        function: `(x, parameters) -> residual`, both scalars.
        guess: where to start.
        parameters: handed to the function, any pytree.
        tolerance: a step is small if it is not longer than this times 1 + |x|.
        extra: how many steps to take after the first small one. With 1 derivatives are right up to
            the third, wherever the loop started.
        max_steps: how many steps to take at most. If the loop has not settled by then, a
            `loops.MaxStepsWarning` says so.

    Returns:
        The root, a scalar.
    """
    slope = jax.grad(function)

    def step(state: State) -> State:
        move = function(state.x, parameters) / slope(state.x, parameters)
        x = state.x - move
        is_settled = (state.settled > 0) | (jnp.abs(move) <= tolerance * (1 + jnp.abs(x)))
        return State(x, state.settled + is_settled.astype(jnp.int32))

    start = State(jnp.asarray(guess), jnp.int32(0))
    return loops.while_loop(lambda s: s.settled <= extra, step, start, max_steps=max_steps).x
