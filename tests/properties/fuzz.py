"""`make fuzz N=10000 SEED=0`: random programs on our loops, JAX's and Python's.

Programs come in chunks. A chunk is drawn from the seed and its own number alone, so a run that was
stopped goes on from the chunk that it had come to, with START. The exit status is 1 if any two
implementations differ; the smallest program that shows it is printed as Python source.

Compiling takes most of the time. So XLA optimizes little in four of five chunks, and what JAX has
compiled is kept from chunk to chunk as long as that does not change: together a third less.
"""

import argparse
import collections
import os
import sys
import textwrap
import time
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax

from tests.properties.cases import Case, cases, check

CHUNK = 100
OPTIMIZED = 5  # one in so many chunks is compiled as users' programs are


class Tally:
    """How many programs were run, how, and what was found."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.programs = 0
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, case: Case) -> None:
        """Check one program, and count what it was compared with."""
        self.programs += 1
        agreement = check(case)
        self.counts["refused by all"] += agreement.refused
        for name in agreement.compared:
            self.counts[f"compared with {name}"] += 1

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.begin
        counts = ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items()))
        speed = seconds / max(self.programs, 1)
        return f"{self.programs} programs, {speed:.2f} s each: {counts}"


def run_chunk(
    seed: int, number: int, size: int, tally: Tally, *, shrink: bool = True
) -> str | None:
    """Run the programs of one chunk; the smallest one that shows a difference, if any does."""
    last: list[Case] = []
    phases = [hypothesis.Phase.generate, *[hypothesis.Phase.shrink] * shrink]

    @hypothesis.seed(f"{seed}-{number}")
    @hypothesis.settings(
        max_examples=size,
        phases=phases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(case=cases())
    def all_agree(case: Case) -> None:
        last[:] = [case]
        tally.add(case)

    try:
        all_agree()
    except Exception as error:  # noqa: BLE001  (whatever a program raises is a finding)
        told = textwrap.indent(f"{type(error).__name__}: {error}", "# ", lambda line: True)
        return f"{last[0]}\n{told}"
    return None


def set_optimization(number: int) -> None:
    """Say how chunks from this one on are compiled, and drop what was compiled otherwise."""
    if number % OPTIMIZED in (0, OPTIMIZED - 1):
        jax.clear_caches()  # each program that ever ran stays in memory until then
    jax.config.update("jax_disable_most_optimizations", number % OPTIMIZED != OPTIMIZED - 1)


def main() -> int:
    """Run the chunks, printing how far it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first program, if not all")
    options = parser.parse_args()
    warnings.simplefilter("error")
    tally, found = Tally(), []
    for first in range(options.start // CHUNK * CHUNK, options.programs, CHUNK):
        size = min(CHUNK, options.programs - first)
        set_optimization(first // CHUNK)
        difference = run_chunk(options.seed, first // CHUNK, size, tally)
        if difference is not None:
            found.append(difference)
            print(f"\nA DIFFERENCE, in the chunk from {first}:\n\n{difference}\n", flush=True)
        print(f"to {first + size} of {options.programs}; {tally}", flush=True)
    print(f"seed {options.seed}, jax {jax.__version__}: {tally}; {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
