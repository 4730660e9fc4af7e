"""Lowering of `checkpointed_loop`: our `scan` and `while`, there and back."""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopOutputs, checkpointed_loop_p
from loops.reverse.way_back import run_back
from loops.reverse.way_there import Cache, run_there


def run_checkpointed_loop(*args: Any, **params: Any) -> list[Any]:
    """Run a checkpointed loop with JAX operations and our plain loops."""
    loop = Loop(**params)
    inputs = loop.inputs(args)
    if loop.backward_jaxpr is None:
        there = run_there(loop, inputs)
        cache = [] if there.cache is None else [there.cache.positions, *there.cache.stored]
        return LoopOutputs(there.steps, there.carry, [], there.ys, [], cache).flat()
    if loop.cached is None:
        loop = loop._replace(recorded=(True,) * loop.num_carry)
    there = run_there(loop, inputs)
    # With a cache nobody reads what the way there ends with, and XLA drops it.
    cache = there.cache or Cache(inputs.cache[0], inputs.cache[1:])
    way_back = run_back(loop, inputs, there.steps, cache)
    return LoopOutputs(there.steps, there.carry, way_back.back, there.ys, way_back.rows, []).flat()


_jax.register_lowering(
    checkpointed_loop_p, _jax.lower_function(run_checkpointed_loop, multiple_results=True)
)
