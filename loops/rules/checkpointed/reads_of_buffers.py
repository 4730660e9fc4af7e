"""Large buffers of which a step reads little: what it reads is kept, and not the buffer.

A part of the carry that the way back needs is stored in every slot, and copied out of it for every
step back. For a buffer of which each step reads a few rows that is more than all it ever reads. So
the way there returns what its steps read of it as further ys, and the way back gets them as further
xs and leaves the buffer alone.

    There before: [*consts, *carry, *x] -> [*carry, *y]
    There after:  [*consts, *carry, *x] -> [*carry, *y, *read]

    Back before: [*consts, *carry, *x] -> [*carry, *y]
    Back after:  [*consts, *carry, *x, *read] -> [*carry, *y]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.inline_calls import inline_deeply
from loops.primitives.checkpointed_loop import Loop, LoopInputs, LoopOutputs
from loops.primitives.layout import cut, keep, merge, partition
from loops.rules.checkpointed.dead_code import LiveLoop

MIN_BUFFER = 256
"""Smaller parts of the carry are stored: there is little to gain."""

TIMES_SMALLER = 4
"""So many times smaller than the buffer is what counts as read out of it."""


class LoopWithReads(NamedTuple):
    """A loop that returns what its steps read, and one that takes it.

    `reads` are the types of what a step reads, which is last among the ys of `there` and among the
    xs of `back`. `is_buffer` marks the parts of the carry that are read from.
    """

    there: Loop
    back: Loop
    reads: list[Any]
    is_buffer: list[bool]


def keep_reads_of_known(
    loop: Loop, unknown: LoopInputs, outputs: LoopOutputs, needed: Sequence[bool]
) -> LoopWithReads | None:
    """Let the known half of a loop that goes there alone return what the later half reads."""
    is_buffer = _buffers(loop, needed)
    if is_buffer is None:
        return None
    marks = [*unknown.consts, *outputs.carry, *unknown.xs]
    forward = _Split(loop.forward_jaxpr, marks, [*outputs.carry, *outputs.ys])
    reads = forward.reads_of(_inputs_of(loop, is_buffer))
    there = loop._replace(forward_jaxpr=forward.returning(reads))
    back = _with_xs(loop, forward.taking(reads), None, len(reads))
    return LoopWithReads(there, back, _types(reads), is_buffer) if reads else None


def keep_reads_of_both(loop: Loop, needed: Sequence[bool]) -> LoopWithReads | None:
    """Let a loop return on its way there what steps there and back read of buffers.

    Forward before:  [*consts, *carry, *x]                       -> [*carry, *y]
    Forward there:   [*consts, *carry, *x]                       -> [*carry, *y, *read]
    Forward back:    [*consts, *carry, *x, *read]                -> [*carry, *y]
    Backward before: [*consts, *carry, *back, *x]                -> [*back, *row]
    Backward after:  [*consts, *carry, *back, *x, *read]         -> [*back, *row]
    """
    is_buffer = _buffers(loop, needed)
    if is_buffer is None:
        return None
    forward_in, backward_in = loop.forward_jaxpr.in_avals, loop.backward_jaxpr.in_avals
    before = loop.num_consts + loop.num_carry
    is_back = [before <= i < before + loop.num_back for i in range(len(backward_in))]
    forward = _Split(loop.forward_jaxpr, [False] * len(forward_in), [])
    backward = _Split(loop.backward_jaxpr, is_back, [True] * len(loop.backward_jaxpr.out_avals))
    positions = _inputs_of(loop, is_buffer)
    reads, more_reads = forward.reads_of(positions), backward.reads_of(positions)
    returning, values = forward.returning(reads), backward.values_of(more_reads)

    def step(*args: Any) -> list[Any]:
        return [*_jax.call_jaxpr(returning, *args), *_jax.call_jaxpr(values, *args)]

    debug = _jax.without_names(loop.forward_jaxpr)
    there = loop._replace(forward_jaxpr=_jax.trace_closed(step, forward_in, debug))
    num_reads, num_more = len(reads), len(more_reads)
    taking = _jax.with_unused_inputs(forward.taking(reads), _types(more_reads))
    taking_back = _jax.with_unused_inputs(backward.taking(more_reads), _types(reads))
    own = len(backward_in)
    order = [*range(own), *range(own + num_more, own + num_more + num_reads)]
    order += range(own, own + num_more)
    back = _with_xs(loop, taking, _jax.permute(taking_back, order), num_reads + num_more)
    reads = [*reads, *more_reads]
    return LoopWithReads(there, back, _types(reads), is_buffer) if reads else None


class SparedLoop(NamedTuple):
    """The two halves of a `LoopWithReads`, the way back without what it does not need.

    `is_read` marks which of the reads that `there` returns `back` takes.
    """

    there: Loop
    back: LiveLoop
    is_read: list[bool]


def spare_buffers(
    loop: Loop,
    needed: Sequence[bool],
    keep_reads: Callable[[Sequence[bool]], LoopWithReads | None],
    live_way_back: Callable[[Loop], LiveLoop],
) -> SparedLoop | None:
    """Keep reads in the place of as many needed parts of the carry as that saves; None if of none.

    Args:
      loop: the loop as it is.
      needed: which parts of its carry the way back needs.
      keep_reads: one of the two functions above, for the needed parts that it gets.
      live_way_back: drops from a way back what it does not need.
    """
    kept = keep_reads(needed)
    if kept is None:
        return None
    back = live_way_back(kept.back)
    if any(keep(kept.is_buffer, back.inputs.carry)):
        others = zip(kept.is_buffer, back.inputs.carry, strict=True)
        spared = [is_buffer and not used for is_buffer, used in others]
        return spare_buffers(loop, spared, keep_reads, live_way_back)
    is_read = back.inputs.xs[loop.num_xs :]
    cheaper = _costs_less(loop, keep(is_read, kept.reads), kept.is_buffer)
    return SparedLoop(kept.there, back, is_read) if cheaper else None


def _costs_less(loop: Loop, reads: Sequence[Any], is_buffer: Sequence[bool]) -> bool:
    """Whether the reads of all steps take no more memory than the buffers in all slots."""
    buffers = keep(is_buffer, loop.carry_avals())
    return (loop.length or 0) * sum(map(_bytes, reads)) <= loop.slots * sum(map(_bytes, buffers))


def _buffers(loop: Loop, needed: Sequence[bool]) -> list[bool] | None:
    """Which needed parts of the carry are large, if the reads of all steps can be kept.

    Lanes that end apart are left as they are: in a batched step nobody knows which axis of a read
    is that of the lanes.
    """
    stored = loop.recorded or [False] * loop.num_carry
    parts = zip(needed, stored, loop.carry_avals(), strict=True)
    is_buffer = [need and not is_stored and _is_large(aval) for need, is_stored, aval in parts]
    can_be_kept = loop.length is not None and loop.lanes is None
    return is_buffer if any(is_buffer) and can_be_kept else None


def _inputs_of(loop: Loop, is_buffer: Sequence[bool]) -> list[int]:
    """Which inputs of a step the buffers are."""
    return [loop.num_consts + i for i, is_marked in enumerate(is_buffer) if is_marked]


def _with_xs(loop: Loop, forward_jaxpr: Any, backward_jaxpr: Any, num_reads: int) -> Loop:
    linear_xs = (*loop.linear_xs, *[False] * num_reads) if loop.linear_xs else ()
    return loop._replace(
        forward_jaxpr=forward_jaxpr, backward_jaxpr=backward_jaxpr, linear_xs=linear_xs
    )


def _types(variables: Sequence[Any]) -> list[Any]:
    return [variable.aval for variable in variables]


def _is_large(aval: Any) -> bool:
    is_known = all(isinstance(size, int) for size in aval.shape)
    return is_known and math.prod(aval.shape) >= MIN_BUFFER


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


class _Split:
    """A jaxpr split by what is known, the calls in its known part written out in line."""

    def __init__(self, jaxpr: Any, unknown_in: Sequence[bool], wanted: Sequence[bool]) -> None:
        self.jaxpr, self.unknown_in = jaxpr, unknown_in
        split = _jax.split_known(jaxpr, unknown_in, wanted or [False] * len(jaxpr.out_avals))
        self.unknown_jaxpr, self.unknowns_out = split.unknown_jaxpr, split.unknowns_out
        self.known = inline_deeply(split.known_jaxpr)

    def reads_of(self, buffers: Sequence[int]) -> list[Any]:
        """The known variables computed from one of these inputs and much smaller than it."""
        known_in = partition(self.unknown_in, range(len(self.unknown_in)))[0]
        invars = dict(zip(known_in, self.known.jaxpr.invars, strict=True))
        # How large the buffer is that a variable depends on, by something as large as it.
        origin = {invars[i]: invars[i].aval.size for i in buffers}
        reads = []
        for eqn in self.known.jaxpr.eqns:
            sizes = [origin[v] for v in eqn.invars if isinstance(v, _jax.Var) and v in origin]
            for variable in eqn.outvars if sizes else ():
                if math.prod(variable.aval.shape) * TIMES_SMALLER > max(sizes):
                    origin[variable] = max(sizes)
                else:
                    reads.append(variable)
        return reads

    def values_of(self, reads: Sequence[Any]) -> Any:
        """[*known in] -> [*read]."""
        inner = self.known.jaxpr
        jaxpr = _jax.build_jaxpr(self.known, inner.invars, reads, inner.eqns)
        all_inputs = [True] * len(inner.invars)
        return _jax.eliminate_dead_code(jaxpr, [True] * len(reads), all_inputs).jaxpr

    def returning(self, reads: Sequence[Any]) -> Any:
        """The same jaxpr with what it reads as its last outputs."""
        inner = self.known.jaxpr
        known = _jax.build_jaxpr(self.known, inner.invars, [*inner.outvars, *reads], inner.eqns)

        def step(*args: Any) -> list[Any]:
            known_in, unknown_in = partition(self.unknown_in, args)
            outputs = _jax.call_jaxpr(known, *known_in)
            outputs, values = cut(outputs, [len(inner.outvars)])
            return [*self._outputs(outputs, unknown_in), *values]

        return _jax.trace_closed(step, self.jaxpr.in_avals, _jax.without_names(self.jaxpr))

    def taking(self, reads: Sequence[Any]) -> Any:
        """The same jaxpr with what it reads as its last inputs."""
        inner, new_variable = self.known.jaxpr, _jax.variable_maker()
        given = set(reads)

        def renamed(variable: Any) -> Any:
            return new_variable(variable.aval) if variable in given else variable

        eqns = [e.replace(outvars=[renamed(v) for v in e.outvars]) for e in inner.eqns]
        known = _jax.build_jaxpr(self.known, [*inner.invars, *reads], inner.outvars, eqns)

        def step(*args: Any) -> list[Any]:
            own, values = cut(args, [len(self.unknown_in)])
            known_in, unknown_in = partition(self.unknown_in, own)
            return self._outputs(_jax.call_jaxpr(known, *known_in, *values), unknown_in)

        avals = [*self.jaxpr.in_avals, *_types(reads)]
        return _jax.trace_closed(step, avals, _jax.without_names(self.jaxpr))

    def _outputs(self, known: Sequence[Any], unknown_in: Sequence[Any]) -> list[Any]:
        """All outputs, from what the known part returns and the unknown inputs."""
        known_out, residuals = cut(known, [self.unknowns_out.count(False)])
        unknown_out = _jax.call_jaxpr(self.unknown_jaxpr, *residuals, *unknown_in)
        return merge(self.unknowns_out, known_out, unknown_out)
