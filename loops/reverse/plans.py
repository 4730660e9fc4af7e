"""A reversal as data: what to keep, advance and reverse, to be printed, checked and counted.

One carry is in hand, called the current one; it is known by the step that it is to go into. The
primal pass begins with the carry before step 0 and ends with the loop's result. The backward pass
ends when step 0 is reversed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loops.reverse import online, schedules


class Store(NamedTuple):
    """Copies the current carry, which is the one before `step`, into an empty slot."""

    slot: int
    step: int


class Restore(NamedTuple):
    """Makes the slot's carry, which is the one before `step`, the current one."""

    slot: int
    step: int


class Advance(NamedTuple):
    """Runs steps `start`, ..., `stop - 1` on the current carry."""

    start: int
    stop: int


class Reverse(NamedTuple):
    """Reverses a step, from the current carry and the cotangents of what the step returned."""

    step: int


class Free(NamedTuple):
    """Empties the slot, which holds the carry before `step`."""

    slot: int
    step: int


Action = Store | Restore | Advance | Reverse | Free


class Plan(NamedTuple):
    """How a loop is run and reversed.

    Attributes:
      steps: number of steps of the loop.
      slots: carries that can be kept, the first one included.
      primal: the actions while the loop runs, before anything is reversed.
      backward: the actions after it.
    """

    steps: int
    slots: int
    primal: tuple[Action, ...]
    backward: tuple[Action, ...]

    def __str__(self) -> str:
        title = f"{self.steps} steps, {self.slots} slots, {self.extra_advances} extra advances"
        return "\n".join(
            [
                title,
                "primal pass:",
                *(f"  {action}" for action in self.primal),
                "backward pass:",
                *(f"  {action}" for action in self.backward),
            ]
        )

    @property
    def extra_advances(self) -> int:
        """Steps that the backward pass runs only to get to a carry that was not kept."""
        return _count_advances(self.backward)

    @property
    def primal_advances(self) -> int:
        """Steps that the primal pass runs."""
        return _count_advances(self.primal)


def plan_reversal(steps: int, slots: int) -> Plan:
    """The plan with the fewest extra advances when the number of steps is known beforehand.

    Args:
      steps: number of steps, at least 0.
      slots: carries that can be kept, the first one included; at least 1.

    Returns:
      A plan with `schedules.extra_advances(steps, slots)` extra advances.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> print(plan_reversal(4, 2))
      4 steps, 2 slots, 2 extra advances
      primal pass:
        Store(slot=0, step=0)
        Advance(start=0, stop=2)
        Store(slot=1, step=2)
        Advance(start=2, stop=4)
      backward pass:
        Restore(slot=1, step=2)
        Advance(start=2, stop=3)
        Reverse(step=3)
        Restore(slot=1, step=2)
        Reverse(step=2)
        Free(slot=1, step=2)
        Restore(slot=0, step=0)
        Advance(start=0, stop=1)
        Reverse(step=1)
        Restore(slot=0, step=0)
        Reverse(step=0)
        Free(slot=0, step=0)
    """
    return plan_after(schedules.placement(steps, slots), steps, slots)


def plan_after(positions: Sequence[int], steps: int, slots: int) -> Plan:
    """The plan with the fewest extra advances after any placement.

    With `positions=(0,)` that is Revolve's schedule without its first sweep.

    Args:
      positions: increasing steps before which the primal pass keeps the carry, the first of them 0.
      steps: number of steps, at least 0.
      slots: carries that can be kept, at least `len(positions)`.

    Returns:
      A plan with `schedules.advances_after(positions, steps, slots)` extra advances.

    Raises:
      ValueError: no such placement is possible.

    Example:
      >>> plan_after((0,), 10, 3).extra_advances
      15
    """
    kept = [(step, slot) for slot, step in enumerate(positions)]
    schedules.check_placement(positions, steps, slots)
    primal: list[Action] = []
    for (step, slot), stop in zip(kept, [*positions[1:], steps]):
        primal.append(Store(slot, step))
        primal.extend(_advance(step, stop))
    return Plan(steps, slots, tuple(primal), tuple(_backward(kept, steps, slots)))


def plan_online(steps: int, slots: int) -> Plan:
    """What happens when nobody knows the number of steps until the loop has ended.

    Args:
      steps: the number of steps that it turns out to be, at least 0.
      slots: carries that can be kept, the first one included; at least 1.

    Returns:
      A plan that keeps carries as `online` does, and then reverses with the fewest advances.

    Raises:
      ValueError: fewer than 0 steps, or no slots.

    Example:
      >>> plan_online(1000, 3).extra_advances, plan_reversal(1000, 3).extra_advances
      (11698, 11172)
    """
    states = list(online.states(steps, slots))
    primal: list[Action] = [Store(0, 0)]
    for before, after in itertools.pairwise(states):
        primal.append(Advance(before.positions[-1], before.event))
        slot = after.slots[-1]
        if slot in before.slots:
            primal.append(Free(slot, before.positions[before.slots.index(slot)]))
        primal.append(Store(slot, before.event))
    last = states[-1]
    primal.extend(_advance(last.positions[-1], steps))
    kept = list(zip(last.positions, last.slots))
    return Plan(steps, slots, tuple(primal), tuple(_backward(kept, steps, slots)))


def _backward(kept: list[tuple[int, int]], steps: int, slots: int) -> Iterator[Action]:
    """Reverses the last segment until none is left; `kept` is pairs of step and slot, a stack."""
    kept = list(kept)
    empty = sorted(set(range(slots)) - {slot for _, slot in kept}, reverse=True)
    current, end = steps, steps
    while kept:
        step, slot = kept[-1]
        length = end - step
        if length and current != step:
            yield Restore(slot, step)
        # Of two steps the first is advanced over once, and a carry kept for it is of no more use.
        if length > 2 and empty:
            current = step + schedules.next_checkpoint(length, len(empty) + 1)
            kept.append((current, empty.pop()))
            yield Advance(step, current)
            yield Store(kept[-1][1], current)
        elif length:
            current = end = end - 1
            yield from _advance(step, current)
            yield Reverse(current)
        if step == end:
            kept.pop()
            empty.append(slot)
            yield Free(slot, step)


def _advance(start: int, stop: int) -> Iterator[Advance]:
    if start < stop:
        yield Advance(start, stop)


def _count_advances(actions: Sequence[Action]) -> int:
    return sum(action.stop - action.start for action in actions if isinstance(action, Advance))
