"""`python -m tests.benchmarks`: what our loops cost beside `jax.lax`'s, as a table of ratios.

The exit status is 1 if some ratio is worse than its limit beyond the noise: if even the lower end
of its confidence interval exceeds it. To see how far the noise goes on a machine, measure
`jax.lax` against itself: `python -m tests.benchmarks --ours jax.lax`.
"""

# ruff: noqa: T201 - printing is what a command does

import argparse
import importlib
import itertools
import json
import pathlib
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from tests.benchmarks.counts import counts
from tests.benchmarks.evaluations import evaluation_counts
from tests.benchmarks.gradients import equinox_loops, gradient_rows, memory_counts
from tests.benchmarks.programs import Loops
from tests.benchmarks.rows import ROWS, Row
from tests.benchmarks.timing import QUICK, THOROUGH, Comparison, Effort, compare, measure

ATTEMPTS = 3
"""How often a row is measured at most: a burst of noise can outlast one attempt."""


class Result(NamedTuple):
    """A row and what was measured for it."""

    row: Row
    comparison: Comparison

    @property
    def verdict(self) -> str:
        """`ok` and `FAIL` are beyond the noise; `ok?` is within the limit as far as one can see."""
        low, high = self.comparison.interval
        if low > self.row.limit:
            return "FAIL"
        return "ok" if high <= self.row.limit else "ok?"


def measure_row(row: Row, ours: Loops, effort: Effort, rng: np.random.Generator) -> Result:
    """Both sides of a row, measured in turns, again and with all blocks counted while in doubt."""
    sides = row.sides(ours, cast("Loops", jax.lax), effort.sample_seconds)
    blocks = measure(sides, effort, rng)
    result = Result(row, compare(blocks))
    for _ in range(ATTEMPTS - 1):
        if result.verdict == "ok":
            break
        blocks += measure(sides, effort, rng)
        result = Result(row, compare(blocks))
    return result


def seconds_text(seconds: float) -> str:
    """Seconds, milliseconds or microseconds to three digits.

    >>> seconds_text(0.01234)
    '12.3 ms'
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def line(cells: Sequence[str], name_width: int) -> str:
    """One line of the table: the row's name to the left, the rest to the right."""
    name, ours, lax, ratio, limit, verdict = cells
    return f"{name:<{name_width}} | {ours:>8} | {lax:>8} | {ratio:>20} | {limit:>5} | {verdict}"


def result_line(result: Result, name_width: int) -> str:
    """The line of a measured row."""
    row, (ours, lax, ratio, (low, high), _) = result
    cells = (
        row.name,
        seconds_text(ours),
        seconds_text(lax),
        f"{ratio:.3f} [{low:.3f} {high:.3f}]",
        f"{row.limit:.3g}",
        result.verdict,
    )
    return line(cells, name_width)


def print_table(rows: Sequence[Row], ours: Loops, effort: Effort) -> list[Result]:
    """Measures the rows and prints each as soon as it is known."""
    width = max(len(row.name) for row in rows)
    heading = ("row", "ours", "jax.lax", "ours / jax.lax [99%]", "limit", "ok")
    print(line(heading, width))
    print(re.sub(r"[^|]", "-", line(heading, width)))
    rng = np.random.default_rng(0)
    results = []
    for row in rows:
        results.append(measure_row(row, ours, effort, rng))
        print(result_line(results[-1], width), flush=True)
        # Programs of rows that are done would only make every later collection slower.
        jax.clear_caches()
    return results


def summary(results: Sequence[Result]) -> str:
    """The last line: how many rows hold, and which is the worst."""
    worst = max(results, key=lambda result: result.comparison.ratio / result.row.limit)
    failed = sum(result.verdict == "FAIL" for result in results)
    return (
        f"{len(results) - failed} of {len(results)} rows within their limit, {failed} beyond it; "
        f"worst: {worst.row.name}, {worst.comparison.ratio:.3f} (limit {worst.row.limit:.3g})"
    )


def as_json(results: Iterable[Result]) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "rows": [
            {"row": row.name, "limit": row.limit, "verdict": Result(row, comparison).verdict}
            | comparison._asdict()
            | {"interval": list(comparison.interval)}
            for row, comparison in results
        ],
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, wider intervals")
    parser.add_argument("--only", metavar="PATTERN", default="", help="rows whose name matches")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="also write the figures")
    parser.add_argument("--ours", metavar="MODULE", default="loops", help="measure this instead")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status."""
    options = parse(arguments)
    jax.config.update("jax_enable_compilation_cache", False)
    is_ours = options.ours == "loops"
    all_rows = (*ROWS, *(gradient_rows() if is_ours else []))
    rows = [row for row in all_rows if re.search(options.only, row.name)]
    if not rows:
        print(f"no row matches {options.only!r}; the rows are:")
        print(*(row.name for row in all_rows), sep="\n")
        return 2
    ours = cast("Loops", importlib.import_module(options.ours))
    results = print_table(rows, ours, QUICK if options.quick else THOROUGH)
    if options.json:
        options.json.write_text(json.dumps(as_json(results), indent=2) + "\n")
    print(summary(results))
    failed = any(result.verdict == "FAIL" for result in results)
    # JAX's own loops would need hours for the deepest nest.
    wanted = not options.only and is_ours
    if wanted and equinox_loops() is None:
        print("Equinox is not installed: there are no rows beside it")
    groups = (counts(ours), memory_counts(ours), evaluation_counts()) if wanted else ()
    for count in itertools.chain(*groups):
        verdict = "ok" if count.holds else "FAIL"
        print(f"{count.what}: {count.value:g}, at most {count.limit:g}: {verdict}")
        failed |= not count.holds
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
