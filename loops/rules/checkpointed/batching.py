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
    axes = _axes(loop, _what_is_batched(axis, loop, given), num_lane_axes)
    batched = _batched_loop(axis, loop, axes)
    cache = _cache(axis, batched, inputs, given, axes)
    if not cache:
        batched = batched._replace(cached=None)
    outputs = batched.bind(
        LoopInputs(
            move_axes(axis, [inputs.limit], [given.limit], [axes.limit])[0],
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


class Batched(NamedTuple):
    """What is batched, and whether lanes may differ in their number of steps."""

    lanes_differ: bool
    consts: list[bool]
    carry: list[bool]
    back: list[bool]
    xs: list[bool]
    ys: list[bool]
    rows: list[bool]


def _what_is_batched(axis: Any, loop: Loop, given: LoopInputs) -> Batched:
    consts, xs = _are_batched(given.consts), _are_batched(given.xs)
    carry, ys = _batched_after(axis, loop.forward_jaxpr, consts, _are_batched(given.carry), xs)
    lanes_differ = given.limit is not None
    if loop.cond_jaxpr is not None:
        in_axes = _first([*consts, *carry])
        lanes_differ |= _jax.batch_jaxpr(loop.cond_jaxpr, axis, in_axes, [False])[1][0]
    back: list[bool] = []
    rows: list[bool] = []
    if lanes_differ:
        _refuse_collectives(axis, loop)
        carry, ys = [True] * loop.num_carry, [True] * loop.num_ys
        # What the way back is linear in is set to zero lane by lane.
        xs = [a or b for a, b in zip(loop.is_linear()[1], xs, strict=True)]
        back, rows = [True] * loop.num_back, [True] * loop.num_rows
    elif loop.backward_jaxpr is not None:
        back, rows = _batched_after(
            axis, loop.backward_jaxpr, [*consts, *carry], _are_batched(given.back), xs
        )
    return Batched(lanes_differ, consts, carry, back, xs, ys, rows)


def _refuse_collectives(axis: Any, loop: Loop) -> None:
    """Raise if a step reads other lanes: those that have ended would get no gradient for it."""
    jaxprs = (loop.cond_jaxpr, loop.forward_jaxpr, loop.backward_jaxpr)
    if any(jaxpr is not None and _jax.mixes_lanes(jaxpr, axis) for jaxpr in jaxprs):
        raise NotImplementedError(
            f"A collective over the vmapped axis {axis.name!r} in a loop with `checkpoints`, "
            "`max_steps` or `until` whose lanes may end at different steps. Let all lanes run "
            "equally many steps, or leave those arguments out."
        )


def _are_batched(dims: Sequence[int | None]) -> list[bool]:
    return [d is not None for d in dims]


def _first(batched: Sequence[bool]) -> Dims:
    return [0 if b else None for b in batched]


def _batched_after(
    axis: Any, jaxpr: Any, before: list[bool], start: list[bool], xs: list[bool]
) -> tuple[list[bool], list[bool]]:
    """Which parts of what is handed on from step to step are batched, and which other outputs."""
    count = len(start)
    others = len(jaxpr.out_avals) - count

    def transform(marks: list[bool]) -> tuple[list[bool], list[bool]]:
        in_axes = _first([*before, *marks, *xs])
        out = _jax.batch_jaxpr(jaxpr, axis, in_axes, [*marks, *[False] * others])[1]
        return out[count:], out[:count]

    return grow_to_fixpoint(start, transform)


def _axes(loop: Loop, batched: Batched, num_lane_axes: int) -> Axes:
    """The place of the new axis: first where lanes differ, else after the axes of earlier lanes."""
    after = 0 if batched.lanes_differ else num_lane_axes

    def place(marks: list[bool], has_lanes: Sequence[bool]) -> Dims:
        return [
            (after if lanes else 0) if marked else None
            for marked, lanes in zip(marks, has_lanes, strict=True)
        ]

    nothing = (loop.num_consts, loop.num_carry, loop.num_back, loop.num_xs, loop.num_rows)
    lanes = loop.lanes or Lanes(*((False,) * size for size in nothing))
    has_lanes = loop.lanes is not None
    return Axes(
        0 if batched.lanes_differ else None,
        place(batched.consts, lanes.consts),
        place(batched.carry, lanes.carry),
        place(batched.back, lanes.back),
        place(batched.xs, lanes.xs),
        place(batched.ys, [has_lanes] * loop.num_ys),
        place(batched.rows, lanes.rows),
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
    parts = (axes.consts, axes.carry, axes.back, axes.xs, axes.rows)
    groups = [[d is not None for d in dims] for dims in parts]
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
