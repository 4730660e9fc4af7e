"""vmap: only what depends on the batch gets a batch axis.

A part of the carry is batched if its init is, or if a step makes it so: a fixpoint. A while loop
whose predicate is batched runs until the last lane is done, and a lane that is done keeps its
carry; so then the whole carry is batched, save the parts that the body hands on unchanged, which
become constants of condition and body, and those that depend on no lane, which run on for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from loops import _jax
from loops.passes.freeze_lanes import select_lanes
from loops.primitives.layout import (
    WhileInputs,
    cut,
    merge,
    partition,
    split_scan_inputs,
    split_scan_outputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import LANES_WRITTEN_OUT, while_of_functions, while_p
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.lanes_of_refs import MovedRefs, move_lanes_of_refs

Dims = Sequence[int | None]


def scan_batch(
    axis: Any,
    args: Sequence[Any],
    dims: Dims,
    *,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[int | None]]:
    """Run one scan over all lanes; the batch axis is first in the carry and second in the xs."""
    consts, carry, xs = split_scan_inputs(args, num_consts, num_carry)
    const_dims, carry_dims, xs_dims = split_scan_inputs(dims, num_consts, num_carry)
    xs, row_axes = _batch_axis_after_rows(xs, xs_dims)
    num_ys = len(jaxpr.out_avals) - num_carry

    def transform(carry_batched: list[bool]) -> tuple[Any, list[bool]]:
        in_axes = [*const_dims, *(0 if b else None for b in carry_batched), *row_axes]
        result = _jax.batch_jaxpr(jaxpr, axis, in_axes, [*carry_batched, *[False] * num_ys])
        return result, result[1][:num_carry]

    carry_batched, (batched, out_batched) = grow_to_fixpoint(
        [d is not None for d in carry_dims], transform
    )
    new_axes = [0 if b else None for b in carry_batched]
    outputs = scan_p.bind(
        *consts,
        *move_axes(axis, carry, carry_dims, new_axes),
        *xs,
        jaxpr=batched,
        num_consts=num_consts,
        num_carry=num_carry,
        **params,
    )
    ys_batched = split_scan_outputs(out_batched, num_carry).ys
    return outputs, [*new_axes, *(1 if b else None for b in ys_batched)]


_jax.primitive_batchers[scan_p] = scan_batch


def _batch_axis_after_rows(xs: Sequence[Any], dims: Dims) -> tuple[list[Any], list[int | None]]:
    """The xs with their batch axis behind the axis that is scanned over, and where rows have it.

    A Ref's memory cannot be transposed, so its batch axis stays where it is.
    """
    moved, row_axes = [], []
    for x, dim in zip(xs, dims, strict=True):
        if dim is None or not _jax.is_ref(jax.typeof(x)):
            moved.append(x if dim in (None, 1) else _jax.move_axis(x, dim, 1))
            row_axes.append(None if dim is None else 0)
            continue
        if dim == 0:
            raise NotImplementedError(
                "vmap of a scan over a Ref batched along its leading axis, which is the axis that "
                "is scanned over. Batch the Ref along another axis, or scan over an array."
            )
        moved.append(x)
        row_axes.append(dim - 1)
    return moved, row_axes


def move_axes(axis: Any, values: Sequence[Any], old: Dims, new: Dims) -> list[Any]:
    """Values with their batch axis moved, or with a new one."""

    def move(x: Any, before: int | None, after: int | None) -> Any:
        if after is None:  # the carry's marks only grow: it has no batch axis before either
            return x
        if before is None:
            return _jax.broadcast_along(x, axis, after)
        return x if before == after else _jax.move_axis(x, before, after)

    return [move(*each) for each in zip(values, old, new, strict=True)]


class Loop(NamedTuple):
    """A while loop's two jaxprs and its inputs, or the batch axes of those."""

    cond_jaxpr: Any
    body_jaxpr: Any
    inputs: WhileInputs
    dims: WhileInputs


def while_batch(
    axis: Any,
    args: Sequence[Any],
    dims: Dims,
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[list[Any], list[int | None]]:
    """Run one while loop over all lanes."""
    loop = Loop(
        cond_jaxpr,
        body_jaxpr,
        split_while_inputs(args, cond_nconsts, body_nconsts),
        split_while_inputs(dims, cond_nconsts, body_nconsts),
    )
    carry_batched = _batched_carry(axis, loop)
    predicate_batched = _predicate_is_batched(axis, loop, carry_batched)
    has_lanes = predicate_batched or loop.cond_jaxpr.out_avals[0].shape
    if not has_lanes:
        return _bind_batched(axis, loop, carry_batched, predicate_batched=False)
    loop, moved = _move_lanes_of_refs(loop, predicate_batched)
    if predicate_batched:
        outputs, out_dims = _batch_with_predicate(axis, loop, carry_batched)
    else:
        outputs, out_dims = _bind_batched(axis, loop, carry_batched, predicate_batched=False)
    moved.copy_back()
    return outputs, out_dims


_jax.primitive_batchers[while_p] = while_batch


def _batch_with_predicate(
    axis: Any, loop: Loop, carry_batched: Sequence[bool]
) -> tuple[list[Any], list[int | None]]:
    """Bind a loop whose lanes may end at different steps."""
    _refuse_effects_in_lanes(loop)
    changing, read_only = _read_only_carry_as_consts(loop)
    batched = partition(read_only, carry_batched)[0]
    if not all(batched) and _may_share_carry(changing):
        outputs, out_dims = _bind_with_shared_carry(axis, changing, batched)
    else:
        everything = [True] * len(batched)
        outputs, out_dims = _bind_batched(axis, changing, everything, predicate_batched=True)
    constants, constant_dims = (
        partition(read_only, groups.carry)[1] for groups in (loop.inputs, loop.dims)
    )
    return merge(read_only, outputs, constants), merge(read_only, out_dims, constant_dims)


def _batched_carry(axis: Any, loop: Loop) -> list[bool]:
    """The parts of the carry that are batched, whatever the predicate is."""

    def transform(carry_batched: list[bool]) -> tuple[None, list[bool]]:
        in_axes = [*loop.dims.body_consts, *(0 if b else None for b in carry_batched)]
        return None, _jax.batch_jaxpr(loop.body_jaxpr, axis, in_axes, carry_batched)[1]

    return grow_to_fixpoint([d is not None for d in loop.dims.carry], transform)[0]


def _predicate_is_batched(axis: Any, loop: Loop, carry_batched: Sequence[bool]) -> bool:
    in_axes = [*loop.dims.cond_consts, *(0 if b else None for b in carry_batched)]
    return _jax.batch_jaxpr(loop.cond_jaxpr, axis, in_axes, [False])[1][0]


def _may_share_carry(loop: Loop) -> bool:
    """Whether lanes that end at different steps may share a part of the carry.

    Sharing writes the loop out with one predicate, and it is a loop over lanes no more. So it is
    for loops of pure arithmetic that have not been batched before: a write to a Ref is masked by
    lane when the Ref becomes carry, and a check must know which lanes are done.
    """
    has_one_predicate = not loop.cond_jaxpr.out_avals[0].shape
    has_effects = loop.cond_jaxpr.effects or loop.body_jaxpr.effects
    return has_one_predicate and not has_effects and not _jax.inside_checkify()


def _move_lanes_of_refs(loop: Loop, predicate_batched: bool) -> tuple[Loop, MovedRefs]:
    """Let the Refs that are written have their new axis where the carry has it."""
    position = 0 if predicate_batched else len(loop.cond_jaxpr.out_avals[0].shape)
    num_cond, num_body, _ = map(len, loop.inputs)
    is_written = [
        *_jax.written_inputs(loop.cond_jaxpr)[:num_cond],
        *_jax.written_inputs(loop.body_jaxpr)[:num_body],
    ]
    moved = move_lanes_of_refs(
        position,
        [*loop.inputs.cond_consts, *loop.inputs.body_consts],
        [*loop.dims.cond_consts, *loop.dims.body_consts],
        is_written,
    )
    (cond_consts, body_consts), (cond_dims, body_dims) = (
        cut(values, [num_cond]) for values in (moved.consts, moved.dims)
    )
    inputs = WhileInputs(cond_consts, body_consts, loop.inputs.carry)
    dims = WhileInputs(cond_dims, body_dims, loop.dims.carry)
    return loop._replace(inputs=inputs, dims=dims), moved


def _read_only_carry_as_consts(loop: Loop) -> tuple[Loop, list[bool]]:
    """Make constants of condition and body out of the carry that the body hands on unchanged.

    cond: [*consts, *carry]               ->  [*consts, *read-only, *others]  (order of inputs)
    body: [*consts, *carry] -> [*carry]   ->  [*consts, *read-only, *others] -> [*others]
    """
    num_cond, num_body, _ = map(len, loop.inputs)
    sources = _jax.forwarded_inputs(loop.body_jaxpr)
    read_only = [source == num_body + i for i, source in enumerate(sources)]
    others, fixed = partition(read_only, range(len(sources)))

    def order(num_consts: int) -> list[int]:
        return [*range(num_consts), *(num_consts + i for i in [*fixed, *others])]

    def regroup(groups: WhileInputs) -> WhileInputs:
        changing, constant = partition(read_only, groups.carry)
        return WhileInputs(
            [*groups.cond_consts, *constant], [*groups.body_consts, *constant], changing
        )

    cond_jaxpr = _jax.permute(loop.cond_jaxpr, order(num_cond))
    body_jaxpr = _jax.permute(loop.body_jaxpr, order(num_body), others)
    return Loop(cond_jaxpr, body_jaxpr, regroup(loop.inputs), regroup(loop.dims)), read_only


def _bind_batched(
    axis: Any, loop: Loop, carry_batched: Sequence[bool], predicate_batched: bool
) -> tuple[list[Any], list[int | None]]:
    """Bind the loop with a batch axis in the marked parts of the carry.

    The predicate's axes come first in the carry's shapes. A batch axis that the predicate does not
    have therefore comes after those that it has from earlier batching.
    """
    position = 0 if predicate_batched else len(loop.cond_jaxpr.out_avals[0].shape)
    carry_axes = [position if b else None for b in carry_batched]
    body_jaxpr = _jax.batch_jaxpr_to_axes(
        loop.body_jaxpr, axis, [*loop.dims.body_consts, *carry_axes], carry_axes
    )
    cond_jaxpr = _jax.batch_jaxpr_to_axes(
        loop.cond_jaxpr,
        axis,
        [*loop.dims.cond_consts, *carry_axes],
        [0 if predicate_batched else None],
    )
    outputs = while_p.bind(
        *loop.inputs.cond_consts,
        *loop.inputs.body_consts,
        *move_axes(axis, loop.inputs.carry, loop.dims.carry, carry_axes),
        cond_jaxpr=cond_jaxpr,
        cond_nconsts=len(loop.inputs.cond_consts),
        body_jaxpr=body_jaxpr,
        body_nconsts=len(loop.inputs.body_consts),
    )
    return outputs, carry_axes


def _bind_with_shared_carry(
    axis: Any, loop: Loop, carry_batched: Sequence[bool]
) -> tuple[list[Any], list[int | None]]:
    """Bind a loop whose lanes end at different steps and share a part of the carry: a counter.

    What depends on no lane runs on as one value for all, until the last lane is done. What it was
    at a lane's last step is kept beside it, and falls away where nobody asks for it. A lane that is
    done looks at it no more: a condition that asks for one value of a counter may hold again later.

        running = cond(shared, own)
        while any(running):
            new_shared, new_own = body(shared, own)
            own, last = select(running, (new_own, new_shared), (own, last))
            shared = new_shared
            running = running and cond(shared, own)
    """
    carry_axes = [0 if b else None for b in carry_batched]
    body_jaxpr = _jax.batch_jaxpr_to_axes(
        loop.body_jaxpr, axis, [*loop.dims.body_consts, *carry_axes], carry_axes
    )
    cond_jaxpr = _jax.batch_jaxpr_to_axes(
        loop.cond_jaxpr, axis, [*loop.dims.cond_consts, *carry_axes], [0]
    )
    num_carry = len(carry_batched)

    def for_each_lane(shared: Sequence[Any]) -> list[Any]:
        return [_jax.broadcast_along(x, axis, 0) for x in shared]

    def holds_in_lanes(carry: Sequence[Any]) -> Any:
        (predicate,) = _jax.call_jaxpr(cond_jaxpr, *loop.inputs.cond_consts, *carry)
        return predicate

    def any_runs(*state: Any) -> Any:
        return lax.reduce_or(state[-1], (0,))

    def step(*state: Any) -> list[Any]:
        carry, last, (running,) = cut(state, [num_carry, len(state) - num_carry - 1])
        stepped = _jax.call_jaxpr(body_jaxpr, *loop.inputs.body_consts, *carry)
        new_carry = [
            select_lanes(running, new, old) if is_batched else new
            for is_batched, new, old in zip(carry_batched, stepped, carry, strict=True)
        ]
        shared = for_each_lane(partition(carry_batched, stepped)[0])
        new_last = [select_lanes(running, *each) for each in zip(shared, last, strict=True)]
        return [*new_carry, *new_last, running & holds_in_lanes(new_carry)]

    init = move_axes(axis, loop.inputs.carry, loop.dims.carry, carry_axes)
    last = for_each_lane(partition(carry_batched, init)[0])
    state = [*init, *last, holds_in_lanes(init)]
    *outputs, _ = while_of_functions(any_runs, step, state, LANES_WRITTEN_OUT)
    own = partition(carry_batched, outputs[:num_carry])[1]
    return merge(carry_batched, outputs[num_carry:], own), [0] * num_carry


def _refuse_effects_in_lanes(loop: Loop) -> None:
    """Raise if the body would run effects for lanes that are done already."""
    effects = _jax.callback_effects(loop.cond_jaxpr.effects | loop.body_jaxpr.effects)
    if effects:
        names = ", ".join(sorted(type(effect).__name__ for effect in effects))
        raise NotImplementedError(
            f"{names} not supported in while_loop with batched predicate: under vmap it would also "
            "run for lanes that are done. Make the predicate the same for all lanes, or move the "
            "effect out of the loop."
        )
