"""What the way there of a loop hands over to its way back, where no earlier loop has done so."""

from __future__ import annotations

from typing import NamedTuple

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopInputs, LoopOutputs
from loops.primitives.layout import cut, keep
from loops.reverse.way_there import WayThere
from loops.rules.checkpointed.dead_code import LiveLoop, live_loop
from loops.rules.checkpointed.reads_of_buffers import (
    SparedLoop,
    keep_reads_of_both,
    spare_buffers,
)


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
    halves = SparedLoop(loop, _live_way_back(loop), [])
    needed = halves.back.inputs.carry
    halves = (
        spare_buffers(loop, needed, lambda marks: keep_reads_of_both(loop, marks), _live_way_back)
        or halves
    )
    forward = halves.there.forward_jaxpr
    used = [*[True] * len(loop.forward_jaxpr.out_avals), *halves.is_read]
    forward = _jax.eliminate_dead_code(forward, used, [True] * len(forward.in_avals)).jaxpr
    there = loop._replace(
        forward_jaxpr=forward, backward_jaxpr=None, recorded=tuple(halves.back.inputs.carry)
    )
    return Handover(there, halves.back, sum(halves.is_read))


def _live_way_back(loop: Loop) -> LiveLoop:
    """What is needed for all of `back` and all rows, once the number of steps is known."""
    used = LoopOutputs(
        steps=False,
        carry=[False] * loop.num_carry,
        back=[True] * loop.num_back,
        ys=[False] * loop.num_ys,
        rows=[True] * loop.num_rows,
        cache=[],
    )
    return live_loop(loop._replace(cond_jaxpr=None), used)
