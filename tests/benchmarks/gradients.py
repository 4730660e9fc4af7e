"""Gradients with few stored carries: time and memory beside `jax.lax.scan` and Equinox's loop.

Equinox is the library whose loops have reverse mode with checkpoints so far. Without it installed
(`pip install 'carryloops[bench]'`) its rows are left out.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import loops
from tests.benchmarks.counts import Count
from tests.benchmarks.programs import Build, Loops, Program
from tests.benchmarks.rows import RUN, Row
from tests.benchmarks.timing import Sides, Stopwatch, filling

SIZE = 10_000
WHILE_SLOTS = 20
SCAN_STEPS, SCAN_SLOTS = 200, 15


def step(y: Array) -> Array:
    """One step of the loops that are measured."""
    return y + 0.01 * jnp.sin(y) * jnp.exp(-y * y)


def equinox_loops() -> Any:
    """Equinox's loops, or None."""
    try:
        return importlib.import_module("equinox.internal")
    except ImportError:
        return None


def gradient_of(loop: Callable[[Array], Array]) -> Program:
    """The gradient of the sum of what a loop makes of SIZE floats."""
    return Program(jax.grad(lambda y: loop(y).sum()), (jnp.linspace(-2.0, 2.0, SIZE),))


def while_gradient(steps: int, **options: Any) -> Build:
    """The gradient through a while loop of so many steps."""

    def build(loops: Loops) -> Program:
        def loop(y: Array) -> Array:
            init = (0, y)
            final = loops.while_loop(
                lambda s: s[0] < steps,
                lambda s: (s[0] + 1, step(s[1])),
                init,
                checkpoints=WHILE_SLOTS,
                **options,
            )
            return final[1]

        return gradient_of(loop)

    return build


def scan_gradient(**options: Any) -> Build:
    """The gradient through a scan of SCAN_STEPS steps."""

    def build(loops: Loops) -> Program:
        def loop(y: Array) -> Array:
            return loops.scan(lambda c, _: (step(c), None), y, None, SCAN_STEPS, **options)[0]

        return gradient_of(loop)

    return build


class Rivals(NamedTuple):
    """A program of ours and one of another library, each with its module."""

    ours: Build
    theirs: Build
    module: Any


def beside(name: str, rivals: Rivals, limit: float) -> Row:
    """A row that times running both; the `jax.lax` that it is given is not the rival."""

    def sides(ours: Loops, _: Loops, seconds: float) -> Sides:
        our_watch = Stopwatch(RUN.prepare(rivals.ours, ours), clock=RUN.clock)
        their_watch = Stopwatch(RUN.prepare(rivals.theirs, rivals.module), clock=RUN.clock)
        return Sides(*filling(our_watch, their_watch, seconds))

    return Row(name, sides, limit)


def with_equinox(steps: int) -> Rivals | None:
    """The while loop on both sides."""
    module = equinox_loops()
    if module is None:
        return None
    theirs = while_gradient(steps, max_steps=None, kind="checkpointed")
    return Rivals(while_gradient(steps), theirs, module)


def bounded_gradient(max_steps: int) -> Build:
    """The gradient through 1000 steps on a number, bounded by so many."""

    def build(loops: Any) -> Program:
        def loop(x: Array) -> Array:
            step = lambda s: (s[0] + 1, jnp.sin(s[1]))
            final = loops.while_loop(lambda s: s[0] < 1000, step, (0, x), max_steps=max_steps)
            return final[1]

        return Program(jax.grad(loop), (jnp.float32(0.5),))

    return build


LOOSE_BOUND = Rivals(bounded_gradient(1_000_000), bounded_gradient(1000), loops)
WITH_LAX = Rivals(scan_gradient(checkpoints=SCAN_SLOTS), scan_gradient(), jax.lax)


def gradient_rows() -> list[Row]:
    """The rows of the table; the limits are those that the library promises."""
    rows = [
        beside(f"run scan gradient, {SCAN_SLOTS} checkpoints, beside jax.lax", WITH_LAX, 1.6),
        beside("run while gradient, bound of a million, beside one of 1000", LOOSE_BOUND, 1.5),
    ]
    for steps, limit in ((100, 1.0), (1000, 1 / 1.2)):
        rivals = with_equinox(steps)
        if rivals is not None:
            name = f"run while gradient, {steps} steps, beside Equinox"
            rows.append(beside(name, rivals, limit))
    return rows


def temporary_bytes(build: Build, loops: Any) -> int:
    """How much memory a compiled program needs beside its inputs and outputs."""
    fun, args = build(loops)
    analysis: Any = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def memory_counts(ours: Loops) -> list[Count]:
    """Memory of ours over that of the rival."""

    def ratio(rivals: Rivals) -> float:
        return temporary_bytes(rivals.ours, ours) / temporary_bytes(rivals.theirs, rivals.module)

    counts = [Count("memory of the scan gradient over jax.lax's", round(ratio(WITH_LAX), 3), 1 / 5)]
    rivals = with_equinox(1000)
    if rivals is not None:
        what = "memory of the while gradient over Equinox's"
        counts.append(Count(what, round(ratio(rivals), 3), 1))
    return counts
