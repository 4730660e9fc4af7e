"""How often the body of a loop with few checkpoints runs, counted while its gradient runs."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from loops.reverse import way_back
from loops.reverse.placement import optimal_positions, tables_for
from loops.reverse.plans import Store, plan_after
from loops.reverse.slots import store
from tests.helpers.evaluations import KINDS, LEAST, ONLINE, START, Counter, computed_again, repeated

KNOWN = [name for name in KINDS if name != "while"]


@functools.cache
def least_by_dynamic_programming(steps: int, checkpoints: int) -> int:
    """The least steps to compute again: the first carry is kept, others where that costs least.

    With the first of m carries kept and c slots in all, the way there may keep another one after j
    steps; the part behind it then has one slot less, and the part before it all of them, but on its
    way there it is run once more.
    """

    @functools.cache
    def again(m: int, c: int) -> int:
        """Steps to run to go back through m steps, of which the first carry is kept."""
        if m <= 1:
            return 0
        if c == 1:
            return m * (m - 1) // 2
        return min(j + again(j, c) + again(m - j, c - 1) for j in range(1, m))

    @functools.cache
    def first(m: int, c: int) -> int:
        """The same if the way there, which is run anyway, keeps carries as it goes."""
        if m <= 1:
            return 0
        if c == 1:
            return m * (m - 1) // 2
        return min(again(j, c) + first(m - j, c - 1) for j in range(1, m))

    return first(steps, checkpoints)


@pytest.mark.parametrize(("steps", "checkpoints"), LEAST)
@pytest.mark.parametrize("name", KNOWN)
def test_known_number_of_steps(name, steps, checkpoints):
    """Where the number of steps is known at entry, no schedule computes fewer steps again."""
    assert computed_again(name, steps, checkpoints) == LEAST[steps, checkpoints]


@pytest.mark.parametrize(("steps", "checkpoints"), ONLINE)
def test_number_of_steps_known_at_the_end(steps, checkpoints):
    """A while loop is within a twentieth of what placement online is known to reach."""
    assert computed_again("while", steps, checkpoints) <= 1.05 * ONLINE[steps, checkpoints]


@pytest.mark.parametrize(("steps", "checkpoints"), [case for case in LEAST if case[0] == 100])
def test_figures_are_the_least_possible(steps, checkpoints):
    """The figures that the others are held to are those of dynamic programming."""
    assert least_by_dynamic_programming(steps, checkpoints) == LEAST[steps, checkpoints]


@pytest.mark.parametrize(("steps", "slots"), [(2, 2), (3, 2), (10, 3), (40, 5), (60, 4)])
def test_way_back_stores_as_often_as_its_plan(monkeypatch, steps, slots):
    """On the way back carries are stored as `plan_after` says: none for the last of two steps."""
    stored = []

    def counting(*args):
        jax.debug.callback(lambda: stored.append(1))
        return store(*args)

    monkeypatch.setattr(way_back, "store", counting)
    step = lambda c, _: (jnp.sin(c), None)
    jax.grad(lambda x: loops.scan(step, x, None, steps, checkpoints=slots)[0])(START)
    jax.effects_barrier()
    placed = optimal_positions(tables_for(slots, steps), steps)
    positions = sorted({int(p) for p in placed if p < steps})
    plan = plan_after(positions, steps, slots)
    assert len(stored) == sum(isinstance(action, Store) for action in plan.backward)


@functools.cache
def counted_gradient(name, checkpoints):
    """A compiled gradient of a loop whose number of steps is an argument, and its counter."""
    counter = Counter()
    run = KINDS[name].run
    gradient = jax.jit(jax.grad(lambda x, n: run(counter.step, x, n, checkpoints)))
    return gradient, counter


@hypothesis.given(steps=st.integers(0, 60), checkpoints=st.sampled_from([1, 2, 3, 7]))
def test_any_number_of_steps(steps, checkpoints):
    """A traced number of steps costs what dynamic programming says, whatever it is."""
    gradient, counter = counted_gradient("traced fori", checkpoints)
    with counter.counting():
        gradient(START, np.int32(steps))
    again = counter.count - 2 * steps
    assert again == least_by_dynamic_programming(steps, checkpoints)


@hypothesis.given(steps=st.integers(0, 60), checkpoints=st.sampled_from([1, 2, 3, 7]))
def test_any_number_of_steps_online(steps, checkpoints):
    """A while loop never computes fewer steps again than the least, and seldom many more."""
    gradient, counter = counted_gradient("while", checkpoints)
    with counter.counting():
        gradient(START, np.int32(steps))
    least = least_by_dynamic_programming(steps, checkpoints)
    assert least <= counter.count - 2 * steps <= 1.5 * least + checkpoints


def test_forward_mode_computes_nothing_again():
    """A derivative along a tangent evaluates the body once a step."""
    counter = Counter()
    along = jax.jit(lambda x: jax.jvp(lambda x: repeated(counter.step, x, 20, 3), (x,), (x,)))
    with counter.counting():
        jax.block_until_ready(along(START))
    assert counter.count == 20


def test_no_derivative_no_work():
    """A loop that nobody differentiates evaluates its body once a step."""
    counter = Counter()
    run = jax.jit(lambda x: repeated(counter.step, x, 20, 3))
    with counter.counting():
        jax.block_until_ready(run(START))
    assert counter.count == 20


def test_the_cost_follows_the_steps_taken():
    """A bound far above the steps taken costs nothing: twice as many runs as with no bound."""
    gradient, counter = counted_gradient("while", 3)
    with counter.counting():
        jax.block_until_ready(gradient(START, np.int32(4)))
    assert counter.count <= 3 * 4
