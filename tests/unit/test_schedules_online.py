"""Placement while the number of steps is unknown: how near the optimum, and the compiled rule."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops.reverse import online, schedules
from loops.reverse.online_placement import OnlinePlacement
from loops.reverse.placement import LARGEST, optimal_positions, tables_for


@pytest.mark.parametrize(
    ("steps", "slots", "most"),
    [
        (100, 2, 832),
        (100, 3, 427),
        (100, 12, 143),
        (1000, 2, 28776),
        (1000, 3, 11736),
        (1000, 5, 5627),
        (1000, 16, 1978),
        (1000, 31, 1465),
    ],
)
def test_no_worse_than_the_best_known(steps: int, slots: int, most: int) -> None:
    """No more advances than another library's placement leads to, with the optimal way back."""
    positions = online.place(steps, slots)
    assert schedules.advances_after(positions, steps, slots) <= most


@pytest.mark.parametrize("slots", [2, 3, 5, 8, 16])
def test_near_the_optimum_whenever_the_loop_ends(slots: int) -> None:
    """Over all numbers of steps up to 400 the average is at most 5 % above the optimum."""
    ratios = []
    for steps in range(slots + 2, 400, 7):
        extra = schedules.advances_after(online.place(steps, slots), steps, slots)
        ratios.append(extra / schedules.extra_advances(steps, slots))
    assert min(ratios) >= 1.0
    assert sum(ratios) / len(ratios) <= 1.05


@given(steps=st.integers(1, 3000), slots=st.integers(1, 40))
def test_states_are_what_a_program_can_hold(steps: int, slots: int) -> None:
    """Positions increase from 0, and slots are distinct."""
    *_, state = online.states(steps, slots)
    assert list(state.positions) == sorted(set(state.positions))
    assert state.positions[0] == 0
    assert len(state.positions) == len(set(state.slots)) <= slots
    assert set(state.slots) <= set(range(slots))
    assert max(state.positions) < steps


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 16])
def test_the_running_program_places_alike(slots: int) -> None:
    """What is computed while a loop runs is the rule in plain Python, event for event."""
    placement = OnlinePlacement(tables_for(slots, LARGEST))
    place = jax.jit(placement.place)
    memory, t = placement.start(), 0
    positions = jnp.full(slots, LARGEST, jnp.int32)
    for state in online.states(200, slots):
        slot, stop, memory = place(memory, positions, jnp.int32(t))
        positions = positions.at[slot].set(t)
        assert state.positions == tuple(sorted(int(p) for p in positions if p < LARGEST))
        assert (state.slots[-1], state.event) == (int(slot), int(stop))
        t = int(stop)


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_known_lengths_are_placed_for_the_optimum(slots: int) -> None:
    """A number of steps known only while running is placed as well as one known before."""
    place = jax.jit(lambda steps: optimal_positions(tables_for(slots, LARGEST), steps))
    for steps in (1, 2, 3, 8, 30, 77, 500):
        positions = [int(p) for p in place(jnp.int32(steps)) if p < steps]
        extra = schedules.advances_after(positions, steps, slots)
        assert extra == schedules.extra_advances(steps, slots)
