"""Which carries to keep while a loop runs whose number of steps nobody knows yet.

`online_placement` does the same inside a running program; this is the rule in plain Python, as
data that can be looked at, and tests hold the two together.

Carries are kept at events only. As long as a slot is free, each step is one. After that the next
event is r + 1 steps on, where r is the number of sweeps of the best plan for the steps so far. The
new carry takes the slot of the one, not the first, whose loss costs least: the fewest advances of
a backward pass if the loop ended at this step.

Up to 1500 steps and for 2 to 31 slots that is on average 0.2 to 3 % more advances than the offline
optimum. Stumm and Walther (2010, "New algorithms for optimal online checkpointing", SIAM J. Sci.
Comput. 32(2)) and Wang, Moin and Iaccarino (2009, "Minimal repetition dynamic checkpointing
algorithm for unsteady adjoint calculation", SIAM J. Sci. Comput. 31(4)) have rules that need no
search.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from loops.reverse.schedules import advances_after, check_steps_and_slots, sweeps_for

LARGEST = 2**31 - 1


class State(NamedTuple):
    """What a running loop remembers of its placement.

    Attributes:
      positions: steps before which the kept carries are, in increasing order, the first of them 0.
      slots: the slot of each.
      event: the step before which the next carry is to be kept, if there is such a step.
    """

    positions: tuple[int, ...]
    slots: tuple[int, ...]
    event: int


def start(slots: int) -> State:
    """The state before step 0, whose carry is in slot 0.

    Example:
      >>> start(3)
      State(positions=(0,), slots=(0,), event=1)
    """
    return State((0,), (0,), 1 if slots > 1 else LARGEST)


def keep(state: State, slots: int) -> State:
    """The state after an event: the carry before step `state.event` is kept.

    Args:
      state: the state before the event.
      slots: carries that can be kept, the first one included; at least 2.

    Returns:
      The new state; its last position is the event and its last slot the one to write.
    """
    step, positions, used = state.event, state.positions, state.slots
    free = len(used)
    if free == slots:
        j = leaving(positions, step)
        free = used[j]
        positions = positions[:j] + positions[j + 1 :]
        used = used[:j] + used[j + 1 :]
    positions, used = (*positions, step), (*used, free)
    # The best plan for one step more runs no step again more often than this less one.
    distance = sweeps_for(step + 2, slots) if len(used) == slots else 1
    return State(positions, used, step + distance)


def leaving(positions: tuple[int, ...], step: int) -> int:
    """Which kept carry gives its slot to the one before `step`: the first of those that cost least.

    Returns:
      An index into `positions`, at least 1.
    """
    slots = len(positions)

    def cost(j: int) -> int:
        kept = positions[:j] + positions[j + 1 :]
        # The new carry's own slot is one more, and nothing has been run after it.
        return advances_after(kept, step, slots)

    return min(range(1, slots), key=cost)


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
    state = start(slots)
    yield state
    while state.event < steps:
        state = keep(state, slots)
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
      >>> place(10, 3)
      (0, 5, 9)
    """
    *_, last = states(steps, slots)
    return last.positions
