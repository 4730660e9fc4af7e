"""Partial evaluation: run what is known and store its carries; the rest runs later beside it.

The later loop runs the known part again, because that costs no memory. It needs no condition any
more: how many steps there are is known. So is where the stored carries are, for its way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.primitives.checkpointed_loop import (
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_abstract_eval,
    checkpointed_loop_p,
)
from loops.primitives.layout import cut, keep, merge
from loops.rules.checkpointed.dead_code import LiveLoop, live_loop
from loops.rules.checkpointed.reads_of_buffers import (
    SparedLoop,
    keep_reads_of_known,
    spare_buffers,
)
from loops.rules.fixpoint import grow_to_fixpoint


class SplitLoop(NamedTuple):
    """A loop split by what is known.

    `recorded` marks what `known` stores of the carry: what `later` needs of it, which `needed`
    marks, and what the whole loop was to store. The last `num_reads` of the ys of `known` are the
    last xs of `later`: what its steps read of large buffers.
    """

    known: LiveLoop
    later: LiveLoop
    unknown_outputs: LoopOutputs
    recorded: tuple[bool, ...] | None
    needed: list[bool]
    num_reads: int


def split_loop(loop: Loop, unknown: LoopInputs, record: bool) -> SplitLoop | None:
    """Split a loop, or return None if its number of steps is unknown."""
    outputs = _unknown_outputs(loop, unknown)
    if outputs is None:
        return None
    halves = SparedLoop(loop, _later_half(loop, outputs), [])
    needed, recorded = [False] * loop.num_carry, loop.recorded
    if record and loop.backward_jaxpr is None:
        spared = spare_buffers(
            loop,
            _needed(halves.back, outputs),
            lambda needed: keep_reads_of_known(loop, unknown, outputs, needed),
            lambda back: _later_half(back, outputs),
        )
        halves = spared or halves
        needed = _needed(halves.back, outputs)
    later = halves.back
    if any(needed):
        before = recorded or (False,) * loop.num_carry
        recorded = tuple(a or b for a, b in zip(before, needed, strict=True))
        cached = tuple(keep(later.inputs.carry, needed))
        later = later._replace(loop=later.loop._replace(cached=cached))
    known_outputs = LoopOutputs(True, *([not u for u in group] for group in outputs[1:]))
    known_outputs = known_outputs._replace(ys=[*known_outputs.ys, *halves.is_read])
    known = live_loop(halves.there._replace(recorded=recorded), known_outputs)
    if any(keep(known.inputs.flat(), unknown.flat())):
        return None
    return SplitLoop(known, later, outputs, recorded, needed, sum(halves.is_read))


def _later_half(loop: Loop, outputs: LoopOutputs) -> LiveLoop:
    counted = without_debugging(loop)._replace(cond_jaxpr=None, recorded=None)
    return live_loop(counted, outputs._replace(cache=[]))


def _needed(later: LiveLoop, outputs: LoopOutputs) -> list[bool]:
    """Which known parts of the carry the later half runs again."""
    pairs = zip(later.inputs.carry, outputs.carry, strict=True)
    return [used and not is_unknown for used, is_unknown in pairs]


def without_debugging(loop: Loop) -> Loop:
    """A loop that may be run again: what its steps print was printed before."""
    back = loop.backward_jaxpr
    return loop._replace(
        forward_jaxpr=_jax.without_debugging(loop.forward_jaxpr),
        backward_jaxpr=None if back is None else _jax.without_debugging(back),
    )


def _unknown_outputs(loop: Loop, unknown: LoopInputs) -> LoopOutputs | None:
    """Which outputs are unknown; None if the number of steps is, or what is to be recorded."""
    forward = loop.forward_jaxpr

    def through_forward(carry: list[bool]) -> tuple[list[bool], list[bool]]:
        marks = [*unknown.consts, *carry, *unknown.xs]
        out = _unknown_after(forward, marks, [*carry, *[False] * loop.num_ys])
        return out[loop.num_carry :], out[: loop.num_carry]

    carry, ys = grow_to_fixpoint(unknown.carry, through_forward)
    is_needed_unknown = loop.recorded is not None and any(keep(loop.recorded, carry))
    if unknown.limit or is_needed_unknown:
        return None
    of_cond = [*unknown.consts, *carry]
    if loop.cond_jaxpr is not None and _unknown_after(loop.cond_jaxpr, of_cond, [False])[0]:
        return None

    def through_backward(back: list[bool]) -> tuple[list[bool], list[bool]]:
        marks = [*unknown.consts, *carry, *back, *unknown.xs]
        out = _unknown_after(loop.backward_jaxpr, marks, [*back, *[False] * loop.num_rows])
        return out[loop.num_back :], out[: loop.num_back]

    back: list[bool] = []
    rows: list[bool] = []
    if loop.backward_jaxpr is not None:
        back, rows = grow_to_fixpoint(unknown.back, through_backward)
    cache = [] if loop.recorded is None else [False] * (1 + sum(loop.recorded))
    return LoopOutputs(False, carry, back, ys, rows, cache)


def _unknown_after(jaxpr: Any, unknowns: Sequence[bool], instantiate: Sequence[bool]) -> list[bool]:
    return _jax.split_known(jaxpr, unknowns, instantiate).unknowns_out


class KnownHalf(NamedTuple):
    """What the known half has: the known outputs, in order, and what the later half needs."""

    outputs: list[Any]
    steps: Any
    reads: list[Any]
    cache: list[Any]


def run_known_half(loop: Loop, split: SplitLoop, values: LoopInputs) -> KnownHalf:
    """Run the known half; only the values of known inputs are looked at."""
    inputs = keep(split.known.inputs.flat(), values.flat())
    known = split.known.loop
    outputs = known.outputs(checkpointed_loop_p.bind(*inputs, **known._asdict()))
    before, later = divide_cache(split.recorded, loop.recorded, split.needed, outputs.cache)
    if loop.cached is not None:
        later = values.cache
    ys, reads = cut(outputs.ys, [len(outputs.ys) - split.num_reads])
    return KnownHalf(outputs._replace(ys=ys, cache=before).flat(), outputs.steps, reads, later)


def divide_cache(
    recorded: Sequence[bool] | None,
    wanted: Sequence[bool] | None,
    needed: Sequence[bool],
    cache: list[Any],
) -> tuple[list[Any], list[Any]]:
    """What of a cache the loop was to return anyway, and what the later half needs of it."""
    if recorded is None:
        return [], []
    positions, *stored = cache
    of_carry = merge(recorded, [None] * list(recorded).count(False), stored)

    def of(marks: Sequence[bool] | None) -> list[Any]:
        return [] if marks is None or not any(marks) else [positions, *keep(marks, of_carry)]

    return of(wanted), of(needed)


def inputs_of_later_half(split: SplitLoop, values: LoopInputs, known: KnownHalf) -> LoopInputs:
    """The inputs of the later half, among all inputs of the loop and what the known half has."""
    marks = split.later.inputs
    return LoopInputs(
        known.steps,
        keep(marks.consts, values.consts),
        keep(marks.carry, values.carry),
        keep(marks.back, values.back),
        [*keep(marks.xs[: len(values.xs)], values.xs), *known.reads],
        known.cache,
    )


def unknown_outputs_of(split: SplitLoop, outputs: LoopOutputs) -> list[Any]:
    """Those outputs of the later half that were unknown."""
    unknown, marks = split.unknown_outputs, split.later.inputs
    return [
        *keep(keep(marks.carry, unknown.carry), outputs.carry),
        *keep(keep(marks.back, unknown.back), outputs.back),
        *outputs.ys,
        *outputs.rows,
    ]


def checkpointed_loop_partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    """Run the known part of a loop, and stage the rest as one loop."""
    loop = Loop(**params)
    unknown = loop.inputs([not t.pval.is_known() for t in tracers])
    split = split_loop(loop, unknown, record=True)
    if split is None:
        return trace.default_process_primitive(checkpointed_loop_p, tracers, params)
    values = loop.inputs([t.pval.get_known() for t in tracers])
    known = run_known_half(loop, split, values)
    inputs = inputs_of_later_half(split, loop.inputs(tracers), known)
    later = split.later.loop
    avals = [jax.typeof(x) if not hasattr(x, "pval") else x.aval for x in inputs.flat()]
    out_avals, _ = checkpointed_loop_abstract_eval(*avals, **later._asdict())
    staged = _jax.unknown_outputs(
        trace, checkpointed_loop_p, inputs.flat(), out_avals, later._asdict()
    )
    unknown_values = unknown_outputs_of(split, later.outputs(staged))
    return merge(split.unknown_outputs.flat(), known.outputs, unknown_values)


_jax.partial_eval_rules[checkpointed_loop_p] = checkpointed_loop_partial_eval
