"""checkify of a while loop over lanes: a lane that is done reports nothing.

    running = cond(init)
    last = select(running, init, init of a lane that runs), and so each lane's constants
    while any(running):
        last = select(running, carry, last)
        carry = select(running, body(last), carry)
        running = running and cond(carry)

The checks of a batched body look at all lanes at once, so a lane that is done must not be shown to
the body as it ended: one step more may well divide by zero. It runs its last step again instead,
whose errors have been kept already. A lane that never runs has no such step. It does what another
lane does that runs, with that lane's constants too, and so it must be known which they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from loops import _jax
from loops.passes.freeze_lanes import select_lanes
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import LANES_WRITTEN_OUT, while_of_functions

# For each axis of the predicate the axis of another array that is the same lanes', or None.
LaneAxes = tuple[int | None, ...]


def with_last_steps(
    running: Any,
    args: Sequence[Any],
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> list[Any]:
    """What `repeat_last_step_in_finished_lanes` takes beside the lanes that run at first.

    Before: [*cond_consts, *body_consts, *carry]
    After:  [*cond_consts, *body_consts, *last, *carry]

    Raises:
      NotImplementedError: a lane that never runs might have no other to do as, because it isn't
        known which constants differ between lanes, constants differ along different vmaps or are
        Refs, or the lanes exchange values.
    """
    const_axes = _lane_axes(cond_jaxpr, body_jaxpr, body_nconsts)
    cond_consts, body_consts, init = split_while_inputs(args, cond_nconsts, body_nconsts)
    if running.size == 0:
        return [*cond_consts, *body_consts, *init, *init]
    first = FirstRunning.of(running, _partial_axes(const_axes))
    consts = [first.fill(x, axes) for x, axes in zip(body_consts, const_axes, strict=True)]
    last = [first.fill(x, tuple(range(running.ndim))) for x in init]
    return [*cond_consts, *consts, *last, *init]


def repeat_last_step_in_finished_lanes(
    running: Any,
    *args: Any,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> list[Any]:
    """Run a loop over lanes so that a lane that is done meets no error that it has not met."""
    cond_consts, body_consts, state = split_while_inputs(args, cond_nconsts, body_nconsts)
    num_carry = len(state) // 2

    def any_running(running: Any, *_: Any) -> Any:
        return lax.reduce_or(running, tuple(range(running.ndim)))

    def select_each(running: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
        return [select_lanes(running, n, o) for n, o in zip(new, old, strict=True)]

    def body(running: Any, *state: Any) -> list[Any]:
        last, carry = state[:num_carry], state[num_carry:]
        last = select_each(running, carry, last)
        stepped = _jax.call_jaxpr(body_jaxpr, *body_consts, *last)
        carry = select_each(running, stepped, carry)
        (holds,) = _jax.call_jaxpr(cond_jaxpr, *cond_consts, *carry)
        return [running & holds, *last, *carry]

    _, *state = while_of_functions(any_running, body, [running, *state])
    return state[num_carry:]


class FirstRunning(NamedTuple):
    """A lane that runs for each that does not, by which it is replaced.

    Some constants may have only the first of the predicate's axes, in `order`: then a lane does as
    the first of its row that runs, and a row without one, constants and all, does as another row.
    """

    running: Any  # (rows, columns)
    rows: Any  # for each row a row that has a lane that runs
    columns: Any  # for each row the first such lane in that row
    order: tuple[int, ...]

    @classmethod
    def of(cls, running: Any, row_axes: Sequence[int]) -> FirstRunning:
        """Look at the lanes with these axes of the predicate for rows, the others for columns."""
        order = (*row_axes, *(i for i in range(running.ndim) if i not in row_axes))
        num_rows = math.prod(running.shape[i] for i in row_axes)
        flat = lax.reshape(lax.transpose(running, order), (num_rows, running.size // num_rows))
        has_one = lax.reduce_or(flat, (1,))
        own = lax.iota(jnp.int32, num_rows)
        rows = jnp.where(has_one, own, lax.argmax(has_one, 0, jnp.int32))
        return cls(flat, rows, lax.argmax(flat[rows], 1, jnp.int32), order)

    def fill(self, x: Any, axes: LaneAxes) -> Any:
        """The array with the replacements' values in the lanes that do not run."""
        lanes = [axis for i in self.order if (axis := axes[i]) is not None]
        if not lanes:
            return x
        order = (*lanes, *(i for i in range(x.ndim) if i not in lanes))
        lanes_first = lax.transpose(x, order)
        own_shape = lanes_first.shape[len(lanes) :]
        if len(lanes) < len(self.order):
            filled = lax.reshape(lanes_first, (*self.rows.shape, *own_shape))[self.rows]
        else:
            x = lax.reshape(lanes_first, (*self.running.shape, *own_shape))
            first = lax.expand_dims(x[self.rows, self.columns], (1,))
            filled = select_lanes(
                self.running, x, lax.broadcast_in_dim(first, x.shape, range(x.ndim))
            )
        filled = lax.reshape(filled, lanes_first.shape)
        return lax.transpose(filled, [order.index(i) for i in range(filled.ndim)])


def _partial_axes(const_axes: Sequence[LaneAxes]) -> tuple[int, ...]:
    """The predicate's axes that constants have which have not all of them."""
    subsets = {tuple(i for i, axis in enumerate(axes) if axis is not None) for axes in const_axes}
    partial = {s for s in subsets if s and len(s) < len(const_axes[0])}
    if len(partial) > 1:
        raise _refusal("values that it closes over differ along different vmaps")
    return partial.pop() if partial else ()


def _lane_axes(cond_jaxpr: Any, body_jaxpr: Any, body_nconsts: int) -> list[LaneAxes]:
    """Where the lanes are in each of the body's constants."""
    axes: list[LaneAxes] = [()] * body_nconsts
    num_known = 0
    for cond, body in _batchings_of_both(cond_jaxpr, body_jaxpr):
        is_lane_axis = cond.out_axes[0] is not None
        num_known += is_lane_axis
        if is_lane_axis and body.mixes_lanes:
            raise _refusal("its body has a collective over the lanes")
        axes = [
            _with_axis(a, new, is_lane_axis)
            for a, new in zip(axes, body.in_axes[:body_nconsts], strict=True)
        ]
    if num_known < len(cond_jaxpr.out_avals[0].shape):
        raise _refusal("it was transformed again after vmap, and what vmap did is lost")
    if any(_jax.is_ref(aval) for aval in body_jaxpr.in_avals):
        raise _refusal("its body closes over a Ref")
    return axes


def _batchings_of_both(
    cond_jaxpr: Any, body_jaxpr: Any
) -> list[tuple[_jax.Batching, _jax.Batching]]:
    """The batchings of condition and body together, first to last, as far back as both go."""
    both = [reversed(_jax.batchings(jaxpr)) for jaxpr in (cond_jaxpr, body_jaxpr)]
    return list(zip(*both, strict=False))[::-1]


def _with_axis(axes: LaneAxes, new: int | None, is_lane_axis: bool) -> LaneAxes:
    """Earlier axes after a new one has come between them; the predicate has its newest first."""

    def move(axis: int | None) -> int | None:
        return axis + 1 if axis is not None and new is not None and axis >= new else axis

    moved = tuple(map(move, axes))
    return (new, *moved) if is_lane_axis else moved


def refuse_lanes_batched_without_checks(body_jaxpr: Any) -> None:
    """Raise for a loop over lanes that was traced, and kept by a cache, before checkify was there.

    Such a loop has one predicate, and does not say which of its lanes are done.
    """
    if _jax.traced_for(body_jaxpr) == LANES_WRITTEN_OUT:
        raise _refusal("it was traced before without checkify, and jax.clear_caches() helps")


def _refusal(reason: str) -> NotImplementedError:
    return NotImplementedError(
        "checkify of a while loop whose predicate differs between the lanes of a vmap is not "
        f"supported for this loop: {reason}, so a lane that is done could report an error that "
        "it never met. Apply checkify inside of vmap: jax.vmap(checkify.checkify(fun))."
    )
