"""The way there: run a loop, and store a few of its carries for the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from loops import _jax
from loops.primitives.checkpointed_loop import Loop, LoopInputs
from loops.primitives.layout import cut, keep
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_of_functions
from loops.reverse.online_placement import OnlinePlacement
from loops.reverse.placement import LARGEST, optimal_positions, tables_for
from loops.reverse.slots import store
from loops.reverse.steps import Steps, any_lane, rows_of_zeros


class Cache(NamedTuple):
    """Stored carries: `positions[i]` steps led to the one in row i of each of `stored`.

    A position of `LARGEST` means that nothing is stored there.
    """

    positions: Any
    stored: list[Any]


NOTHING_STORED = Cache(None, [])


class WayThere(NamedTuple):
    """What a loop has when it has ended."""

    steps: Any
    carry: list[Any]
    ys: list[Any]
    cache: Cache


def run_there(loop: Loop, inputs: LoopInputs) -> WayThere:
    """Run a loop forwards, storing what `loop.recorded` marks of the carry."""
    if loop.recorded is not None:
        return _run_and_store(loop, inputs, loop.recorded)
    if loop.is_counted:
        return _run_as_scan(loop, inputs)
    return _run(loop, inputs)


def _run_as_scan(loop: Loop, inputs: LoopInputs) -> WayThere:
    """A loop whose number of steps is known while tracing."""
    outputs = scan_p.bind(
        *inputs.consts,
        *inputs.carry,
        *inputs.xs,
        jaxpr=loop.forward_jaxpr,
        length=loop.length,
        reverse=loop.reverse,
        unroll=loop.unroll,
        num_consts=loop.num_consts,
        num_carry=loop.num_carry,
    )
    carry, ys = cut(outputs, [loop.num_carry])
    return WayThere(inputs.limit, carry, ys, NOTHING_STORED)


def _run(loop: Loop, inputs: LoopInputs) -> WayThere:
    steps = Steps(loop, inputs)
    ys = rows_of_zeros(loop, loop.forward_jaxpr.out_avals[loop.num_carry :])
    state = _State(loop, 0, jnp.zeros_like(inputs.limit), inputs.carry, ys)
    state = _run_until(loop, steps, inputs.limit, LARGEST, state)
    # Without a condition the steps are known before: then no way back waits for the way there.
    taken = state.taken if loop.cond_jaxpr is not None else lax.max(inputs.limit, np.int32(0))
    return WayThere(taken, state.carry, state.ys, NOTHING_STORED)


class _State:
    """A loop on its way: how many steps the longest lane has taken, how many each, and the rest."""

    def __init__(self, loop: Loop, t: Any, taken: Any, carry: list[Any], ys: list[Any]) -> None:
        self.loop, self.t, self.taken, self.carry, self.ys = loop, t, taken, carry, ys

    def flat(self) -> list[Any]:
        return [self.t, self.taken, *self.carry, *self.ys]

    def take(self, values: Any) -> _State:
        (t, taken), carry, ys = cut(values, [2, self.loop.num_carry])
        return _State(self.loop, t, taken, carry, ys)


def _run_until(loop: Loop, steps: Steps, limit: Any, stop: Any, state: _State) -> _State:
    """Run until the loop ends or `stop` steps are taken."""

    def goes_on(*values: Any) -> Any:
        now = state.take(values)
        runs = any_lane(steps.running(now.t, limit, now.carry))
        return runs if stop is LARGEST else lax.bitwise_and(now.t < stop, runs)

    def step(*values: Any) -> list[Any]:
        now = state.take(values)
        if loop.lanes is None:
            running, taken = None, now.taken + 1
        else:
            running = steps.running(now.t, limit, now.carry)
            taken = now.taken + running.astype(jnp.int32)
        carry, ys = steps.forward(now.t, running, now.carry, now.ys)
        return _State(loop, now.t + 1, taken, carry, ys).flat()

    flat = [jnp.int32(state.t), *state.flat()[1:]]
    return state.take(while_of_functions(goes_on, step, flat))


def _run_and_store(loop: Loop, inputs: LoopInputs, recorded: tuple[bool, ...]) -> WayThere:
    """Store the carry, run on to the next step whose carry is stored, and so on.

    Nothing is stored for the step after the last one.
    """
    limit, steps = inputs.limit, Steps(loop, inputs)
    tables = tables_for(loop.slots, loop.length or LARGEST)
    placement: Any = (
        KnownPlacement(optimal_positions(tables, jnp.max(limit)))
        if loop.cond_jaxpr is None
        else OnlinePlacement(tables)
    )
    ys = rows_of_zeros(loop, loop.forward_jaxpr.out_avals[loop.num_carry :])
    state = _State(loop, jnp.int32(0), jnp.zeros_like(limit), inputs.carry, ys)
    num_state, num_memory = len(state.flat()), len(placement.start())
    stored = [
        _jax.uninitialised((loop.slots,), loop.stored_aval(aval))
        for aval in keep(recorded, loop.carry_avals())
    ]
    positions = jnp.full(loop.slots, LARGEST, jnp.int32)

    def goes_on(*values: Any) -> Any:
        now = state.take(values[:num_state])
        return any_lane(steps.running(now.t, limit, now.carry))

    def store_and_run(*values: Any) -> list[Any]:
        current, memory, (positions,), stored = cut(values, [num_state, num_memory, 1])
        now = state.take(current)
        slot, stop, memory = placement.place(memory, positions, now.t)
        positions = positions.at[slot].set(now.t)
        stored = store(loop, stored, keep(recorded, now.carry), slot)
        now = _run_until(loop, steps, limit, stop, now)
        return [*now.flat(), *memory, positions, *stored]

    flat = [*state.flat(), *placement.start(), positions, *stored]
    outputs = while_of_functions(goes_on, store_and_run, flat)
    ended, _, (positions,), stored = cut(outputs, [num_state, num_memory, 1])
    last = state.take(ended)
    return WayThere(last.taken, last.carry, last.ys, Cache(positions, stored))


class KnownPlacement:
    """Stores the carries of a list of steps, one after another."""

    def __init__(self, positions: Any) -> None:
        self.stops = jnp.append(positions, jnp.int32(LARGEST))

    def start(self) -> list[Any]:
        """What it remembers before the first step: how many are stored."""
        return [jnp.int32(0)]

    def place(self, memory: list[Any], _: Any, __: Any) -> tuple[Any, Any, list[Any]]:
        """The slot for the carry of this step, the next step to stop at, and what to remember."""
        (count,) = memory
        return count, lax.dynamic_index_in_dim(self.stops, count + 1, keepdims=False), [count + 1]
