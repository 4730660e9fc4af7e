"""The benchmarks' programs, rows and table. No time is judged here, so no noise can fail it."""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any, cast

import jax
import numpy as np
import pytest

from tests.benchmarks.__main__ import Result, main, measure_row, result_line, seconds_text, summary
from tests.benchmarks.programs import Build, Loops, fori_of, scan_of, while_of
from tests.benchmarks.rows import ROWS, Row
from tests.benchmarks.timing import Comparison, Effort, Interval, Sides

ROOT = pathlib.Path(__file__).parents[2]
LAX = cast("Loops", jax.lax)


def loop_body(build: Build) -> Any:
    """The body's jaxpr of the only loop of a program."""
    fun, args = build(LAX)
    (equation,) = jax.make_jaxpr(fun)(*args).eqns
    return equation.params.get("jaxpr") or equation.params["body_jaxpr"]


@pytest.mark.parametrize("equations", [1, 10, 100])
@pytest.mark.parametrize(
    ("program", "extra"), [(scan_of, 0), (while_of, 0), (fori_of, 1)], ids=["scan", "while", "fori"]
)
def test_bodies_have_the_equations_they_say(program: Any, extra: int, equations: int) -> None:
    """A body traces to the number of equations in its row's name, and a fori counts one more."""
    assert len(loop_body(program(equations)).eqns) == equations + extra


def test_programs_are_new_functions_each_time() -> None:
    """Two builds share no function, so that no cache answers for the trace."""
    assert scan_of(1)(LAX).fun is not scan_of(1)(LAX).fun


def test_row_names_differ() -> None:
    """Each name stands for one row, so that `--only` can choose it."""
    assert len({row.name for row in ROWS}) == len(ROWS)


def constant_sides(ratio: float) -> Any:
    """A row's sides that cost the same each time."""
    return lambda ours, lax, seconds: Sides(ours=lambda: ratio, lax=lambda: 1.0)


def result(low: float, ratio: float, high: float) -> Result:
    """A measured row with a limit of 1.1."""
    row = Row("a row", sides=constant_sides(1.0), limit=1.1)
    return Result(row, Comparison(ratio * 2e-3, 2e-3, ratio, Interval(low, high), blocks=9))


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.9, 1.0, 1.1), "ok"), ((1.0, 1.2, 1.4), "ok?"), ((1.11, 1.2, 1.4), "FAIL")],
)
def test_only_what_noise_cannot_explain_fails(
    interval: tuple[float, float, float], verdict: str
) -> None:
    """A row fails if its whole interval lies beyond the limit, and is in doubt if a part does."""
    assert result(*interval).verdict == verdict


@pytest.mark.parametrize(("ratio", "verdict", "attempts"), [(1.0, "ok", 1), (2.0, "FAIL", 3)])
def test_rows_in_doubt_are_measured_again(ratio: float, verdict: str, attempts: int) -> None:
    """A row that is within its limit is measured once, any other three times."""
    effort = Effort(seconds=0.0, min_blocks=4, max_blocks=4, sample_seconds=0.0)
    row = Row("a row", constant_sides(ratio))
    measured = measure_row(row, LAX, effort, np.random.default_rng(0))
    assert measured.verdict == verdict
    assert measured.comparison.ratio == ratio
    assert measured.comparison.blocks == 4 * attempts


def test_line_and_summary_say_what_was_measured() -> None:
    """A line holds both times, the ratio, its interval and the limit; the summary the worst row."""
    cells = [cell.strip() for cell in result_line(result(1.11, 1.2, 1.4), 5).split("|")]
    assert cells == ["a row", "2.4 ms", "2 ms", "1.200 [1.110 1.400]", "1.1", "FAIL"]
    assert summary([result(0.9, 1.0, 1.1), result(1.11, 1.2, 1.4)]) == (
        "1 of 2 rows within their limit, 1 beyond it; worst: a row, 1.200 (limit 1.1)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.5 s"), (0.01234, "12.3 ms"), (1e-3, "1 ms"), (4.25e-5, "42.5 us")],
)
def test_seconds_are_read_in_their_unit(seconds: float, text: str) -> None:
    """Times print to three digits in the unit that fits."""
    assert seconds_text(seconds) == text


def test_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern that matches nothing is an error that lists the rows."""
    assert main(["--only", "no such row"]) == 2
    assert ROWS[0].name in capsys.readouterr().out


def test_command_measures_one_row_and_writes_it(tmp_path: pathlib.Path) -> None:
    """The command prints a table and a summary; its exit status is what the verdict says."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--only", "eager while, same"]
    done = subprocess.run(
        [*command, "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    heading, rule, row, last = done.stdout.splitlines()
    assert heading.startswith("row ")
    assert set(rule) == {"-", "|"}
    assert row.startswith("eager while, same function |")
    assert re.match(r"[01] of 1 rows within their limit", last)
    (written,) = json.loads(figures.read_text())["rows"]
    assert written["interval"][0] <= written["ratio"] <= written["interval"][1]
    assert written["ours"] > 0.0
    assert written["lax"] > 0.0
    assert done.returncode == int(written["verdict"] == "FAIL")
