"""Transposition: a linear loop gets a way back, and what had one is taken apart and put together.

Let a loop have a carry s and a way back r, with tangents s' and r' that it is linear in::

    there    s[t+1] = F(s[t])           s'[t+1] = F'(s[t]; s'[t])
    back     r[t]   = G(s[t], r[t+1])   r'[t]   = G'(s[t], r[t+1]; s'[t], r'[t+1])

Given cotangents of s'[n] and r'[0], the transposed program computes those of s'[0] and r'[n].
The cotangent of r' runs forwards, beside s; that of s' runs backwards, beside r::

    there    r~[t+1] = (G' by r')^T (s[t]) r~[t]
    back     s~[t]   = (F' by s')^T (s[t]) s~[t+1]  +  (G' by s')^T (s[t], r[t+1]) r~[t]

So it is again a loop with a way back. The first line needs no r, because G is linear in r. What the
loop is linear in of the constants adds up on the way back; of the xs, each row is returned by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from loops import _jax
from loops.primitives.checkpointed_loop import (
    Lanes,
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_p,
)
from loops.primitives.layout import keep, partition
from loops.rules.checkpointed.dead_code import live_loop
from loops.rules.checkpointed.partial_evaluation import (
    inputs_of_later_half,
    run_known_half,
    split_loop,
    without_debugging,
)
from loops.rules.checkpointed.transposed_steps import LinearParts, TransposedSteps
from loops.rules.fixpoint import grow_to_fixpoint
from loops.varying import varying


def checkpointed_loop_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> None:
    """Pull cotangents back through a linear loop, into the accumulators among `args`."""
    loop = Loop(**params)
    inputs, cts = loop.inputs(args), loop.outputs(cotangents)
    if loop.cond_jaxpr is not None:
        loop, inputs, cts = _without_condition(loop, inputs, cts)
    used = LoopOutputs(False, *(_are_nonzero(group) for group in cts[1:]))
    if not any(used.flat()):
        return
    live = live_loop(without_debugging(loop), used)
    _run_transposed(
        live.loop,
        live.loop.inputs(keep(live.inputs.flat(), inputs.flat())),
        live.loop.outputs(keep(live.outputs._replace(steps=True).flat(), cts.flat())),
    )


_jax.accumulating_transposes[checkpointed_loop_p] = checkpointed_loop_transpose


def _are_nonzero(cotangents: Sequence[Any]) -> list[bool]:
    return [not _jax.is_zero(ct) for ct in cotangents]


def _are_linear(args: Sequence[Any]) -> list[bool]:
    return [isinstance(x, _jax.GradAccum) for x in args]


def _without_condition(
    loop: Loop, inputs: LoopInputs, cts: LoopOutputs
) -> tuple[Loop, LoopInputs, LoopOutputs]:
    """Run the values of a loop to learn how many steps it takes, and leave the linear loop."""
    split = split_loop(loop, loop.inputs(_are_linear(inputs.flat())), record=True)
    if split is None:
        raise NotImplementedError("transpose of a loop whose condition is not known")
    known = run_known_half(loop, split, inputs)
    later = split.later
    return (
        later.loop,
        inputs_of_later_half(split, inputs, known),
        cts._replace(
            carry=keep(later.inputs.carry, cts.carry),
            back=keep(later.inputs.back, cts.back),
            ys=keep(split.unknown_outputs.ys, cts.ys),
            rows=keep(split.unknown_outputs.rows, cts.rows),
            cache=[],
        ),
    )


def _run_transposed(loop: Loop, inputs: LoopInputs, cts: LoopOutputs) -> None:
    """Bind the transposed loop and hand out what it computes."""
    linear = _linear_parts(loop, inputs)
    transposed = _transposed_loop(loop, linear)
    _refuse_to_wait(loop, transposed, inputs.limit)
    consts, carry, back, xs = (
        partition(marks, values) for marks, values in zip(linear, inputs[1:5], strict=True)
    )
    # A linear part of the initial carry may be a plain zero, which wants no cotangent.
    outputs = transposed.bind(
        LoopInputs(
            inputs.limit,
            consts[0],
            [*carry[0], *map(_jax.instantiate_zeros, keep(linear.back, cts.back))],
            [
                *back[0],
                *map(_jax.instantiate_zeros, keep(linear.carry, cts.carry)),
                *(_jax.zeros_like_aval(acc.aval) for acc in consts[1]),
            ],
            [*xs[0], *map(_jax.instantiate_zeros, [*cts.ys, *cts.rows])],
            inputs.cache if transposed.cached is not None else [],
        )
    )
    accumulators = [*carry[1], *consts[1], *back[1], *xs[1]]
    results = [*outputs.back[len(back[0]) :], *outputs.carry[len(carry[0]) :], *outputs.rows]
    for accumulator, ct in zip(accumulators, results, strict=True):
        if isinstance(accumulator, _jax.GradAccum):
            accumulator.accum(ct)


def _refuse_to_wait(loop: Loop, transposed: Loop, limit: Any) -> None:
    """Raise if steps back would wait for devices that take fewer steps.

    Casts of constants were moved out of the loop, but not all of those in inner loops and branches.
    """
    before, after = loop.forward_jaxpr, transposed.backward_jaxpr
    added = _jax.collective_axes(after) - _jax.collective_axes(before)
    axes = sorted(added & varying(jax.typeof(limit)), key=str)
    if axes:
        raise NotImplementedError(
            f"The number of steps of a loop varies over the mesh axes {axes}, and a cond or while "
            "loop in its body reads a value that does not vary over them. Its gradient would be a "
            "sum over devices at each step, for which devices that take fewer steps do not come. "
            "Cast the value before the outer loop, by `jax.lax.pcast(x, axes, to='varying')`."
        )


def _linear_parts(loop: Loop, inputs: LoopInputs) -> LinearParts:
    consts, xs = _are_linear(inputs.consts), _are_linear(inputs.xs)

    def through(jaxpr: Any, before: list[bool], count: int) -> Any:
        num_others = len(jaxpr.out_avals) - count

        def transform(marks: list[bool]) -> tuple[None, list[bool]]:
            unknowns = [*before, *marks, *xs]
            split = _jax.split_known(jaxpr, unknowns, [*marks, *[False] * num_others])
            return None, split.unknowns_out[:count]

        return transform

    carry, _ = grow_to_fixpoint(
        _are_linear(inputs.carry), through(loop.forward_jaxpr, consts, loop.num_carry)
    )
    back: list[bool] = []
    if loop.backward_jaxpr is not None:
        back, _ = grow_to_fixpoint(
            _are_linear(inputs.back),
            through(loop.backward_jaxpr, [*consts, *carry], loop.num_back),
        )
    return LinearParts(consts, carry, back, xs)


def _transposed_loop(loop: Loop, linear: LinearParts) -> Loop:
    """The loop that pulls cotangents back.

    consts  [*values]                       carry  [*values, *cotangents of back]
    back    [*values, *cotangents of carry, *sums for the linear consts]
    xs      [*values, *cotangents of ys, *cotangents of rows]
    rows    [*cotangents of the linear xs]
    """
    steps = TransposedSteps(loop, linear)
    was_linear_carry, was_linear_xs = loop.is_linear()
    keeps_cache = (
        loop.cached is not None
        and not any(linear.back)
        and all(loop.cached[i] for i, is_linear in enumerate(linear.carry) if not is_linear)
    )
    values = LinearParts(*([not m for m in marks] for marks in linear))
    num_cts = loop.num_ys + loop.num_rows
    return Loop(
        forward_jaxpr=steps.there(),
        backward_jaxpr=steps.back(),
        num_consts=sum(values.consts),
        num_carry=sum(values.carry) + sum(linear.back),
        num_back=sum(values.back) + sum(linear.carry) + sum(linear.consts),
        slots=loop.slots,
        length=loop.length,
        is_counted=loop.is_counted,
        reverse=loop.reverse,
        unroll=loop.unroll,
        transfer_jaxpr=loop.transfer_jaxpr,
        cached=(True,) * sum(values.carry) if keeps_cache else None,
        linear_carry=(*keep(values.carry, was_linear_carry), *[True] * sum(linear.back)),
        linear_xs=(*keep(values.xs, was_linear_xs), *[True] * num_cts),
        lanes=_transposed_lanes(loop, linear, values),
    )


def _transposed_lanes(loop: Loop, linear: LinearParts, values: LinearParts) -> Lanes | None:
    """A cotangent has lanes where what it is of has them."""
    lanes = loop.lanes
    if lanes is None:
        return None
    return Lanes(
        consts=tuple(keep(values.consts, lanes.consts)),
        carry=(*keep(values.carry, lanes.carry), *keep(linear.back, lanes.back)),
        back=(
            *keep(values.back, lanes.back),
            *keep(linear.carry, lanes.carry),
            *keep(linear.consts, lanes.consts),
        ),
        xs=(*keep(values.xs, lanes.xs), *[True] * loop.num_ys, *lanes.rows),
        rows=tuple(keep(linear.xs, lanes.xs)),
    )
