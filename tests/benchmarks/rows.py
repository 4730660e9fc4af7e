"""The rows of the table: a name, a limit for the ratio, and how each side is sampled.

A new row is one `Row`. If what it measures is a time, `Stopwatch` samples it (see `timed`); any
other cost that can be counted needs only a function that returns the count.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax

from tests.benchmarks import programs
from tests.benchmarks.programs import Build, Loops
from tests.benchmarks.timing import Call, Prepare, Sampler, Stopwatch

LIMIT = 1.1
"""No cost of ours may exceed `jax.lax`'s by more: the allowance is for noise."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: what is measured; `--only` matches it.
        sampler: makes, for a module of loops and the seconds a sample should last, the sampler.
        limit: the largest ratio ours / jax.lax that is all right.
    """

    name: str
    sampler: Callable[[Loops, float], Sampler]
    limit: float = LIMIT


def timed(phase: Callable[[Build, Loops], Prepare], build: Build) -> Callable[..., Sampler]:
    """The sampler of a row that times one phase of a program."""

    def sampler(loops: Loops, seconds: float) -> Sampler:
        return Stopwatch(phase(build, loops)).filling(seconds)

    return sampler


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


SIZES = (1, 10, 100)
PHASES = {"trace": trace, "lower": lower, "compile": compile_}
SIZED = {"scan": programs.scan_of, "while": programs.while_of, "fori": programs.fori_of}

ROWS: tuple[Row, ...] = (
    *(
        Row(f"{phase} {loop}, {size} eqns", timed(PHASES[phase], SIZED[loop](size)))
        for phase in PHASES
        for loop in SIZED
        for size in SIZES
    ),
    *(
        Row(f"trace grad of scan, {size} eqns", timed(trace, programs.grad_of_scan(size)))
        for size in SIZES
    ),
    Row("run recurrence by scan", timed(run, programs.recurrence_by_scan)),
    Row("run recurrence by fori", timed(run, programs.recurrence_by_fori)),
    Row("run recurrence by while", timed(run, programs.recurrence_by_while)),
    Row("run RNN gradient", timed(run, programs.rnn_gradient)),
    Row("run nested loops", timed(run, programs.nested_loops)),
    Row("eager scan, same function", timed(eager, programs.eager_scan)),
    Row("eager while, same function", timed(eager, programs.eager_while)),
    Row("eager fori, same function", timed(eager, programs.eager_fori)),
)
