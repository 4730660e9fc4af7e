"""Plans: each is a reversal within its limits, costs what the closed form says, and computes."""

import ast
import dataclasses
import math
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops.reverse
from loops.reverse import online, schedules
from loops.reverse.plans import (
    Advance,
    Free,
    Plan,
    Restore,
    Reverse,
    Store,
    plan_after,
    plan_online,
    plan_reversal,
)
from loops.reverse.replay import PlanError, replay

PLAIN = ["online", "plans", "replay", "schedules"]


def check(plan, steps, slots, extra):
    """A replay finds the plan sound, and as cheap as the closed form and the plan itself say."""
    found = replay(plan, slots)

    assert (steps, extra) == (found.primal_advances, found.extra_advances)
    assert (steps, extra) == (plan.primal_advances, plan.extra_advances)
    assert min(steps, 1) <= found.most_kept <= slots


@pytest.mark.parametrize("slots", range(1, 9))
def test_plans_are_sound_and_optimal(slots):
    """For any number of steps: the optimum with the length known, the closed form without."""
    for steps in range(61):
        check(plan_reversal(steps, slots), steps, slots, schedules.extra_advances(steps, slots))
        extra = schedules.advances_after(online.place(steps, slots), steps, slots)
        check(plan_online(steps, slots), steps, slots, extra)
        check(plan_after((0,), steps, slots), steps, slots, schedules.advances(steps, slots))


@pytest.mark.parametrize(
    ("steps", "slots"), [(1000, 1), (1000, 2), (5000, 7), (4000, 31), (1000, 1500)]
)
def test_large_plans_are_sound_and_optimal(steps, slots):
    """The same with thousands of steps, and with more slots than steps."""
    check(plan_reversal(steps, slots), steps, slots, schedules.extra_advances(steps, slots))
    extra = schedules.advances_after(online.place(steps, slots), steps, slots)
    check(plan_online(steps, slots), steps, slots, extra)


@given(st.data())
def test_any_placement_can_be_reversed(data):
    """The way back is sound and costs the closed form after any placement, not only good ones."""
    steps = data.draw(st.integers(1, 300))
    others = data.draw(st.sets(st.integers(1, steps - 1), max_size=12)) if steps > 1 else set()
    positions = (0, *sorted(others))
    slots = len(positions) + data.draw(st.integers(0, 5))
    extra = schedules.advances_after(positions, steps, slots)

    check(plan_after(positions, steps, slots), steps, slots, extra)


@given(steps=st.integers(1, 500), sweeps=st.integers(1, 5))
def test_no_step_is_run_more_often_than_the_slots_promise(steps, sweeps):
    """With `slots_for` slots the replay counts no step more often than `sweeps` times."""
    plan = plan_reversal(steps, schedules.slots_for(steps, sweeps))

    assert sweeps >= replay(plan).most_runs


@dataclasses.dataclass
class Gradient:
    """Runs a plan on x -> sin(3 x): the carry in hand, the kept ones, and the cotangent."""

    carry: float
    cotangent: float = 1.0
    kept: dict[int, float] = dataclasses.field(default_factory=dict)

    def run(self, actions):
        """Follows the actions, with no check: what a compiled backward pass would do."""
        for action in actions:
            match action:
                case Store(slot, _):
                    self.kept[slot] = self.carry
                case Restore(slot, _):
                    self.carry = self.kept[slot]
                case Advance(start, stop):
                    for _ in range(start, stop):
                        self.carry = math.sin(3 * self.carry)
                case Reverse(_):
                    self.cotangent *= 3 * math.cos(3 * self.carry)
                case Free(slot, _):
                    del self.kept[slot]


@pytest.mark.parametrize("plan", [plan_reversal(50, 4), plan_online(50, 4), plan_after((0,), 9, 9)])
def test_a_plan_computes_a_gradient(plan):
    """Followed with floats in the place of step numbers, a plan gives the chain rule's product."""
    carries = [0.3]
    for _ in range(plan.steps):
        carries.append(math.sin(3 * carries[-1]))
    expected = 1.0
    for carry in reversed(carries[:-1]):
        expected *= 3 * math.cos(3 * carry)
    machine = Gradient(0.3)
    machine.run(plan.primal)

    assert carries[-1] == machine.carry
    machine.run(plan.backward)
    assert expected == machine.cotangent
    assert {} == machine.kept


def test_printed():
    """A plan is printed with its size, its cost, and an action on each line."""
    lines = str(plan_online(3, 2)).splitlines()

    assert lines[:3] == [
        "3 steps, 2 slots, 1 extra advances",
        "primal pass:",
        "  Store(slot=0, step=0)",
    ]
    assert lines.count("backward pass:") == 1
    assert lines[-1] == "  Free(slot=0, step=0)"


SOUND = Plan(
    2,
    2,
    (Store(0, 0), Advance(0, 1), Store(1, 1), Advance(1, 2)),
    (Restore(1, 1), Reverse(1), Free(1, 1), Restore(0, 0), Reverse(0), Free(0, 0)),
)


def test_a_plan_written_by_hand_is_sound():
    """The plan that the broken ones below are made from is itself a reversal."""
    assert 0 == replay(SOUND).extra_advances


@pytest.mark.parametrize(
    ("primal", "backward", "index", "problem"),
    [
        ({1: Advance(1, 2)}, {}, 1, "the current carry is the one before 0"),
        ({3: Advance(1, 3)}, {}, 3, "there are no such steps"),
        ({2: Store(0, 1)}, {}, 2, "the slot is not empty"),
        ({2: Store(2, 1)}, {}, 2, "there are 2 slots"),
        ({2: Store(-1, 1)}, {}, 2, "there are 2 slots"),
        ({2: Store(1, 2)}, {}, 2, "the current carry is the one before 1"),
        ({3: None}, {}, 3, "the primal pass has not run all steps"),
        ({}, {0: None}, 4, "the current carry is the one before 2"),
        ({}, {0: Restore(0, 1)}, 4, "it holds the carry before 0"),
        ({}, {3: Restore(1, 0)}, 7, "the slot is empty"),
        ({}, {1: Reverse(0)}, 5, "the current carry is the one before 1"),
        ({}, {0: Restore(0, 0), 1: Reverse(0)}, 5, "step 1 is to be reversed"),
        ({}, {2: Reverse(1)}, 6, "step 0 is to be reversed"),
        ({}, {2: Free(1, 0)}, 6, "it holds the carry before 1"),
        ({}, {4: None, 5: None}, 8, "1 steps are not reversed"),
        ({3: Reverse(1)}, {}, 4, "the primal pass has not run all steps"),
    ],
)
def test_a_broken_plan_is_found(primal, backward, index, problem):
    """Each way to break a plan is found at the action that breaks it; None leaves an action out."""

    def broken(actions, changes):
        changed = [changes.get(i, action) for i, action in enumerate(actions)]
        return tuple(action for action in changed if action is not None)

    plan = Plan(2, 2, broken(SOUND.primal, primal), broken(SOUND.backward, backward))
    with pytest.raises(PlanError, match=problem) as caught:
        replay(plan)

    assert index == caught.value.index


def test_too_few_slots_are_found():
    """A plan for c slots is refused where there is one less, with the action as data."""
    with pytest.raises(PlanError, match="there are 3 slots") as caught:
        replay(plan_reversal(100, 4), slots=3)

    assert isinstance(caught.value.action, Store)
    assert caught.value.action.slot == 3
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 (ours)


@pytest.mark.parametrize("module", PLAIN)
def test_no_jax_in_plans(module):
    """Schedules are about step numbers: they import the standard library and one another."""
    source = Path(loops.reverse.__file__).with_name(f"{module}.py").read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)]
    imports_from = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    names += [node.module or "" for node in imports_from]

    assert "typing" in names or "math" in names
    assert all(
        name in {"loops.reverse", *(f"loops.reverse.{other}" for other in PLAIN)}
        or name.partition(".")[0] in sys.stdlib_module_names
        for name in names
    )
