"""vmap: one loop for all lanes, each of which stops on its own.

Where the number of steps is the same for all lanes, only what depends on the batch gets an axis.
Where it is not, all of the carry does, first in its shape, and the loop runs until the last lane is
done. Which lanes run at a step is kept out of the jaxprs, so that a derivative never sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.primitives.checkpointed_loop import (
    Lanes,
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_p,
)
from loops.primitives.layout import keep
from loops.rules.batching import move_axes
from loops.rules.fixpoint import grow_to_fixpoint

Dims = list[int | None]


class Axes(NamedTuple):
    """Where each part has the new axis, None where it has none; rows are without their first axis.

    `limit` is 0 where lanes differ in their number of steps.
    """

    limit: int | None
    consts: Dims
    carry: Dims
    back: Dims
    xs: Dims
    ys: Dims
    rows: Dims


def checkpointed_loop_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """Run one loop over all lanes."""
    loop = Loop(**params)
    inputs, given = loop.inputs(args), loop.inputs(dims)
    num_lane_axes = jax.typeof(inputs.limit).ndim - (given.limit is not None)
    axes = _axes(axis, loop, given, num_lane_axes)
    batched = _batched_loop(axis, loop, axes)
    cache = _cache(axis, batched, inputs, given, axes)
    if not cache:
        batched = batched._replace(cached=None)
    limit_dims = [axes.limit]
    outputs = batched.bind(
        LoopInputs(
            *move_axes(axis, [inputs.limit], [given.limit], limit_dims),
            move_axes(axis, inputs.consts, given.consts, axes.consts),
            move_axes(axis, inputs.carry, given.carry, axes.carry),
            move_axes(axis, inputs.back, given.back, axes.back),
            move_axes(axis, inputs.xs, given.xs, _after_rows(axes.xs)),
            cache,
        )
    )
    stored: Dims = []
    if loop.recorded is not None:
        stored = [None, *_after_rows(keep(loop.recorded, axes.carry))]
    return outputs.flat(), LoopOutputs(
        axes.limit, axes.carry, axes.back, _after_rows(axes.ys), _after_rows(axes.rows), stored
    ).flat()


_jax.primitive_batchers[checkpointed_loop_p] = checkpointed_loop_batch


def _after_rows(dims: Sequence[int | None]) -> Dims:
    return [None if d is None else d + 1 for d in dims]


def _axes(axis: Any, loop: Loop, given: LoopInputs, num_lane_axes: int) -> Axes:
    """Find out what is batched, and whether the lanes may differ in their number of steps."""
    consts = [None if d is None else 0 for d in given.consts]
    xs = [None if d is None else 0 for d in given.xs]
    carry, ys = _batched_by(axis, loop.forward_jaxpr, consts, given.carry, xs)
    predicate_batched = given.limit is not None
    if loop.cond_jaxpr is not None:
        in_axes = [*consts, *_first(carry)]
        predicate_batched |= _jax.batch_jaxpr(loop.cond_jaxpr, axis, in_axes, [False])[1][0]
    if predicate_batched:
        everything = [True] * loop.num_carry
        carry, ys = everything, [True] * loop.num_ys
        # What the way back is linear in is set to zero lane by lane.
        xs = [0 if linear else d for linear, d in zip(loop.is_linear()[1], xs, strict=True)]
    back: list[bool] = []
    rows: list[bool] = []
    if loop.backward_jaxpr is not None:
        start = [0] * loop.num_back if predicate_batched else given.back
        before = [*consts, *_first(carry)]
        back, rows = _batched_by(axis, loop.backward_jaxpr, before, start, xs)
        rows = [True] * loop.num_rows if predicate_batched else rows
    earlier = 0 if predicate_batched else num_lane_axes
    return _where(loop, predicate_batched, earlier, Axes(None, consts, carry, back, xs, ys, rows))


def _first(batched: Sequence[bool]) -> Dims:
    return [0 if b else None for b in batched]


def _batched_by(
    axis: Any, jaxpr: Any, before: Dims, start: Sequence[int | None], xs: Dims
) -> tuple[list[bool], list[bool]]:
    """Which parts of what is handed on from step to step are batched, and which other outputs."""
    count = len(start)
    others = len(jaxpr.out_avals) - count

    def transform(batched: list[bool]) -> tuple[list[bool], list[bool]]:
        in_axes = [*before, *_first(batched), *xs]
        out = _jax.batch_jaxpr(jaxpr, axis, in_axes, [*batched, *[False] * others])[1]
        return out[count:], out[:count]

    return grow_to_fixpoint([d is not None for d in start], transform)


def _where(loop: Loop, differ: bool, earlier: int, batched: Axes) -> Axes:
    """The place of the new axis: first where lanes differ, else after the axes of earlier lanes."""

    def place(marks: Sequence[bool], has_lanes: Sequence[bool] | None) -> Dims:
        has_lanes = has_lanes if has_lanes is not None else [False] * len(marks)
        return [
            (earlier if lanes else 0) if marked else None
            for marked, lanes in zip(marks, has_lanes, strict=True)
        ]

    lanes = loop.lanes
    return Axes(
        0 if differ else None,
        place([d is not None for d in batched.consts], lanes and lanes.consts),
        place(batched.carry, lanes and lanes.carry),
        place(batched.back, lanes and lanes.back),
        place([d is not None for d in batched.xs], lanes and lanes.xs),
        place(batched.ys, lanes and (True,) * loop.num_ys),
        place(batched.rows, lanes and (True,) * loop.num_rows),
    )


def _batched_loop(axis: Any, loop: Loop, axes: Axes) -> Loop:
    """The loop with a new axis in the marked parts."""

    def batch(jaxpr: Any, in_axes: Dims, out_axes: Dims) -> Any:
        return None if jaxpr is None else _jax.batch_jaxpr_to_axes(jaxpr, axis, in_axes, out_axes)

    there = [*axes.consts, *axes.carry]
    return loop._replace(
        cond_jaxpr=batch(loop.cond_jaxpr, there, [axes.limit]),
        forward_jaxpr=batch(loop.forward_jaxpr, [*there, *axes.xs], [*axes.carry, *axes.ys]),
        backward_jaxpr=batch(
            loop.backward_jaxpr, [*there, *axes.back, *axes.xs], [*axes.back, *axes.rows]
        ),
        lanes=_lanes(loop, axes),
        # Lanes that differ are masked step by step, which a scan does not do.
        is_counted=loop.is_counted and axes.limit is None,
    )


def _lanes(loop: Loop, axes: Axes) -> Lanes | None:
    """What has an axis for lanes that differ. A sum over earlier lanes still has none for them."""
    if axes.limit is None:
        return loop.lanes
    groups = [[d is not None for d in dims] for dims in axes[1:5]]
    if loop.lanes is not None:
        groups = [
            [a and b for a, b in zip(*pair, strict=True)]
            for pair in zip(loop.lanes, groups, strict=True)
        ]
    return Lanes(*map(tuple, groups))


def _cache(
    axis: Any, batched: Loop, inputs: LoopInputs, given: LoopInputs, axes: Axes
) -> list[Any]:
    """The stored carries with the axis where the carry has it; nothing if the lanes' differ."""
    if batched.cached is None:
        return []
    positions_dim, *stored_dims = given.cache
    if positions_dim is not None:
        return []
    wanted = _after_rows(keep(batched.cached, axes.carry))
    positions, *stored = inputs.cache
    return [positions, *move_axes(axis, stored, stored_dims, wanted)]
