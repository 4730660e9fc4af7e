"""Lowering of `checkpointed_loop`: our `scan` and `while`, there and back."""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopInputs, LoopOutputs, checkpointed_loop_p
from loops.reverse.handover import hand_over
from loops.reverse.way_back import run_back
from loops.reverse.way_there import Cache, run_there


def run_checkpointed_loop(*args: Any, **params: Any) -> list[Any]:
    """Run a checkpointed loop with JAX operations and our plain loops."""
    loop = Loop(**params)
    inputs = loop.inputs(args)
    if loop.backward_jaxpr is None:
        there = run_there(loop, inputs)
        cache = [] if loop.recorded is None else [there.cache.positions, *there.cache.stored]
        return LoopOutputs(there.steps, there.carry, [], there.ys, [], cache).flat()
    if loop.cached is None:
        return _run_both_ways(loop, inputs).flat()
    there = run_there(loop, inputs)  # whose end nobody reads, so that XLA drops it
    way_back = run_back(loop, inputs, there.steps, Cache(inputs.cache[0], inputs.cache[1:]))
    return LoopOutputs(there.steps, there.carry, way_back.back, there.ys, way_back.rows, []).flat()


def _run_both_ways(loop: Loop, inputs: LoopInputs) -> LoopOutputs:
    """Run a loop that stores what its own way back needs."""
    handover = hand_over(loop)
    there = run_there(handover.there, inputs)
    way_back = run_back(
        handover.back.loop,
        handover.inputs_of_way_back(inputs, there),
        there.steps,
        there.cache,
    )
    ys = there.ys[: loop.num_ys]
    return LoopOutputs(there.steps, there.carry, way_back.back, ys, way_back.rows, [])


_jax.register_lowering(
    checkpointed_loop_p, _jax.lower_function(run_checkpointed_loop, multiple_results=True)
)
