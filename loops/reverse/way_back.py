"""The way back: each step in turn, last one first, from the stored carries."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from loops.primitives.checkpointed_loop import Loop, LoopInputs
from loops.primitives.layout import cut
from loops.primitives.while_loop import while_of_functions
from loops.reverse.placement import LARGEST, next_distance, tables_for
from loops.reverse.slots import restore, store
from loops.reverse.steps import Steps, rows_of_zeros
from loops.reverse.way_there import Cache


class WayBack(NamedTuple):
    """What the way back ends with."""

    back: list[Any]
    rows: list[Any]


def run_back(loop: Loop, inputs: LoopInputs, taken: Any, cache: Cache) -> WayBack:
    """Run a loop backwards: Revolve, from wherever the carries were stored.

    The nearest carry before a step leads to that step. On the way carries are stored in the slots
    that are free, as far on as costs least (Griewank and Walther, 2000, equation 4)::

        for t in reversed(range(taken)):
            position = the last stored one that is not after t
            while position + 1 < t and a slot is free:
                advance to the best next position, and store the carry there
            advance to t                      # of two steps, so no carry is stored for the last
            take step t backwards             # the slots after t are free from now on
    """
    steps = Steps(loop, inputs)
    tables = tables_for(loop.slots, loop.length or LARGEST)
    num_carry, num_back = loop.num_carry, loop.num_back
    num_rows = loop.num_rows

    def one_back(*values: Any) -> list[Any]:
        (end,), back, rows, (positions,), stored = cut(values, [1, num_back, num_rows, 1])
        t = end - 1
        slot = lax.argmax(jnp.where(positions <= t, positions, -1), 0, jnp.int32)
        position = lax.dynamic_index_in_dim(positions, slot, keepdims=False)
        carry = restore(loop, stored, slot)

        def may_store(position: Any, *state: Any) -> Any:
            positions = state[num_carry]
            return lax.bitwise_and(position + 1 < t, jnp.any(positions > t))

        def store_next(position: Any, *state: Any) -> list[Any]:
            carry, (positions,), stored = cut(state, [num_carry, 1])
            is_free = positions > t
            free = jnp.sum(is_free, dtype=jnp.int32)
            stop = position + next_distance(tables, end - position, free)
            carry = steps.advance(position, stop, taken, carry)
            slot = lax.argmax(is_free, 0, jnp.int32)
            return [
                stop,
                *carry,
                positions.at[slot].set(stop),
                *store(loop, stored, carry, slot),
            ]

        if loop.slots > 1 and num_carry:
            state = [position, *carry, positions, *stored]
            (position,), carry, (positions,), stored = cut(
                while_of_functions(may_store, store_next, state), [1, num_carry, 1]
            )
        if num_carry:
            carry = steps.advance(position, t, taken, carry)
        back, rows = steps.backward(t, t < taken, carry, back, rows)
        return [t, *back, *rows, positions, *stored]

    rows = rows_of_zeros(loop, loop.backward_jaxpr.out_avals[num_back:])
    state = [jnp.max(taken), *inputs.back, *rows, cache.positions, *cache.stored]
    outputs = while_of_functions(lambda end, *_: end > 0, one_back, state)
    _, back, rows, _ = cut(outputs, [1, num_back, num_rows])
    return WayBack(back, rows)
