"""Placement while nobody knows how many steps there will be.

As long as a slot is free, the carry of every step is stored. Then one is stored every r + 1 steps,
where r is the number of repetitions that the best plan for the steps so far would need, and takes
the place of the one whose loss costs least: the work that the way back would have if the loop ended
now. In simulations up to 1500 steps, for 2 to 31 slots, that is on average at most 3 % above the
least possible. (Stumm and Walther, 2010, and Wang, Moin and Iaccarino, 2009, have rules that need
no search; looking at each slot costs little, because it is done so seldom, and finds better ones.)
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from loops.primitives.while_loop import while_of_functions
from loops.reverse.placement import LARGEST, Tables


class OnlinePlacement:
    """Chooses a slot for the carry of a step, and the next step to stop at.

    It remembers how many slots are taken, and the slots in the order of their positions.
    """

    def __init__(self, tables: Tables) -> None:
        self.slots, self.binomials = tables.slots, tables.binomials
        self.capacity = np.minimum(tables.binomials[1:].astype(np.int64).sum(0), LARGEST).astype(
            np.int32
        )
        # C(a + r, a + 1), what the closed form of the work subtracts; only compared, so floats do.
        rows, columns = tables.binomials.shape
        self.less = np.array(
            [[min(math.comb(a + r, a + 1), 1e38) for r in range(columns)] for a in range(rows)],
            np.float32,
        )

    def start(self) -> list[Any]:
        """What it remembers before the first step."""
        return [jnp.int32(0), jnp.arange(self.slots, dtype=jnp.int32)]

    def place(self, memory: list[Any], positions: Any, t: Any) -> tuple[Any, Any, list[Any]]:
        """The slot for the carry of step `t`, the next step to stop at, and what to remember."""
        count, order = memory
        if self.slots == 1:
            return jnp.int32(0), jnp.int32(LARGEST), memory

        def give_one_up(_: Any, __: Any, order: Any) -> list[Any]:
            rank = self._least_needed(positions[order], t)
            slot = lax.dynamic_index_in_dim(order, rank, keepdims=False)
            ranks = jnp.arange(self.slots, dtype=jnp.int32)
            moved = jnp.where(ranks < rank, order, jnp.roll(order, -1)).at[-1].set(slot)
            return [jnp.bool_(False), slot, moved]

        # While slots are free a step costs the same however many there are: the search is in a loop
        # of at most one step. (A branch would do, were it not that jet knows none.)
        free = lax.dynamic_index_in_dim(order, jnp.minimum(count, self.slots - 1), keepdims=False)
        is_full = count == self.slots
        _, slot, order = while_of_functions(
            lambda is_full, *_: is_full, give_one_up, [is_full, free, order]
        )
        repetitions = jnp.sum(jnp.asarray(self.capacity) < t + 1, dtype=jnp.int32)
        count = jnp.minimum(count + 1, self.slots)
        stop = t + jnp.where(count < self.slots, 1, repetitions + 1)
        return slot, stop, [count, order]

    def _least_needed(self, positions: Any, t: Any) -> Any:
        """Which of the stored carries, in order and but the first, to give up for that of step `t`.

        Giving up number k joins the segments before and after it, and each later segment is
        reversed with one slot more than before.
        """
        ends = jnp.append(positions[1:], t)
        lengths = ends - positions
        free = np.arange(self.slots, dtype=np.int32)[::-1]  # slots free for each segment
        unchanged = self._work(lengths, free)
        shifted = self._work(lengths, np.minimum(free + 1, self.slots - 1))
        joined = self._work(lengths[:-1] + lengths[1:], free[:-1])
        before = jnp.cumsum(unchanged) - unchanged
        after = jnp.cumsum(shifted[::-1])[::-1] - shifted
        return 1 + lax.argmin(before[:-1] + joined + after[1:], 0, jnp.int32)

    def _work(self, lengths: Any, free: np.ndarray) -> Any:
        """The steps computed again to reverse segments: r m - C(a + r, a + 1), with a slots."""
        rows = jnp.asarray(self.binomials)[free + 1]
        repetitions = jnp.sum(rows < lengths[:, None], axis=1, dtype=jnp.int32)
        # Interpreters that give every array a derivative, as jet does, must be told of none.
        table = lax.stop_gradient(jnp.asarray(self.less))
        less = table[free + 1, repetitions]
        return repetitions.astype(jnp.float32) * lengths.astype(jnp.float32) - less
