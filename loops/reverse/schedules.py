"""The fewest advances to reverse a loop of known length with few slots, and where to keep carries.

To reverse step s one needs the carry before it. A slot keeps one carry; a carry that is not kept is
recomputed by advancing from an earlier one that is. Counted are advances, one for each step that is
run only to get to the next carry; evaluating a step while it is reversed is not one.

Everything follows from `reach(c, r) = C(c + r, c)`, the number of steps that can be reversed with c
slots when no step is advanced over more than r times, the slot of the first carry being one of the
c (Griewank 1992, "Achieving logarithmic growth of temporal and spatial complexity in reverse
automatic differentiation"; Griewank and Walther 2000, "Algorithm 799: Revolve", ACM TOMS 26(1)).
Reversing one step more never costs less, so the m-th step costs r more, `reach(c, r - 1) < m <=
reach(c, r)`: that is the whole theory, and `advances` is its sum.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence


def reach(slots: int, sweeps: int) -> int:
    """How many steps can be reversed with so many slots and advances over each step.

    Args:
      slots: carries that can be kept, the first one included.
      sweeps: how often any one step may be advanced over; below 0 there is nothing to reverse.

    Returns:
      C(slots + sweeps, slots), or 0.

    Example:
      >>> [reach(3, sweeps) for sweeps in range(-1, 4)]
      [0, 1, 4, 10, 20]
    """
    return math.comb(slots + sweeps, slots) if sweeps >= 0 else 0


def sweeps_for(steps: int, slots: int) -> int:
    """The least `sweeps` with `steps <= reach(slots, sweeps)`.

    Also what one more step adds to `advances(steps - 1, slots)`.

    Args:
      steps: number of steps, at least 1.
      slots: carries that can be kept, at least 1.

    Returns:
      The number of sweeps, 0 for one step.

    Raises:
      ValueError: there are no steps or no slots.

    Example:
      >>> [sweeps_for(steps, 3) for steps in (1, 2, 4, 5, 10, 11)]
      [0, 1, 1, 2, 2, 3]
    """
    check_steps_and_slots(steps, slots, least_steps=1)
    return bisect.bisect_left(range(steps), steps, key=lambda sweeps: reach(slots, sweeps))


def advances(steps: int, slots: int) -> int:
    """Revolve's optimum: the fewest advances that reverse the steps from their first carry alone.

    `advances(n, c)` satisfies, with 0 for one step and n (n - 1) / 2 for one slot,

        advances(n, c) = min(j + advances(n - j, c - 1) + advances(j, c) for 0 < j < n)

    and equals r n - C(c + r, r - 1) with r = `sweeps_for(n, c)` (Griewank and Walther 2000).

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, at least 1; one of them holds the first carry.

    Returns:
      The number of advances.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> advances(10, 1), advances(10, 3), advances(10, 10)
      (45, 15, 9)
    """
    check_steps_and_slots(steps, slots)
    if not steps:
        return 0
    sweeps = sweeps_for(steps, slots)
    return sweeps * steps - reach(slots + 1, sweeps - 1)


def next_checkpoint(steps: int, slots: int) -> int:
    """Where `advances` puts the next kept carry, counted from the first of the steps.

    The steps before it are reversed last, with all slots, the others first, with one slot less. Any
    answer is as good that leaves `reach(k - 1, r - 1)` to `reach(k - 1, r)` of them to the k - 1
    slots and `reach(k, r - 2)` to `reach(k, r - 1)` to the k, r = `sweeps_for(steps, k)`. This one
    is Revolve's, with which the fewest carries are kept on the whole, as long as none is kept to
    reverse two steps:

        middle = steps - reach(k - 1, r - 1) - reach(k - 2, r - 1)
        max(reach(k, r - 2), min(middle, reach(k, r - 1)))

    Args:
      steps: number of steps, at least 2.
      slots: carries that can be kept, at least 2; one of them holds the first carry.

    Returns:
      A number of steps to advance, at least 1 and less than `steps`.

    Raises:
      ValueError: there is no step or no slot to choose.

    Example:
      >>> next_checkpoint(10, 3), next_checkpoint(8, 3)
      (4, 3)
    """
    check_steps_and_slots(steps, slots, least_steps=2, least_slots=2)
    sweeps = sweeps_for(steps, slots)
    middle = steps - reach(slots - 1, sweeps - 1) - reach(slots - 2, sweeps - 1)
    # With one sweep reach(slots, sweeps - 2) is 0, and of two steps one has to be left.
    return max(1, reach(slots, sweeps - 2), min(middle, reach(slots, sweeps - 1)))


def extra_advances(steps: int, slots: int) -> int:
    """The fewest advances on the backward pass when the primal pass may fill the slots.

    After a placement the last segment is reversed with the slots that are left, then the one before
    with one slot more, and so on (`advances_after`). The best placement makes this

        extra_advances(n, c) = advances(n + 1, c) - n

    because that is what Revolve does with one step more: its first sweep advances over n steps and
    fills the slots, and the step on top needs no advance of its own.

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, at least 1; one of them holds the first carry.

    Returns:
      The number of advances, the primal pass not counted.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> extra_advances(100, 12), extra_advances(1000, 2)
      (98, 27864)
    """
    check_steps_and_slots(steps, slots)
    return advances(steps + 1, slots) - steps


def placement(steps: int, slots: int) -> tuple[int, ...]:
    """The steps before which the primal pass keeps the carry, so that `extra_advances` is reached.

    With r = `sweeps_for(steps + 1, c) - 1`, any segments will do whose lengths lie from
    `reach(k, r - 1)` to `reach(k, r)`, k = c, ..., 1 in the order of time: there one step more adds
    r and the last one has added no more than r. These are where Revolve's first sweep over one step
    more keeps its carries, `next_checkpoint` after `next_checkpoint`, which comes to

        spare = steps + 1 - reach(c, r)
        taken = reach(c - 1, r + 1) - reach(k - 1, r + 1)
        start of the segment with k slots =
            steps + 1 - reach(k, r) - max(min(spare, reach(k - 1, r)), spare - taken)

    so that a program finds all of them at once from tables. With fewer steps than slots the last
    of these are equal.

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, at least 1; one of them holds the first carry.

    Returns:
      Increasing step numbers, the first of them 0, at most `slots`.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> placement(9, 3), placement(8, 3), placement(2, 3)
      ((0, 4, 7), (0, 4, 6), (0, 1))
    """
    check_steps_and_slots(steps, slots)
    if not steps:
        return (0,)
    sweeps = sweeps_for(steps + 1, slots) - 1
    spare = steps + 1 - reach(slots, sweeps)

    def start(row: int) -> int:
        taken = reach(slots - 1, sweeps + 1) - reach(row - 1, sweeps + 1)
        longer = max(min(spare, reach(row - 1, sweeps)), spare - taken)
        return steps + 1 - reach(row, sweeps) - longer

    return tuple(dict.fromkeys(start(row) for row in range(slots, 0, -1)))


def advances_after(positions: Sequence[int], steps: int, slots: int) -> int:
    """The fewest advances on the backward pass after a given placement.

    The i-th of the k segments is reversed with the slots that hold no earlier carry, slots - i.

    Args:
      positions: increasing step numbers whose carries are kept, the first of them 0.
      steps: number of steps, at least 0.
      slots: carries that can be kept, at least `len(positions)`.

    Returns:
      The number of advances, the primal pass not counted.

    Raises:
      ValueError: no such placement is possible.

    Example:
      >>> advances_after((0, 4, 7), 9, 3), extra_advances(9, 3)
      (6, 6)
    """
    check_placement(positions, steps, slots)
    ends = [*positions[1:], steps]
    lengths = [end - start for start, end in zip(positions, ends, strict=True)]
    return sum(advances(length, slots - i) for i, length in enumerate(lengths))


def slots_for(steps: int, sweeps: int = 1) -> int:
    """The fewest slots with which the backward pass advances over no step more than `sweeps` times.

    About sqrt(2 steps) for one sweep, so that the backward pass adds less than one more run of the
    loop; about (sweeps + 1) / e * steps ** (1 / (sweeps + 1)) for a few.

    Args:
      steps: number of steps, at least 0.
      sweeps: how often any one step may be advanced over after the primal pass, at least 0.

    Returns:
      A number of slots, at least 1; with it `extra_advances` is at most `sweeps * steps`.

    Raises:
      ValueError: fewer than 0 steps or sweeps.

    Example:
      >>> slots_for(1000), slots_for(1000, sweeps=2), slots_for(1000, sweeps=0)
      (44, 17, 1000)
    """
    if steps < 0 or sweeps < 0:
        raise ValueError(f"{steps} steps in {sweeps} sweeps: neither may be negative.")
    fewer = range(1, steps + 1)
    return 1 + bisect.bisect_left(fewer, steps + 1, key=lambda slots: reach(slots, sweeps + 1))


def check_steps_and_slots(
    steps: int, slots: int, least_steps: int = 0, least_slots: int = 1
) -> None:
    """Raises a ValueError unless there are at least so many steps and slots."""
    if steps < least_steps:
        raise ValueError(f"{steps} steps: there must be at least {least_steps}.")
    if slots < least_slots:
        raise ValueError(f"{slots} slots: there must be at least {least_slots}.")


def check_placement(positions: Sequence[int], steps: int, slots: int) -> None:
    """Raises a ValueError unless carries before these steps can have been kept in the slots."""
    check_steps_and_slots(steps, slots, least_slots=len(positions))
    increasing = all(begin < end for begin, end in itertools.pairwise(positions))
    if not increasing or 0 not in positions[:1] or positions[-1] >= max(steps, 1):
        raise ValueError(f"{positions}: the steps must increase from 0 to less than {steps}.")
