"""Where to store the next carry, computed while the loop runs.

The formulas are those of `loops.reverse.schedules`, in int32 arithmetic on tables, because the
number of steps may be known only while running. A table has a row for each number of slots and a
column for each number of repetitions::

    binomials[a, r] = C(a + r, a)

The number of steps that a slots can reverse with each step advanced at most r times (Griewank and
Walther, 2000, Proposition 1).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

LARGEST = 2**31 - 1
# With two slots and more steps than this many repetitions allow (half a million), the plan is no
# longer the best one; with three slots that is so beyond 180 million steps.
MOST_REPETITIONS = 1024


class Tables(NamedTuple):
    """What is known of the schedule before the loop runs."""

    slots: int
    binomials: np.ndarray

    def row(self, num_slots: Any) -> Any:
        """The row of the binomials for a number of slots known while running."""
        return lax.dynamic_index_in_dim(jnp.asarray(self.binomials), num_slots, keepdims=False)


def tables_for(slots: int, most_steps: int) -> Tables:
    """The tables for a number of slots and a bound of the number of steps."""
    repetitions = 1
    while repetitions < MOST_REPETITIONS and math.comb(slots + repetitions, slots) < most_steps:
        repetitions += 1
    # Twice as many as the best plan needs: online, a segment may be longer than it should be.
    columns = 2 * repetitions + 4
    if slots == 1:  # nothing is ever placed: the repetitions do not matter
        columns = 2
    binomials = [
        [min(math.comb(a + r, a), LARGEST) for r in range(columns)] for a in range(slots + 1)
    ]
    return Tables(slots, np.array(binomials, np.int32))


def default_checkpoints(most_steps: int) -> int:
    """The fewest slots with which no step is run more than once again on the way back.

    They suffice for C(slots + 2, 2) - 1 steps, so there are about sqrt(2 * most_steps) of them.
    """
    slots = math.isqrt(2 * most_steps)
    while slots > 1 and math.comb(slots + 1, 2) - 1 >= most_steps:
        slots -= 1
    while math.comb(slots + 2, 2) - 1 < most_steps:
        slots += 1
    return slots


def optimal_positions(tables: Tables, steps: Any) -> Any:
    """After how many steps to store each carry, for the least work on the way back.

    The carries cut the loop into segments; the last one is reversed with no free slot, the one
    before it with one, and so on. A segment reversed with i free slots may have between
    C(i + r, i + 1) and C(i + 1 + r, i + 1) steps if each step is advanced at most r times, and any
    lengths between these are equally good. Here the first segments are the long ones.

    Returns:
      `slots` positions in rising order, from 0; those that are not below `steps` are never reached.
    """
    # Below, sums of up to `slots` lengths must fit; longer loops are placed as if they ended here.
    placed = jnp.minimum(steps, LARGEST // (tables.slots + 1))
    upper_all = tables.binomials[1:, :]  # row i: C(i + 1 + r, i + 1)
    capacity = np.minimum(upper_all.astype(np.int64).sum(0), LARGEST).astype(np.int32)
    repetitions = jnp.minimum(
        jnp.sum(jnp.asarray(capacity) < placed, dtype=np.int32), capacity.size - 1
    )
    upper = lax.dynamic_index_in_dim(jnp.asarray(upper_all), repetitions, axis=1, keepdims=False)
    below = lax.dynamic_index_in_dim(
        jnp.asarray(upper_all), jnp.maximum(repetitions - 1, 0), axis=1, keepdims=False
    )
    lower = jnp.where(repetitions > 0, below, 0)
    # In the order of time: the segment with the most free slots comes first.
    lower, upper = jnp.minimum(lower, placed)[::-1], jnp.minimum(upper, placed)[::-1]
    room = upper - lower
    before = jnp.cumsum(room, dtype=np.int32) - room
    lengths = lower + jnp.clip(placed - jnp.sum(lower, dtype=np.int32) - before, 0, room)
    return jnp.cumsum(lengths, dtype=np.int32) - lengths


def next_distance(tables: Tables, steps: Any, free: Any) -> Any:
    """How far on to store the next carry, with `steps` > 2 to reverse and `free` > 0 slots free.

    This is `schedules.next_checkpoint` with k = free + 1 slots, and with its r::

        max(
            reach(k, r - 2), min(steps - reach(k - 1, r - 1) - reach(k - 2, r - 1), reach(k, r - 1))
        )
    """
    own, less, least = (tables.row(free + 1 - k) for k in range(3))
    sweeps = jnp.sum(own < steps, dtype=np.int32)
    sweeps = jnp.minimum(sweeps, own.shape[0] - 1)

    def at(row: Any, r: Any) -> Any:
        return lax.dynamic_index_in_dim(row, r, keepdims=False)

    middle = jnp.maximum(steps - at(less, sweeps - 1), 0) - at(least, sweeps - 1)
    longest, shortest = at(own, sweeps - 1), jnp.where(sweeps > 1, at(own, sweeps - 2), 0)
    return jnp.maximum(jnp.minimum(middle, longest), jnp.maximum(shortest, 1))
