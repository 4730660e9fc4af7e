"""An initial value problem solved with steps of controlled size, by Bogacki's and Shampine's pair.

    y'(t) = field(t, y, parameters),    y(0) = y0

Nobody knows beforehand how many steps that takes. `solve` is a `while_loop` that has both
derivatives; `solve_with_steps` is a `scan` that ends early and gives every step as well.

BS stands for P. Bogacki and L. F. Shampine, A 3(2) pair of Runge-Kutta formulas, Applied
Mathematics Letters 2 (1989); HNW for E. Hairer, S. P. Norsett and G. Wanner, Solving Ordinary
Differential Equations I, Springer 1993.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import loops

Field = Callable[[Array, Array, Any], Array]


class Problem(NamedTuple):
    """What is to be solved, and how well."""

    field: Field
    parameters: Any
    end: Array
    tolerance: float


class State(NamedTuple):
    """The carry: where the solution is, and the size of the step to try next."""

    time: Array
    y: Array
    slope: Array  # field(time, y): the last stage of one step is the first of the next
    step: Array
    accepted: Array  # how many steps were good enough


class Attempt(NamedTuple):
    """Where one step leads."""

    y: Array
    slope: Array
    error: Array  # the difference of the formulas of order 3 and 2


def attempt(problem: Problem, state: State, step: Array) -> Attempt:
    """Try one step (BS, the pair of section 2)."""
    time, y, k1 = state.time, state.y, state.slope
    k2 = problem.field(time + step / 2, y + step / 2 * k1, problem.parameters)
    k3 = problem.field(time + 3 * step / 4, y + 3 * step / 4 * k2, problem.parameters)
    y_new = y + step * (2 * k1 + 3 * k2 + 4 * k3) / 9
    k4 = problem.field(time + step, y_new, problem.parameters)
    return Attempt(y_new, k4, step * (-5 * k1 + 6 * k2 + 8 * k3 - 9 * k4) / 72)


def error_ratio(tried: Attempt, y: Array, tolerance: float) -> Array:
    """The largest component of the error, as a multiple of what is allowed for it (HNW II.4)."""
    allowed = tolerance * (1 + jnp.maximum(jnp.abs(y), jnp.abs(tried.y)))
    return jnp.max(jnp.abs(tried.error) / allowed)


def next_size(step: Array, ratio: Array) -> Array:
    """The step for which the error would be a little less than allowed (HNW II.4.13).

    A ratio that is no number comes from a step that led out of the field's domain.
    """
    factor = jnp.clip(0.9 * ratio ** (-1 / 3), 0.2, 5.0)
    return step * jnp.where(jnp.isnan(factor), 0.2, factor)


def advance(problem: Problem, state: State) -> State:
    """Try a step, and keep it if its error is allowed.

    The last step ends at `problem.end`, and has a derivative with respect to that. All others are
    chosen by the controller. They are meant to have no influence on the solution, so they have none
    on its derivative either: the derivative is that of the same steps with other numbers.
    """
    left = problem.end - state.time
    is_last = state.step >= left
    step = jnp.where(is_last, left, state.step)
    tried = attempt(problem, state, step)
    ratio = error_ratio(tried, state.y, problem.tolerance)
    is_accepted = ratio <= 1
    moved = State(
        jnp.where(is_last, problem.end, state.time + step),
        tried.y,
        tried.slope,
        state.step,
        state.accepted + 1,
    )
    kept = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), moved, state)
    return kept._replace(step=jax.lax.stop_gradient(next_size(step, ratio)))


def start(problem: Problem, y0: Array) -> State:
    """The carry before the first step, which is tried with a hundredth of the interval."""
    zero = jnp.zeros_like(problem.end)
    slope = problem.field(zero, y0, problem.parameters)
    step = jax.lax.stop_gradient(problem.end) / 100
    return State(zero, y0, slope, step, jnp.int32(0))


def solve(
    field: Field,
    y0: Array,
    parameters: Any,
    end: Array,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 10_000,
    checkpoints: int | None = None,
) -> Array:
    """Solve from time 0 to `end`.

    Args:
        field: `(time, y, parameters) -> slope`, with slopes of the shape of y.
        y0: y at time 0, of shape (n,).
        parameters: handed to the field, any pytree.
        end: the last time, a scalar, above 0.
        tolerance: the error that a step may add to y, absolute and relative.
        max_steps: how many steps to try. If that is too few, a `loops.MaxStepsWarning` says so, and
            the result is y at an earlier time.
        checkpoints: how many states to keep for reverse mode; by default it follows from
            `max_steps`.

    Returns:
        y at the time `end`, of shape (n,).
    """
    problem = Problem(field, parameters, end, tolerance)
    return loops.while_loop(
        lambda state: state.time < end,
        lambda state: advance(problem, state),
        start(problem, y0),
        max_steps=max_steps,
        checkpoints=checkpoints,
    ).y


def solve_with_steps(
    field: Field,
    y0: Array,
    parameters: Any,
    end: Array,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 10_000,
) -> tuple[State, State]:
    """Solve from time 0 to `end`, and return the state after each step too.

    Args:
        field: as for `solve`, and so are the other arguments.
        y0: y at time 0, of shape (n,).
        parameters: handed to the field.
        end: the last time.
        tolerance: the error that a step may add to y.
        max_steps: how many steps to try; there is a row for each.

    Returns:
        The last state, and the states after each step tried, with leaves of shape
        (max_steps, ...). A step that was not accepted repeats the state before it; rows of steps
        that were not needed are zeros.
    """
    problem = Problem(field, parameters, end, tolerance)

    def body(state: State, _: None) -> tuple[State, State]:
        state = advance(problem, state)
        return state, state

    return loops.scan(
        body,
        start(problem, y0),
        length=max_steps,
        until=lambda state: state.time >= end,
    )
