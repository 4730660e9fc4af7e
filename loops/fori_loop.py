"""`fori_loop`: a counted loop, on the road that its bounds allow.

Bounds whose values are known while tracing, or that are symbolic dimensions of `jax.export`, give a
`scan`, which can be differentiated in reverse; a traced bound gives a `while`.

    scan   carry (index, value)
    while  carry (index, upper, value), as long as index < upper

With `checkpoints` or `max_steps` a traced bound gives a `checkpointed_loop` with carry (index,
value), which can be differentiated in reverse too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.tree_util import SequenceKey

from checks import CarryTypeError, explain_fori
from checks.steps import first_index
from checks.tracing import LoopBody
from loops import _jax
from loops.bounds import Bounds, check_bounds, steps_between
from loops.checkpointed import (
    UNBOUNDED,
    Checkpoints,
    EarlyEnd,
    StepBound,
    check_checkpoints,
    check_count,
    slots_for,
)
from loops.cut_off import ask_whether_cut_off
from loops.primitives.checkpointed_loop import MAX_STEPS
from loops.scan import scan_named
from loops.while_loop import while_loop_named
from loops.wrappers import fori_scan_body, fori_while_body, fori_while_cond

Carry = TypeVar("Carry")


@_jax.api_boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Carry], Carry],
    init_val: Carry,
    *,
    unroll: int | bool | None = None,
    max_steps: int | None = None,
    checkpoints: int | Checkpoints | None = None,
) -> Carry:
    """Run `body_fun` for each integer from `lower` up to, but not including, `upper`.

    It computes what this Python function does, compiled as one loop::

        def fori_loop(lower, upper, body_fun, init_val):
            val = init_val
            for i in range(lower, upper):
                val = body_fun(i, val)
            return val

    Where both bounds are known while tracing, or are symbolic dimensions of `jax.export`, the loop
    becomes a `scan`, and reverse-mode differentiation works; where one is traced it becomes a
    `while`, and reverse mode works if `checkpoints` or `max_steps` is given. Either way the index
    has the integer type of the bounds.

    Args:
      lower: the first index, an integer scalar.
      upper: one more than the last index, of the same integer type; a Python int takes the type of
        the other bound. If it is not above `lower`, nothing runs. Bounds that are traced floats
        count in floats; a float whose value is known is refused, never truncated.
      body_fun: `(index, carry) -> carry`.
      init_val: the initial carry, any pytree; see `scan` for the contract.
      unroll: how many steps one turn of the compiled loop runs; True or 0 for all of them. Only for
        bounds known while tracing.
      max_steps: stop after this many steps. If there should have been more, the result is right as
        far as the loop ran, and a `MaxStepsWarning` says so; see `while_loop`. With traced bounds
        it also chooses the number of checkpoints.
      checkpoints: keep at most this many carries for reverse-mode differentiation, and compute the
        others again. With traced bounds such a loop runs at most 2**31 - 1 steps.

    Returns:
      The carry after the last step.

    Raises:
      checks.CarryTypeError: the carry that comes out of `body_fun` differs in type.
      TypeError: a bound is no integer scalar, or the two have different integer types.
      OverflowError: an index does not fit the integer type.
      ValueError: `unroll` with a traced bound; `max_steps` or `checkpoints` is not positive.

    Example:
      >>> print(fori_loop(0, 5, lambda i, total: total + i, 0))
      10
    """
    if not callable(body_fun):
        raise TypeError(f"lax.fori_loop: body_fun must be callable, got {type(body_fun).__name__}.")
    bound = StepBound(
        check_count("fori_loop", "max_steps", max_steps),
        check_checkpoints("fori_loop", checkpoints),
    )
    bounds = check_bounds(lower, upper)
    debug = _jax.debug_info("fori_loop", body_fun, 0, init_val)
    traced_road = _by_while if bound == UNBOUNDED else _by_count
    road = traced_road if bounds.length is None else _by_scan
    try:
        return road(bounds, body_fun, init_val, unroll, debug, bound)
    except CarryTypeError as error:
        explain_fori(error, body_fun, slot=2 if road is _by_while else 1)
        raise


def _by_scan(
    bounds: Bounds, body_fun: Any, init_val: Any, unroll: Any, debug: Any, bound: StepBound
) -> Any:
    """Run a known number of steps with the index as the first part of the carry."""
    unroll = False if unroll is None else unroll
    length = bounds.length
    if bound.max_steps is not None:
        length = _at_most(bound.max_steps, length)
    init = (bounds.lower, init_val)
    early = EarlyEnd(bound.checkpoints)
    written = partial(_written, body_fun, bounds, slot=1)
    (_, value), _ = scan_named(
        fori_scan_body(body_fun), init, None, length, False, unroll, debug, 1, early, written
    )
    return value


def _at_most(max_steps: int, length: Any) -> int:
    """The number of steps to run of those that there should be; a warning if some are left out."""
    if not isinstance(length, int):
        raise NotImplementedError(
            "fori_loop: `max_steps` needs bounds that are no symbolic dimensions; the loop has "
            f"{length} steps."
        )
    if length > max_steps:
        ask_whether_cut_off("fori_loop", max_steps, lambda: True)
    return min(length, max_steps)


def _by_count(
    bounds: Bounds, body_fun: Any, init_val: Any, unroll: Any, debug: Any, bound: StepBound
) -> Any:
    """Run a number of steps that is known when the loop begins, and that bounds its way back."""
    _refuse_unroll(unroll)
    wanted = steps_between(bounds)
    most_steps = bound.max_steps or MAX_STEPS
    limit = lax.convert_element_type(lax.min(wanted, wanted.dtype.type(most_steps)), np.int32)
    default = Checkpoints(slots_for(None, most_steps).slots)
    early = EarlyEnd(bound.checkpoints or default, limit=limit, most_steps=bound.max_steps)
    written = partial(_written, body_fun, bounds, slot=1)
    init, scan_body = (bounds.lower, init_val), fori_scan_body(body_fun)
    (_, value), _ = scan_named(scan_body, init, None, None, False, 1, debug, 1, early, written)
    if bound.max_steps is not None:
        ask_whether_cut_off("fori_loop", most_steps, lambda: wanted > wanted.dtype.type(most_steps))
    return value


def _by_while(
    bounds: Bounds, body_fun: Any, init_val: Any, unroll: Any, debug: Any, _: StepBound
) -> Any:
    """Run until the index reaches a bound that is known only while running."""
    _refuse_unroll(unroll)
    init = (bounds.lower, bounds.upper, init_val)
    while_body = fori_while_body(body_fun)
    debug = _jax.with_unnamed_argument(debug, 1)
    written = partial(_written, body_fun, bounds, slot=2)
    _, _, value = while_loop_named(fori_while_cond, while_body, init, debug, debug, written=written)
    return value


def _refuse_unroll(unroll: Any) -> None:
    if unroll is not None and unroll is not False and unroll != 1:
        raise ValueError(
            "Can only use `unroll` in `fori_loop` if the loop bounds are statically known."
        )


def _written(body_fun: Callable[..., Any], bounds: Bounds, slot: int) -> LoopBody:
    """The body as the user wrote it, which takes the index first."""
    index = jax.typeof(bounds.lower)
    slots, first = (SequenceKey(slot),), first_index(bounds.lower)
    return LoopBody(body_fun, (index,), slot=slots, steps=bounds.length, first_index=first)
