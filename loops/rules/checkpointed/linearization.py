"""linearize and vjp: the values now, with a few carries stored, and a linear loop for later.

The linear loop runs the values again beside the tangents. Evaluated it is forward mode; transposed
it starts from the stored carries. Only a vjp stores any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopInputs, checkpointed_loop_p
from loops.primitives.layout import cut
from loops.rules.checkpointed.forward_mode import JvpOfLoop, inputs_with_tangents, jvp_of_loop
from loops.rules.checkpointed.partial_evaluation import (
    KnownHalf,
    inputs_of_later_half,
    run_known_half,
    split_loop,
    unknown_outputs_of,
)
from loops.rules.forward_mode import tangents_out


def checkpointed_loop_linearize(
    is_vjp: bool, nonzeros: Sequence[bool], *primals: Any, **params: Any
) -> tuple[Any, ...]:
    """Run a loop, and say how its tangents are computed."""
    loop = Loop(**params)
    jvp = jvp_of_loop(loop, nonzeros)
    split = split_loop(jvp.loop, _marks_of_tangents(loop, jvp), record=is_vjp)
    if split is None:
        raise TypeError("checkpointed_loop: a number of steps, or what is recorded, has a tangent")
    known_inputs = inputs_with_tangents(jvp, loop.inputs(primals), loop.inputs(primals))
    known = run_known_half(jvp.loop, split, known_inputs)
    primals_out, nonzeros_out = known.outputs, jvp.nonzeros_out.flat()

    def tangent_fun(residuals: list[Any], _: Any, *tangents: Any) -> list[Any]:
        steps, values = residuals[0], loop.inputs(residuals[1 : 1 + len(primals)])
        reads, cache = cut(residuals[1 + len(primals) :], [split.num_reads])
        known = KnownHalf([], steps, reads, cache)
        inputs = inputs_with_tangents(jvp, values, loop.inputs(tangents))
        later = split.later.loop.bind(inputs_of_later_half(split, inputs, known))
        return tangents_out(nonzeros_out, unknown_outputs_of(split, later), primals_out)

    residuals = [known.steps, *primals, *known.reads, *known.cache]
    return _jax.linearize_result(primals_out, nonzeros_out, residuals, None, tangent_fun)


_jax.primitive_linearizations[checkpointed_loop_p] = checkpointed_loop_linearize


def _marks_of_tangents(loop: Loop, jvp: JvpOfLoop) -> LoopInputs:
    """Which inputs of the loop with tangents are tangents."""
    marks = jvp.nonzeros_in
    return LoopInputs(
        False,
        [False] * loop.num_consts + [True] * sum(marks.consts),
        [False] * loop.num_carry + [True] * sum(marks.carry),
        [False] * loop.num_back + [True] * sum(marks.back),
        [False] * loop.num_xs + [True] * sum(marks.xs),
        [],
    )
