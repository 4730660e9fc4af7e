"""Replays a plan against its storage limits: is it a reversal at all, and what does it cost?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loops.reverse.plans import Action, Advance, Free, Plan, Restore, Reverse, Store


class Replay(NamedTuple):
    """What happened while a plan was replayed.

    Attributes:
      primal_advances: steps that the primal pass ran.
      extra_advances: steps that the backward pass ran without reversing them.
      most_kept: the most carries that were kept at any time.
      stores: how often a carry was written to a slot, in both passes.
      restores: how often a slot's carry was read.
      most_runs: the most often that any one step was run on the backward pass without reversing it.
    """

    primal_advances: int
    extra_advances: int
    most_kept: int
    stores: int
    restores: int
    most_runs: int


class PlanError(ValueError):
    """A plan asks for what is not there, or leaves something undone.

    Attributes:
      problem: what is wrong, in words.
      index: which action of the primal and then the backward pass; their number at the end.
      action: the action, or None at the end of a pass.
    """

    def __init__(self, problem: str, index: int, action: Action | None) -> None:
        super().__init__(problem, index, action)
        self.problem = problem
        self.index = index
        self.action = action

    def __str__(self) -> str:
        if self.action is None:
            return f"after {self.index} actions: {self.problem}"
        return f"action {self.index}, {self.action}: {self.problem}"


def replay(plan: Plan, slots: int | None = None) -> Replay:
    """Follows the plan action by action, with step numbers in the place of carries.

    Args:
      plan: the plan to check.
      slots: how many carries may be kept, `plan.slots` if None.

    Returns:
      Counts, read off the replay and not off a formula.

    Raises:
      PlanError: a carry is not there when it is needed or is another than the plan says, a slot is
        out of range or not empty, a step is not reversed exactly once in descending order, or the
        primal pass does not end with the result of the loop.

    Example:
      >>> from loops.reverse.plans import plan_reversal
      >>> replay(plan_reversal(100, 12)).extra_advances
      98
      >>> replay(plan_reversal(100, 12), slots=11)
      Traceback (most recent call last):
      loops.reverse.replay.PlanError: action 22, Store(slot=11, step=97): there are 11 slots.
    """
    machine = _Machine(plan.steps, plan.slots if slots is None else slots)
    machine.follow(plan.primal)
    machine.expect(machine.current == plan.steps, "the primal pass has not run all steps.")
    machine.expect(machine.to_reverse == plan.steps, "the primal pass has reversed a step.")
    primal_advances = sum(machine.runs)
    machine.runs = [0] * plan.steps
    machine.follow(plan.backward)
    machine.expect(machine.to_reverse == 0, f"{machine.to_reverse} steps are not reversed.")
    return Replay(
        primal_advances,
        sum(machine.runs),
        machine.most_kept,
        machine.stores,
        machine.restores,
        max(machine.runs, default=0),
    )


class _Machine:
    """Slots, the current carry, and the steps that are still to be reversed."""

    def __init__(self, steps: int, slots: int) -> None:
        self.slots = slots
        self.kept: dict[int, int] = {}
        self.current = 0
        self.to_reverse = steps
        self.runs = [0] * steps
        self.most_kept = self.stores = self.restores = self.done = 0
        self.action: Action | None = None

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            raise PlanError(problem, self.done, self.action)

    def follow(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.action = action
            match action:
                case Store():
                    self.store(*action)
                case Restore():
                    self.restore(*action)
                case Advance():
                    self.advance(*action)
                case Reverse():
                    self.reverse(*action)
                case Free():
                    self.free(*action)
            self.done += 1
        self.action = None

    def store(self, slot: int, step: int) -> None:
        self.expect(0 <= slot < self.slots, f"there are {self.slots} slots.")
        self.expect(slot not in self.kept, "the slot is not empty.")
        self.expect_current(step)
        self.kept[slot] = step
        self.stores += 1
        self.most_kept = max(self.most_kept, len(self.kept))

    def restore(self, slot: int, step: int) -> None:
        self.expect_kept(slot, step)
        self.current = step
        self.restores += 1

    def advance(self, start: int, stop: int) -> None:
        self.expect_current(start)
        self.expect(start < stop <= len(self.runs), "there are no such steps.")
        for step in range(start, stop):
            self.runs[step] += 1
        self.current = stop

    def reverse(self, step: int) -> None:
        self.expect_current(step)
        self.expect(step == self.to_reverse - 1, f"step {self.to_reverse - 1} is to be reversed.")
        self.to_reverse = step

    def free(self, slot: int, step: int) -> None:
        self.expect_kept(slot, step)
        del self.kept[slot]

    def expect_current(self, step: int) -> None:
        self.expect(self.current == step, f"the current carry is the one before {self.current}.")

    def expect_kept(self, slot: int, step: int) -> None:
        self.expect(slot in self.kept, "the slot is empty.")
        self.expect(self.kept[slot] == step, f"it holds the carry before {self.kept[slot]}.")
