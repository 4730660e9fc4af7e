"""The arithmetic of the benchmarks, on clocks and costs that are made up."""

import gc
import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from tests.benchmarks.timing import (
    Block,
    Effort,
    Interval,
    Sides,
    Stopwatch,
    collector_off,
    compare,
    filling,
    lower_quartile,
    measure,
    measure_block,
    median_interval,
)


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """What `time.perf_counter` would return."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Moves the clock on."""
        self.now += seconds


class Recorder:
    """Two samplers that write down their turns, and give values from a list each."""

    def __init__(self, ours: list[float], lax: list[float]) -> None:
        self.turns: list[str] = []
        self.sides = Sides(self.sampler("ours", ours), self.sampler("lax", lax))

    def sampler(self, name: str, values: list[float]) -> Callable[[], float]:
        """A sampler that gives the values in turn."""
        remaining = iter(values)

        def sample() -> float:
            self.turns.append(name)
            return next(remaining)

        return sample


def test_stopwatch_times_calls_and_not_their_preparation() -> None:
    """A sample is the mean time of a call; what preparing it took is left out."""
    clock = FakeClock()
    prepared = []

    def prepare() -> Callable[[], None]:
        clock.spend(100.0)
        prepared.append(clock())
        return lambda: clock.spend(0.25)

    assert Stopwatch(prepare, repeats=4, clock=clock)() == 0.25
    assert len(prepared) == 4


def watch(clock: FakeClock, *costs: float) -> Stopwatch:
    """A stopwatch on calls that cost the given seconds in turn, the last one from then on."""
    remaining = itertools.chain(costs, itertools.repeat(costs[-1]))
    return Stopwatch(lambda: lambda: clock.spend(next(remaining)), clock=clock)


@pytest.mark.parametrize(
    ("ours", "lax", "repeats"),
    [(3e-3, 1e-3, 4), (1e-3, 3e-3, 4), (1e-3, 20e-3, 1)],
    ids=["ours is slower", "ours is faster", "already long enough"],
)
def test_filling_repeats_both_sides_alike(ours: float, lax: float, repeats: int) -> None:
    """Both sides repeat as often as makes the slower one's sample last 10 ms."""
    clock = FakeClock()
    sides = filling(watch(clock, ours), watch(clock, lax), 10e-3)
    assert [side.repeats for side in sides] == [repeats, repeats]


def test_filling_ignores_the_first_call() -> None:
    """What only the first call costs does not make the samples too short."""
    clock = FakeClock()
    sides = filling(watch(clock, 5.0, 1e-3), watch(clock, 5.0, 1e-3), 9.5e-3)
    assert [side.repeats for side in sides] == [10, 10]


def test_block_mirrors_its_turns_and_keeps_the_best_of_each_side() -> None:
    """Whichever side begins also ends the block, so that a steady drift cancels."""
    orders = set()
    for seed in range(20):
        recorder = Recorder(ours=[3.0, 2.0], lax=[5.0, 7.0])
        assert measure_block(recorder.sides, np.random.default_rng(seed)) == Block(2.0, 5.0)
        assert recorder.turns == recorder.turns[::-1]
        orders.add(recorder.turns[0])
    assert orders == {"ours", "lax"}


def test_measure_throws_the_warm_up_away() -> None:
    """The first block, which pays for what is not yet cached, is in no result."""
    recorder = Recorder(ours=[9.0] * 2 + [1.0] * 4, lax=[9.0] * 2 + [2.0] * 4)
    effort = Effort(seconds=0.0, min_blocks=2, max_blocks=10, sample_seconds=0.0)
    blocks = measure(recorder.sides, effort, np.random.default_rng(0), clock=FakeClock())
    assert blocks == [Block(1.0, 2.0)] * 2


@pytest.mark.parametrize(
    ("seconds", "count"),
    [(0.0, 3), (1000.0, 20), (40.0, 10)],
    ids=["too short: the fewest", "plenty: the most", "between: until the time is over"],
)
def test_measure_stops_when_its_effort_is_spent(seconds: float, count: int) -> None:
    """Blocks of four seconds each are taken within the bounds that the effort sets."""
    clock = FakeClock()

    def sample() -> float:
        clock.spend(1.0)
        return 1.0

    effort = Effort(seconds, min_blocks=3, max_blocks=20, sample_seconds=0.0)
    assert (
        len(measure(Sides(sample, sample), effort, np.random.default_rng(0), clock=clock)) == count
    )


def test_collector_is_off_inside_and_back_on_after_an_error() -> None:
    """Timing never sees a garbage collection, and leaves the collector as it was."""
    assert gc.isenabled()
    enabled_inside = []

    def fail_inside() -> None:
        with collector_off():
            enabled_inside.append(gc.isenabled())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert enabled_inside == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("n", "confidence", "ranks"),
    [
        (8, 0.95, (1, 8)),
        (10, 0.95, (2, 9)),
        (20, 0.95, (6, 15)),
        (25, 0.95, (8, 18)),
        (50, 0.95, (18, 33)),
        (20, 0.99, (4, 17)),
        (2000, 0.95, (956, 1045)),
        (3, 0.99, (1, 3)),
        (1, 0.99, (1, 1)),
    ],
)
def test_median_interval_has_the_ranks_of_the_sign_test(
    n: int, confidence: float, ranks: tuple[int, int]
) -> None:
    """The ranks are those that tables of the sign test print; few samples give their range."""
    values = [float(rank) for rank in range(1, n + 1)]
    np.random.default_rng(0).shuffle(values)
    assert median_interval(values, confidence) == Interval(*map(float, ranks))


def test_median_interval_covers_as_often_as_it_says() -> None:
    """Of 2000 intervals from a skewed distribution at least 95 % hold the median."""
    rng = np.random.default_rng(0)
    true_median = 0.6931471805599453
    hits = 0
    for _ in range(2000):
        low, high = median_interval([*rng.exponential(size=21)], 0.95)
        hits += low <= true_median <= high
    assert hits >= 0.95 * 2000


def test_compare_finds_the_ratio_under_drift_and_spikes() -> None:
    """A machine that slows down threefold and stalls every fifth sample does not hide 1.2."""
    rng = np.random.default_rng(0)
    clock = FakeClock()

    def noisy(cost: float) -> Callable[[], float]:
        def sample() -> float:
            clock.spend(1.0)
            stall = rng.uniform(1.0, 5.0) if rng.random() < 0.2 else 1.0
            return cost * (1.0 + clock() / 200.0) * stall * rng.uniform(0.98, 1.02)

        return sample

    effort = Effort(seconds=400.0, min_blocks=3, max_blocks=1000, sample_seconds=0.0)
    comparison = compare(measure(Sides(noisy(1.2), noisy(1.0)), effort, rng, clock=clock))
    assert comparison.blocks == 100
    assert comparison.ratio == pytest.approx(1.2, rel=0.01)
    assert comparison.interval.low <= 1.2 <= comparison.interval.high
    assert comparison.interval.high - comparison.interval.low < 0.03


def test_compare_takes_ratios_within_blocks() -> None:
    """The ratio is the median of the blocks' ratios, not the ratio of two medians."""
    blocks = [Block(1.0, 1.0), Block(20.0, 10.0), Block(600.0, 200.0)]
    comparison = compare(blocks)
    assert comparison.ratio == 2.0
    assert comparison.ratio == statistics.median([1.0, 2.0, 3.0])
    assert comparison.interval == Interval(1.0, 3.0)
    assert (comparison.ours, comparison.lax) == (1.0, 1.0)


def test_lower_quartile_is_one_of_the_values() -> None:
    """A quarter of the way up, whatever the order, without interpolation."""
    assert lower_quartile([5.0, 1.0, 3.0, 2.0, 4.0]) == 2.0
    assert lower_quartile([7.0]) == 7.0
