"""Large buffers of which a step reads little: what it reads is kept, and not the buffer.

A part of the carry that the way back needs is stored in every slot, and copied out of it for every
step back. For a buffer of which each step reads a few rows that is more than all it ever reads. So
the known half of such a loop returns what its steps read as further ys, and the later half takes
that as further xs and leaves the buffer alone.

    Known before: [*consts, *carry, *x] -> [*carry, *y]
    Known after:  [*consts, *carry, *x] -> [*carry, *y, *read]

    Later before: [*consts, *carry, *x] -> [*carry, *y]
    Later after:  [*consts, *carry, *x, *read] -> [*carry, *y]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.inline_calls import inline_calls
from loops.primitives.checkpointed_loop import Loop, LoopInputs, LoopOutputs
from loops.primitives.layout import cut, keep, merge, partition

MIN_BUFFER = 256
"""Smaller parts of the carry are stored: there is little to gain."""

TIMES_SMALLER = 4
"""So many times smaller than the buffer is what counts as read out of it."""


class LoopWithReads(NamedTuple):
    """The two halves before what they do not need is dropped.

    `reads` are the types of what a step reads, which is last among the ys of `known` and among the
    xs of `later`. `is_buffer` marks the carry.
    """

    known: Loop
    later: Loop
    reads: list[Any]
    is_buffer: list[bool]


def keep_reads(
    loop: Loop, unknown: LoopInputs, outputs: LoopOutputs, needed: Sequence[bool]
) -> LoopWithReads | None:
    """Let the known half return what it reads of the large needed parts of the carry, if it may."""
    stored = loop.recorded or [False] * loop.num_carry
    is_buffer = [
        need and not is_stored and _is_large(aval)
        for need, is_stored, aval in zip(needed, stored, loop.carry_avals(), strict=True)
    ]
    if not any(is_buffer) or loop.length is None or loop.lanes is not None:
        return None
    split = _Step(loop, unknown, outputs)
    reads = split.reads_of(keep_positions(is_buffer))
    if not reads:
        return None
    avals = [variable.aval for variable in reads]
    _, linear_xs = loop.is_linear()
    return LoopWithReads(
        loop._replace(forward_jaxpr=split.returning(reads)),
        loop._replace(
            forward_jaxpr=split.taking(reads),
            linear_xs=(*linear_xs, *[False] * len(reads)) if loop.linear_xs else (),
        ),
        avals,
        is_buffer,
    )


def costs_less(loop: Loop, reads: Sequence[Any], is_buffer: Sequence[bool]) -> bool:
    """Whether the reads of all steps take no more memory than the buffers in all slots."""
    buffers = keep(is_buffer, loop.carry_avals())
    return (loop.length or 0) * sum(map(_bytes, reads)) <= loop.slots * sum(map(_bytes, buffers))


def keep_positions(marks: Sequence[bool]) -> list[int]:
    """Where the marks are."""
    return [i for i, is_marked in enumerate(marks) if is_marked]


def _is_large(aval: Any) -> bool:
    is_known = all(isinstance(size, int) for size in aval.shape)
    return is_known and math.prod(aval.shape) >= MIN_BUFFER


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


class _Step:
    """A step split by what is known, its calls written out in line."""

    def __init__(self, loop: Loop, unknown: LoopInputs, outputs: LoopOutputs) -> None:
        self.forward = loop.forward_jaxpr
        self.unknown_in = [*unknown.consts, *outputs.carry, *unknown.xs]
        wanted = [*outputs.carry, *outputs.ys]
        split = _jax.split_known(self.forward, self.unknown_in, wanted)
        self.unknown_jaxpr, self.unknowns_out = split.unknown_jaxpr, split.unknowns_out
        self.num_consts = loop.num_consts
        before, self.known = None, split.known_jaxpr
        while self.known is not before:
            before, self.known = self.known, inline_calls(self.known, lambda _: True)

    def reads_of(self, buffers: Sequence[int]) -> list[Any]:
        """The variables that are computed from a buffer and much smaller than it."""
        inputs = partition(self.unknown_in, range(len(self.unknown_in)))[0]
        positions = [inputs.index(self.num_consts + i) for i in buffers]
        # How large the buffer is that a variable depends on, by something as large as it.
        origin = {v: v.aval.size for v in (self.known.jaxpr.invars[i] for i in positions)}
        reads = []
        for eqn in self.known.jaxpr.eqns:
            sizes = [origin[v] for v in eqn.invars if isinstance(v, _jax.Var) and v in origin]
            for variable in eqn.outvars if sizes else ():
                if math.prod(variable.aval.shape) * TIMES_SMALLER > max(sizes):
                    origin[variable] = max(sizes)
                else:
                    reads.append(variable)
        return reads

    def returning(self, reads: Sequence[Any]) -> Any:
        """[*consts, *carry, *x] -> [*carry, *y, *read]."""
        inner = self.known.jaxpr
        outvars = [*inner.outvars, *reads]
        known = _jax.build_jaxpr(self.known, inner.invars, outvars, inner.eqns)
        num_known = self.unknowns_out.count(False)

        def step(*args: Any) -> list[Any]:
            known_in, unknown_in = partition(self.unknown_in, args)
            outputs = _jax.call_jaxpr(known, *known_in)
            num_residuals = len(outputs) - num_known - len(reads)
            known_out, residuals, values = cut(outputs, [num_known, num_residuals])
            unknown_out = _jax.call_jaxpr(self.unknown_jaxpr, *residuals, *unknown_in)
            return [*merge(self.unknowns_out, known_out, unknown_out), *values]

        return _jax.trace_closed(step, self.forward.in_avals, _jax.without_names(self.forward))

    def taking(self, reads: Sequence[Any]) -> Any:
        """[*consts, *carry, *x, *read] -> [*carry, *y]."""
        inner, new_variable = self.known.jaxpr, _jax.variable_maker()
        given = set(reads)

        def renamed(variable: Any) -> Any:
            return new_variable(variable.aval) if variable in given else variable

        eqns = [e.replace(outvars=[renamed(v) for v in e.outvars]) for e in inner.eqns]
        known = _jax.build_jaxpr(self.known, [*inner.invars, *reads], inner.outvars, eqns)
        num_known = self.unknowns_out.count(False)

        def step(*args: Any) -> list[Any]:
            own, values = cut(args, [len(self.unknown_in)])
            known_in, unknown_in = partition(self.unknown_in, own)
            outputs = _jax.call_jaxpr(known, *known_in, *values)
            known_out, residuals = cut(outputs, [num_known])
            unknown_out = _jax.call_jaxpr(self.unknown_jaxpr, *residuals, *unknown_in)
            return merge(self.unknowns_out, known_out, unknown_out)

        avals = [*self.forward.in_avals, *(variable.aval for variable in reads)]
        return _jax.trace_closed(step, avals, _jax.without_names(self.forward))
