"""The way back: each step in turn, last one first, from the stored carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
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
            position = the last stored one            # it is not after t
            while position + 1 < t and a slot is free:
                advance to the best next position, and store the carry there
            advance to t                              # of two steps, the last is not stored
            take step t backwards
            if the last stored position is t: free its slot

    The stored carries are a stack: `order` has their slots, the last one at `count - 1`, and after
    it the free ones. So a step costs the same however many slots there are.
    """
    steps = Steps(loop, inputs)
    tables = tables_for(loop.slots, loop.length or LARGEST)
    num_carry, num_back = loop.num_carry, loop.num_back
    num_rows = loop.num_rows

    def one_back(*values: Any) -> list[Any]:
        (end,), back, rows, (stack,), stored = _cut_state(values, [1, num_back, num_rows])
        t = end - 1
        slot, position = stack.last()
        carry = restore(loop, stored, slot)

        def may_store(position: Any, *state: Any) -> Any:
            _, (stack,), _ = _cut_state(state, [num_carry])
            return lax.bitwise_and(position + 1 < t, stack.count < loop.slots)

        def store_next(position: Any, *state: Any) -> list[Any]:
            carry, (stack,), stored = _cut_state(state, [num_carry])
            stop = position + next_distance(tables, end - position, loop.slots - stack.count)
            carry = steps.advance(position, stop, taken, carry)
            slot, stack = stack.push(stop)
            return [stop, *carry, *stack, *store(loop, stored, carry, slot)]

        if loop.slots > 1 and num_carry:
            state = [position, *carry, *stack, *stored]
            (position,), carry, (stack,), stored = _cut_state(
                while_of_functions(may_store, store_next, state), [1, num_carry]
            )
        if num_carry:
            carry = steps.advance(position, t, taken, carry)
        back, rows = steps.backward(t, t < taken, carry, back, rows)
        return [t, *back, *rows, *stack.without(t), *stored]

    rows = rows_of_zeros(loop, loop.backward_jaxpr.out_avals[num_back:])
    stack = _Stack.of(cache.positions)
    state = [jnp.max(taken), *inputs.back, *rows, *stack, *cache.stored]
    outputs = while_of_functions(lambda end, *_: end > 0, one_back, state)
    _, back, rows, _ = cut(outputs, [1, num_back, num_rows])
    return WayBack(back, rows)


class _Stack(NamedTuple):
    """Which slots hold carries, in the order of their positions, and how many do."""

    count: Any
    order: Any
    positions: Any

    @classmethod
    def of(cls, positions: Any) -> _Stack:
        """The carries that the way there has stored."""
        count = jnp.sum(positions < LARGEST, dtype=jnp.int32)
        return cls(
            count, lax.sort_key_val(positions, lax.iota(np.int32, positions.size))[1], positions
        )

    def last(self) -> tuple[Any, Any]:
        """The slot and the position of the last carry."""
        slot = lax.dynamic_index_in_dim(self.order, self.count - 1, keepdims=False)
        return slot, lax.dynamic_index_in_dim(self.positions, slot, keepdims=False)

    def push(self, position: Any) -> tuple[Any, _Stack]:
        """A free slot, and the stack with a carry in it."""
        slot = lax.dynamic_index_in_dim(self.order, self.count, keepdims=False)
        return slot, _Stack(self.count + 1, self.order, self.positions.at[slot].set(position))

    def without(self, position: Any) -> _Stack:
        """The stack without the carry of a position, if that is the last."""
        return self._replace(count=self.count - (self.last()[1] == position).astype(jnp.int32))


def _cut_state(values: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Cut values into groups of the given sizes, a group with the stack, and the stored carries."""
    *groups, parts, stored = cut(values, [*sizes, len(_Stack._fields)])
    return [*groups, [_Stack(*parts)], stored]
