"""The rows of the table: a name, a limit for the ratio, and how each side is sampled.

A new row is one line in ROWS. If it times a phase of a program, `timed` makes it; any other cost
needs a `Row` whose two samplers return it: a count of body runs, say, or a number of bytes.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from tests.benchmarks import programs
from tests.benchmarks.programs import Build, Loops
from tests.benchmarks.timing import Call, Clock, Prepare, Sides, Stopwatch, filling

LIMIT = 1 / 0.95
"""No cost of ours may exceed `jax.lax`'s by more: the allowance is for noise."""

SIZES = (1, 10, 100, 1000)
"""How many equations the bodies have."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: what is measured; `--only` matches it.
        sides: how both are sampled, given our loops, JAX's, and the seconds that a sample should
            last.
        limit: the largest ratio ours / jax.lax that is all right.
    """

    name: str
    sides: Callable[[Loops, Loops, float], Sides]
    limit: float = LIMIT


def trace(build: Build, loops: Loops) -> Prepare:
    """From a Python function to a jaxpr."""

    def prepare() -> Call:
        fun, args = build(loops)
        jitted = jax.jit(fun)
        return lambda: jitted.trace(*args)

    return prepare


def lower(build: Build, loops: Loops) -> Prepare:
    """From a jaxpr to StableHLO."""

    def prepare() -> Call:
        fun, args = build(loops)
        return jax.jit(fun).trace(*args).lower

    return prepare


def compile_(build: Build, loops: Loops) -> Prepare:
    """From StableHLO to an executable."""

    def prepare() -> Call:
        fun, args = build(loops)
        return jax.jit(fun).lower(*args).compile

    return prepare


def run(build: Build, loops: Loops, copies: int = 3) -> Prepare:
    """One run of a compiled program, waiting for its results.

    The copies are compiled apart and take turns: two executables of the very same program can
    differ by where their code and buffers happen to lie.
    """
    compiled = []
    for _ in range(copies):
        fun, args = build(loops)
        compiled.append((jax.jit(fun).lower(*args).compile(), args))
    turns = itertools.cycle(compiled)

    def prepare() -> Call:
        executable, args = next(turns)
        return lambda: jax.block_until_ready(executable(*args))

    return prepare


def eager(build: Build, loops: Loops) -> Prepare:
    """One call outside jit, of a loop that has been called with the same function before."""
    fun, args = build(loops)
    return lambda: lambda: jax.block_until_ready(fun(*args))


class Phase(NamedTuple):
    """What is timed of a program, and by which clock.

    What Python and the compiler do is told in processor time, which does not count the turns that
    another process takes on a busy machine. Running a program is told in elapsed time, because it
    may use several cores.
    """

    prepare: Callable[[Build, Loops], Prepare]
    clock: Clock


TRACE = Phase(trace, time.thread_time)
LOWER = Phase(lower, time.thread_time)
COMPILE = Phase(compile_, time.process_time)
RUN = Phase(run, time.perf_counter)
EAGER = Phase(eager, time.process_time)


def timed(name: str, phase: Phase, build: Build, limit: float = LIMIT) -> Row:
    """A row that times one phase of a program."""

    def sides(ours: Loops, lax: Loops, seconds: float) -> Sides:
        our_watch = Stopwatch(phase.prepare(build, ours), clock=phase.clock)
        lax_watch = Stopwatch(phase.prepare(build, lax), clock=phase.clock)
        return Sides(*filling(our_watch, lax_watch, seconds))

    return Row(name, sides, limit)


def sized(
    name: str, phase: Phase, build_of: Callable[[int], Build], sizes: Sequence[int] = SIZES
) -> Iterator[Row]:
    """One row for each size of the body."""
    for size in sizes:
        text = "1 equation" if size == 1 else f"{size} equations"
        yield timed(f"{name}, {text}", phase, build_of(size))


ROWS: tuple[Row, ...] = (
    *sized("trace scan", TRACE, programs.scan_of),
    *sized("trace while", TRACE, programs.while_of),
    *sized("trace fori", TRACE, programs.fori_of),
    *sized("trace grad of scan", TRACE, programs.grad_of_scan, SIZES[:3]),
    *sized("lower scan", LOWER, programs.scan_of),
    *sized("lower while", LOWER, programs.while_of),
    *sized("lower fori", LOWER, programs.fori_of),
    *sized("lower eight equal scans", LOWER, programs.equal_scans, SIZES[1:3]),
    *sized("lower gradients of eight equal scans", LOWER, programs.grad_of_equal_scans, SIZES[1:3]),
    *sized("compile scan", COMPILE, programs.scan_of),
    *sized("compile while", COMPILE, programs.while_of, SIZES[:3]),
    *sized("compile fori", COMPILE, programs.fori_of, SIZES[:3]),
    timed("run recurrence by scan", RUN, programs.recurrence_by_scan),
    timed("run recurrence by fori", RUN, programs.recurrence_by_fori),
    timed("run recurrence by while", RUN, programs.recurrence_by_while),
    timed("run RNN gradient", RUN, programs.rnn_gradient),
    timed("run gradient of rows in place", RUN, programs.in_place_gradient, limit=1 / 10),
    timed("run rows that swap", RUN, programs.swapped_rows, limit=1 / 4),
    timed("run nested loops", RUN, programs.nested_loops),
    timed("eager scan, same function", EAGER, programs.eager_scan, limit=1.0),
    timed("eager while, same function", EAGER, programs.eager_while, limit=1.0),
    timed("eager fori, same function", EAGER, programs.eager_fori, limit=1.0),
    timed("eager scan, fresh lambda", EAGER, programs.eager_fresh_scan, limit=1 / 30),
    timed("eager while, fresh lambda", EAGER, programs.eager_fresh_while, limit=1 / 20),
)
