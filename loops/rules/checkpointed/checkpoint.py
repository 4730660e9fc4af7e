"""jax.checkpoint around a checkpointed loop: the known part now, and the whole loop again later.

A policy finds nothing to save inside: the loop runs its steps again anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopOutputs, checkpointed_loop_p
from loops.primitives.layout import keep, partition
from loops.rules.checkpoint import not_instantiated
from loops.rules.checkpointed.partial_evaluation import split_loop


def checkpointed_loop_checkpoint(
    policy: Callable[..., Any], unknowns_in: Sequence[bool], inst_in: Sequence[bool], eqn: Any
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """Split a loop's equation: the known half now, and the whole loop again later."""
    del policy
    loop = Loop(**eqn.params)
    new_inputs = not_instantiated(inst_in, eqn)
    all_outputs = [True] * len(eqn.outvars)
    split = split_loop(loop, loop.inputs(unknowns_in), record=False)
    if split is None:
        return None, eqn, all_outputs, all_outputs, new_inputs
    unknown: LoopOutputs = split.unknown_outputs
    known_eqn = _jax.new_equation(
        checkpointed_loop_p,
        keep(split.known.inputs.flat(), eqn.invars),
        partition(unknown.flat(), eqn.outvars)[0],
        split.known.loop._asdict(),
        eqn,
    )
    return known_eqn, eqn, unknown.flat(), all_outputs, new_inputs


_jax.checkpoint_rules[checkpointed_loop_p] = checkpointed_loop_checkpoint
