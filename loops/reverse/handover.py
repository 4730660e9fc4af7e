"""What the way there of a loop hands over to its way back, where no earlier loop has done so."""

from __future__ import annotations

from typing import NamedTuple

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopInputs, LoopOutputs
from loops.primitives.layout import cut, keep
from loops.reverse.way_there import WayThere
from loops.rules.checkpointed.dead_code import LiveLoop, live_loop
from loops.rules.checkpointed.reads_of_buffers import costs_less, keep_reads_of_both


class Handover(NamedTuple):
    """A loop divided: `there` stores what `back` needs of the carry, and returns what it reads.

    The last `num_reads` of the ys of `there` are the last xs of `back`.
    """

    there: Loop
    back: LiveLoop
    num_reads: int

    def inputs_of_way_back(self, inputs: LoopInputs, there: WayThere) -> LoopInputs:
        """The inputs of the way back, from all inputs and what the way there has."""
        marks = self.back.inputs
        reads = cut(there.ys, [len(there.ys) - self.num_reads])[1]
        return LoopInputs(
            inputs.limit,
            keep(marks.consts, inputs.consts),
            keep(marks.carry, inputs.carry),
            keep(marks.back, inputs.back),
            [*keep(marks.xs[: len(inputs.xs)], inputs.xs), *reads],
            [],
        )


def hand_over(loop: Loop) -> Handover:
    """Divide a loop, and store as little of its carry as the way back can do with."""
    back = _way_back(loop)
    handover = _with_reads(loop, back.inputs.carry) or Handover(loop, back, 0)
    recorded = tuple(handover.back.inputs.carry)
    there = handover.there._replace(backward_jaxpr=None, recorded=recorded)
    return handover._replace(there=there)


def _way_back(loop: Loop) -> LiveLoop:
    nothing = [False] * loop.num_carry, [False] * loop.num_ys
    everything = [True] * loop.num_back, [True] * loop.num_rows
    used = LoopOutputs(False, nothing[0], everything[0], nothing[1], everything[1], [])
    return live_loop(loop._replace(cond_jaxpr=None), used)


def _with_reads(loop: Loop, needed: list[bool]) -> Handover | None:
    """The same with what steps read of large buffers handed on, for as many as that saves."""
    kept = keep_reads_of_both(loop, needed)
    if kept is None:
        return None
    back = _way_back(kept.back)
    still_needed = back.inputs.carry
    if any(keep(kept.is_buffer, still_needed)):
        spared = [a and not b for a, b in zip(kept.is_buffer, still_needed, strict=True)]
        return _with_reads(loop, spared)
    is_read = back.inputs.xs[loop.num_xs :]
    if not costs_less(loop, keep(is_read, kept.reads), kept.is_buffer):
        return None
    there = kept.there.forward_jaxpr
    used = [*[True] * len(loop.forward_jaxpr.out_avals), *is_read]
    there = _jax.eliminate_dead_code(there, used, [True] * len(there.in_avals)).jaxpr
    return Handover(loop._replace(forward_jaxpr=there), back, sum(is_read))
