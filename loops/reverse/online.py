"""Which carries to keep while a loop runs whose number of steps nobody knows yet.

Carries are kept at events only. Between two events a step costs one comparison; an event costs
about 12 operations on vectors as long as there are slots. Three rules make up the schedule.

When. Let r, the sweeps, be the least with `steps < reach(c, r + 1)` for the c slots, that is what
the offline optimum for the steps so far would have (`schedules.placement`). Events are 2 r steps
apart (1 apart while r is 0), and in addition there is one at each boundary

    reach(c, r),  + reach(c - 1, r),  + reach(c - 2, r),  ...,  + reach(2, r),

where the longest segments that are optimal for r end. In the last of these r grows by one; the
next event, r + 2 steps later with the old r, is the first boundary of the new r. While r is 0
every step is a boundary, and the slots fill one after the other.

Which. The new carry needs a slot. Of the kept carries but the first, the one goes without which the
segments are best: segment i, reversed with c - i slots, has the length m for the least cost if

    reach(c - i, r - 1) <= m <= reach(c - i, r);

each step that it is longer or shorter costs more by the number of r's that it is off, and the sum
of that over the segments is to be least. Of equals the oldest goes: room behind a young carry is
of use later.

How much. Counting the r's exactly takes a search in a table; `Table.offsets` looks at the r's that
are 0, 1, 3, 7, ... off and counts each for those up to the next. All that a running program needs
is `Table`, small integers made in advance. The advances on the backward pass are the fewest while
`steps < reach(c, 2)`. After that, up to 5000 steps and 50 slots, they are 0.4 % more on average, at
most 18 % (11 steps, 2 slots), and from 1000 steps on at most 5.6 % (2301 steps, 22 slots).

Also optimal up to `reach(c, 2)` is the first algorithm of Stumm and Walther (2010, "New algorithms
for optimal online checkpointing", SIAM J. Sci. Comput. 32(2)); their second goes on to the third
bound. Wang, Moin and Iaccarino (2009, "Minimal repetition dynamic checkpointing algorithm for
unsteady adjoint calculation", SIAM J. Sci. Comput. 31(4)) keep the largest number of advances over
any one step the least possible, for any length. Here it is the sum that is kept small.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loops.reverse.schedules import check_steps_and_slots, reach

LARGEST = 2**31 - 1


class Table(NamedTuple):
    """The integers that the rule reads while the loop runs, none above 2**31 - 1.

    Attributes:
      reach: `reach[q + 1][k]` is `reach(k, q)` or 2**31 - 1 if that is less, for q from -1 to the
        last row and k from 0 to the number of slots. The last row is 2**31 - 1 throughout.
      offsets: 0, 1, 3, 7, ..., as many as it takes to reach over the table.
      weights: 1, 2, 4, 8, ..., from each offset to the next.
    """

    reach: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    weights: tuple[int, ...]


def make_table(slots: int, max_steps: int = LARGEST) -> Table:
    """The table for so many slots and at most so many steps.

    Args:
      slots: carries that can be kept, the first one included; at least 3, because with 1 or 2 slots
        the rule has no choice and reads no table.
      max_steps: no loop runs longer; one that does is placed worse, but correctly.

    Returns:
      The table. It has 2347 rows for 3 slots, 193 for 5, 38 for 10, 15 for 30.

    Example:
      >>> table = make_table(3, max_steps=30)
      >>> table.reach[:4]
      ((0, 0, 0, 0), (1, 1, 1, 1), (1, 2, 3, 4), (1, 3, 6, 10))
      >>> table.offsets, table.weights
      ((0, 1, 3), (1, 2, 4))
    """
    most = bisect.bisect_left(range(max_steps), max_steps, key=lambda q: reach(slots, q))
    rows = [tuple(min(reach(k, q), LARGEST) for k in range(slots + 1)) for q in range(-1, most + 2)]
    rows.append((LARGEST,) * (slots + 1))
    weights = tuple(2**i for i in range(most.bit_length()))
    return Table(tuple(rows), tuple(weight - 1 for weight in weights), weights)


class State(NamedTuple):
    """What a running loop remembers of its placement.

    Attributes:
      positions: steps before which the kept carries are, in increasing order, the first of them 0.
      slots: the slot of each.
      sweeps: r.
      row: the slots of the segment that ends at the boundary.
      boundary: the next boundary.
      event: the step before which the next carry is to be kept, if there is such a step.
    """

    positions: tuple[int, ...]
    slots: tuple[int, ...]
    sweeps: int
    row: int
    boundary: int
    event: int


def start(slots: int) -> State:
    """The state before step 0, whose carry is in slot 0.

    Example:
      >>> start(3)
      State(positions=(0,), slots=(0,), sweeps=0, row=3, boundary=1, event=1)
    """
    first = 1 if slots > 1 else LARGEST
    return State((0,), (0,), sweeps=0, row=slots, boundary=first, event=first)


def keep(state: State, slots: int, table: Table | None) -> State:
    """The state after an event: the carry before step `state.event` is kept.

    To be called only if that step will be run. In the words of a program that keeps c integers,

        if positions are c:  j = leaving(positions, event, sweeps)
                             positions = positions with j taken out
        positions, slots += event, the slot that is free
        if event == boundary and row > 2:  row -= 1;  boundary += reach(row, sweeps)
        elif event == boundary:            boundary += sweeps + 2;  sweeps += 1;  row = c
        event = min(event + max(1, 2 * sweeps), boundary)

    where the lines about the boundary come first, because `leaving` is to know the new sweeps.

    Args:
      state: the state before the event.
      slots: carries that can be kept, the first one included; at least 2.
      table: `make_table` of as many slots, or None for 2 slots.

    Returns:
      The new state; its last position is the event and its last slot the one to write.
    """
    step = state.event
    sweeps, row, boundary = state.sweeps, state.row, state.boundary
    if step == boundary and row > 2:
        row -= 1
        boundary += reach(row, sweeps)
    elif step == boundary:
        boundary += sweeps + 2
        sweeps += 1
        row = slots
    positions, used = state.positions, state.slots
    free = len(used)
    if free == slots:
        j = leaving(positions, step, sweeps, table)
        free = used[j]
        positions = positions[:j] + positions[j + 1 :]
        used = used[:j] + used[j + 1 :]
    event = min(step + max(1, 2 * sweeps), boundary)
    return State((*positions, step), (*used, free), sweeps, row, boundary, event)


def leaving(positions: Sequence[int], step: int, sweeps: int, table: Table | None) -> int:
    """Which kept carry gives its slot to the one before `step`.

    Taking out the j-th of c joins the segments before and after it. The segments behind then have
    one slot more each. With q = [*positions, step], d = the differences of q, k = c, ..., 1, the
    number of slots of each of the segments d, and `misfit` elementwise,

        stay = misfit(d, k)                      # in front of the join nothing changes
        more = misfit(d, k + 1)                  # behind it (the first of d is never there)
        join = misfit(d[:-1] + d[1:], k[:-1])    # joined at j = 1, ..., c - 1
        j = 1 + argmin over j of sum(stay[:j - 1]) + join[j - 1] + sum(more[j + 1:])

    is an exclusive and a reversed cumulative sum and an argmin.

    Args:
      positions: as many increasing steps as there are slots, the first of them 0.
      step: the step whose carry is to be kept.
      sweeps: r.
      table: `make_table` of as many slots, or None for 2 slots.

    Returns:
      An index into `positions`, at least 1.
    """
    c = len(positions)
    if table is None:
        return c - 1
    ends = [*positions, step]
    lengths = [end - begin for begin, end in itertools.pairwise(ends)]
    stay = [misfit(m, c - i, sweeps, table) for i, m in enumerate(lengths)]
    more = [0] + [misfit(m, c - i + 1, sweeps, table) for i, m in enumerate(lengths) if i]
    join = [misfit(ends[j + 1] - ends[j - 1], c - j + 1, sweeps, table) for j in range(1, c)]
    costs = [sum(stay[: j - 1]) + join[j - 1] + sum(more[j + 1 :]) for j in range(1, c)]
    return 1 + costs.index(min(costs))


def misfit(length: int, slots: int, sweeps: int, table: Table) -> int:
    """How many advances more than r a step a segment of this length costs, about.

    It is 0 from `reach(slots, r - 1)` to `reach(slots, r)` and grows on both sides: by 1 a step
    where r is off by 1, by 3 where it is off by 2 or 3, by 7 where it is off by 4 to 7.

    In a running program this is a sum over 2 len(offsets) rows of the table, the same ones for all
    segments. Sums may be of float32: they are exact where the optimum is met (`steps < reach(c,
    2)`), and do not overflow where int32 would.
    """
    last = len(table.reach) - 1
    total = 0
    for offset, weight in zip(table.offsets, table.weights):
        longest = table.reach[min(sweeps + offset + 1, last)][slots]
        least = table.reach[max(sweeps - offset, 0)][slots]
        total += weight * (max(0, length - longest) + max(0, least - length))
    return total


def states(steps: int, slots: int) -> Iterator[State]:
    """The states of a loop that turns out to have so many steps: at first, and after each event.

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, the first one included; at least 1.

    Yields:
      One state more than there are events.

    Raises:
      ValueError: fewer than 0 steps, or no slots.
    """
    check_steps_and_slots(steps, slots)
    table = make_table(slots, max(steps, 1)) if slots > 2 else None
    state = start(slots)
    yield state
    while state.event < steps:
        state = keep(state, slots, table)
        yield state


def place(steps: int, slots: int) -> tuple[int, ...]:
    """The steps whose carries are kept when a loop turns out to have so many steps.

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, the first one included; at least 1.

    Returns:
      Increasing step numbers, the first of them 0, at most `slots`.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> place(100, 3)
      (0, 84, 96)
    """
    *_, last = states(steps, slots)
    return last.positions
