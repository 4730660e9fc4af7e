"""The closed forms of `loops.reverse.schedules` beside dynamic programming over all choices."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops.reverse import schedules

STEPS, SLOTS = 60, 8
SIZES = [(steps, slots) for slots in range(1, SLOTS + 1) for steps in range(STEPS + 1)]


@functools.cache
def least_advances(steps, slots):
    """By trying each first carry to keep: advances that reverse the steps from the first carry."""
    if steps < 2:
        return 0
    if slots == 1:
        return steps - 1 + least_advances(steps - 1, 1)
    return min(
        j + least_advances(steps - j, slots - 1) + least_advances(j, slots) for j in range(1, steps)
    )


@functools.cache
def least_extra_advances(steps, slots):
    """By trying each first segment: advances on the backward pass after the best primal pass."""
    if slots == 1:
        return least_advances(steps, 1)
    return min(
        least_advances(first, slots) + least_extra_advances(steps - first, slots - 1)
        for first in range(min(1, steps), steps + 1)
    )


def optimal_checkpoints(steps, slots):
    """Each place for the next kept carry that leads to the least number of advances."""
    return [
        j
        for j in range(1, steps)
        if least_advances(steps, slots)
        == j + least_advances(steps - j, slots - 1) + least_advances(j, slots)
    ]


@functools.cache
def least_stores(steps, slots):
    """By trying each: the fewest carries kept on the way to the least number of advances."""
    if steps <= 2 or slots == 1:
        return 0
    return min(
        1 + least_stores(steps - j, slots - 1) + least_stores(j, slots)
        for j in optimal_checkpoints(steps, slots)
    )


@functools.cache
def least_stores_of_placements(steps, slots):
    """By trying each first segment: least extra advances, and then the fewest carries kept."""
    if slots == 1:
        return least_advances(steps, 1), 0
    return min(
        (least_advances(first, slots) + rest[0], least_stores(first, slots) + rest[1])
        for first in range(min(1, steps), steps + 1)
        for rest in [least_stores_of_placements(steps - first, slots - 1)]
    )


def segments(positions, steps):
    """The lengths of the segments that begin at the positions."""
    ends = [*positions[1:], steps]
    return [end - begin for begin, end in zip(positions, ends, strict=True)]


@pytest.mark.parametrize("slots", range(1, SLOTS + 1))
def test_advances_are_the_fewest(slots):
    """Revolve's closed form equals the minimum over all places for the next kept carry."""
    expected = [least_advances(steps, slots) for steps in range(STEPS + 1)]

    assert expected == [schedules.advances(steps, slots) for steps in range(STEPS + 1)]


@pytest.mark.parametrize("slots", range(1, SLOTS + 1))
def test_extra_advances_are_the_fewest(slots):
    """So does the one for a primal pass that places carries for nothing."""
    expected = [least_extra_advances(steps, slots) for steps in range(STEPS + 1)]

    assert expected == [schedules.extra_advances(steps, slots) for steps in range(STEPS + 1)]


@pytest.mark.parametrize("slots", range(1, SLOTS + 1))
def test_placement_reaches_the_fewest(slots):
    """The placement is optimal in advances, and among those in carries kept on the way back."""
    for steps in range(STEPS + 1):
        positions = schedules.placement(steps, slots)
        lengths = segments(positions, steps)
        stores = sum(least_stores(length, slots - i) for i, length in enumerate(lengths))

        assert (least_extra_advances(steps, slots), stores) == (
            schedules.advances_after(positions, steps, slots),
            least_stores_of_placements(steps, slots)[1],
        )


@pytest.mark.parametrize("slots", range(2, SLOTS + 1))
def test_next_checkpoint_reaches_the_fewest(slots):
    """Where the next carry is kept is optimal in advances, and then in the number of stores."""
    for steps in range(2, STEPS + 1):
        j = schedules.next_checkpoint(steps, slots)

        assert j in optimal_checkpoints(steps, slots)
        assert steps == 2 or least_stores(steps, slots) == 1 + least_stores(
            steps - j, slots - 1
        ) + least_stores(j, slots)


@pytest.mark.parametrize(
    ("steps", "slots", "extra"),
    [
        (100, 2, 758),
        (100, 3, 397),
        (100, 12, 98),
        (256, 2, 3374),
        (256, 16, 344),
        (512, 3, 4337),
        (512, 12, 980),
        (1000, 2, 27864),
        (1000, 3, 11172),
        (1000, 5, 5292),
        (1000, 16, 1864),
        (1000, 31, 1442),
        (1000, 44, 956),
    ],
)
def test_known_optima(steps, slots, extra):
    """Figures that were found by dynamic programming elsewhere."""
    assert extra == schedules.extra_advances(steps, slots)


@given(steps=st.integers(1, 10**9), slots=st.integers(1, 100))
def test_one_step_more_costs_its_sweeps(steps, slots):
    """At any size, the cost grows by `sweeps_for`, and a placement reaches the optimum."""
    more = schedules.advances(steps, slots) - schedules.advances(steps - 1, slots)
    positions = schedules.placement(steps, slots)

    assert more == schedules.sweeps_for(steps, slots)
    assert len(positions) == min(steps, slots)
    assert positions[0] == 0
    assert min(segments(positions, steps)) > 0
    assert schedules.advances_after(positions, steps, slots) == schedules.extra_advances(
        steps, slots
    )


@given(steps=st.integers(2, 10**9), slots=st.integers(2, 100))
def test_next_checkpoint_splits_the_cost(steps, slots):
    """At any size, the cost of the steps is that of the two parts and of getting to the second."""
    j = schedules.next_checkpoint(steps, slots)
    parts = schedules.advances(steps - j, slots - 1) + schedules.advances(j, slots)

    assert 0 < j < steps
    assert schedules.advances(steps, slots) == j + parts


@given(steps=st.integers(0, 10**6), sweeps=st.integers(0, 9))
def test_slots_for_is_the_least(steps, sweeps):
    """With so many slots the extra advances are within the sweeps, with one less they are not."""
    slots = schedules.slots_for(steps, sweeps)

    assert schedules.extra_advances(steps, slots) <= sweeps * steps
    assert schedules.sweeps_for(steps + 1, slots) <= sweeps + 1
    assert slots == 1 or schedules.sweeps_for(steps + 1, slots - 1) > sweeps + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedules.advances(-1, 1),
        lambda: schedules.advances(1, 0),
        lambda: schedules.sweeps_for(0, 1),
        lambda: schedules.next_checkpoint(1, 2),
        lambda: schedules.next_checkpoint(2, 1),
        lambda: schedules.slots_for(-1),
        lambda: schedules.slots_for(1, -1),
        lambda: schedules.advances_after((), 3, 2),
        lambda: schedules.advances_after((1,), 3, 2),
        lambda: schedules.advances_after((0, 2, 1), 3, 3),
        lambda: schedules.advances_after((0, 3), 3, 2),
        lambda: schedules.advances_after((0, 1, 2), 3, 2),
    ],
)
def test_impossible_sizes_are_refused(call):
    """No steps, no slots, or carries that cannot have been kept: a ValueError that says which."""
    with pytest.raises(ValueError, match=r"^(-?\d+ (steps|slots)|\(.*\): the steps)"):
        call()
