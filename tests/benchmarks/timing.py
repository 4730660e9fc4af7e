"""Two costs compared on a noisy machine: turns in the order ABBA, the median ratio of all blocks.

A block takes four samples, ours-lax-lax-ours or the other way round, and keeps the smaller one of
each side. The order cancels a steady drift and whatever going first costs; the minimum drops the
sample that another process disturbed. The ratio of a block is therefore nearly free of what both
sides share, and its median over blocks has a distribution-free interval (`median_interval`).
"""

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

Clock = Callable[[], float]
Call = Callable[[], object]
"""What is timed."""
Prepare = Callable[[], Call]
"""Builds one call with everything fresh that a cache would otherwise hide; itself never timed."""
Sampler = Callable[[], float]
"""One sample of a cost: the lower the better, in any unit."""


@dataclasses.dataclass(frozen=True)
class Stopwatch:
    """A sampler of time: seconds for each of `repeats` calls, timed together.

    Args:
        prepare: builds the call; run `repeats` times before the clock starts.
        repeats: how many calls one sample averages over.
        clock: seconds, as `time.perf_counter` gives them.
    """

    prepare: Prepare
    repeats: int = 1
    clock: Clock = time.perf_counter

    def __call__(self) -> float:
        """One sample."""
        calls = [self.prepare() for _ in range(self.repeats)]
        start = self.clock()
        # The results live until the clock has stopped: freeing them is not part of the call.
        results = [call() for call in calls]
        seconds = self.clock() - start
        del results
        return seconds / self.repeats


def filling(ours: Stopwatch, lax: Stopwatch, seconds: float) -> tuple[Stopwatch, Stopwatch]:
    """Two stopwatches with so many repeats that a sample of the slower side lasts `seconds`.

    Short samples measure the clock and the scheduler more than the call. Both sides repeat equally
    often: the mean of many calls and the mean of few take the machine's noise differently.
    """
    once = 1e-9
    for stopwatch in (ours, lax):
        stopwatch()  # The first call pays for imports and caches.
        once = max(once, min(stopwatch(), stopwatch()))
    repeats = max(1, math.ceil(seconds / once))
    return dataclasses.replace(ours, repeats=repeats), dataclasses.replace(lax, repeats=repeats)


class Sides(NamedTuple):
    """How the two costs of a row are sampled."""

    ours: Sampler
    lax: Sampler


class Block(NamedTuple):
    """The best sample of each side in one block of four turns."""

    ours: float
    lax: float


class Effort(NamedTuple):
    """How long to measure one row."""

    seconds: float
    min_blocks: int
    max_blocks: int
    sample_seconds: float


THOROUGH = Effort(seconds=4.0, min_blocks=15, max_blocks=400, sample_seconds=1e-3)
QUICK = Effort(seconds=0.4, min_blocks=5, max_blocks=30, sample_seconds=1e-3)


def measure_block(sides: Sides, rng: np.random.Generator) -> Block:
    """Four turns in the order ours-lax-lax-ours or lax-ours-ours-lax, by the toss of a coin."""
    if rng.random() < 0.5:
        ours_samples = [sides.ours()]
        lax_samples = [sides.lax(), sides.lax()]
        ours_samples.append(sides.ours())
    else:
        lax_samples = [sides.lax()]
        ours_samples = [sides.ours(), sides.ours()]
        lax_samples.append(sides.lax())
    return Block(min(ours_samples), min(lax_samples))


def measure(
    sides: Sides,
    effort: Effort,
    rng: np.random.Generator,
    clock: Clock = time.perf_counter,
) -> list[Block]:
    """Blocks until the effort is spent; the first one only warms up and is thrown away.

    Args:
        sides: sample the two costs.
        effort: seconds to spend, and the fewest and the most blocks to take.
        rng: tosses the coin for the order of each block.
        clock: tells when the seconds are over.

    Returns:
        At least `effort.min_blocks` blocks, at most `effort.max_blocks`.
    """
    measure_block(sides, rng)
    blocks: list[Block] = []
    end = clock() + effort.seconds
    with collector_off():
        while len(blocks) < effort.max_blocks:
            if len(blocks) >= effort.min_blocks and clock() >= end:
                break
            blocks.append(measure_block(sides, rng))
            gc.collect()
    return blocks


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection but the calls made by hand, which pass over everything alive now."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Interval(NamedTuple):
    """Bounds of a confidence interval."""

    low: float
    high: float


def median_interval(values: Sequence[float], confidence: float) -> Interval:
    """A confidence interval for the median that assumes no distribution.

    Whether a sample lies below the median is the toss of a fair coin, so the k-th smallest and the
    k-th largest of n samples miss it with probability 2 P(Binomial(n, 1/2) < k). (Conover,
    Practical Nonparametric Statistics, section 3.2.) With too few samples for the confidence asked
    for, the interval is their whole range.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0.90)
    Interval(low=2.0, high=7.0)
    """
    ordered = sorted(values)
    n = len(ordered)
    rank, tail = 0, 0  # the tail's outcomes, of 2**n: an integer, because neither fits a float
    for candidate in range((n + 1) // 2):
        tail += math.comb(n, candidate)
        if 2 * tail / 2**n > 1.0 - confidence:
            break
        rank = candidate
    return Interval(ordered[rank], ordered[n - 1 - rank])


class Comparison(NamedTuple):
    """What a row says: the typical cost of both sides, and their ratio with its interval."""

    ours: float
    lax: float
    ratio: float
    interval: Interval
    blocks: int


def compare(blocks: Sequence[Block], confidence: float = 0.99) -> Comparison:
    """The median of the blocks' ratios, and each side's lower quartile as its typical cost."""
    ratios = [block.ours / block.lax for block in blocks]
    return Comparison(
        ours=lower_quartile([block.ours for block in blocks]),
        lax=lower_quartile([block.lax for block in blocks]),
        ratio=statistics.median(ratios),
        interval=median_interval(ratios, confidence),
        blocks=len(blocks),
    )


def lower_quartile(values: Sequence[float]) -> float:
    """The value a quarter of the way up: disturbances only ever add, so low means undisturbed."""
    return sorted(values)[(len(values) - 1) // 4]
