"""Costs that are counted, not timed: how often bodies are run and programs compiled."""

import gc
import os
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tests.benchmarks.programs import Loops

STATM = pathlib.Path("/proc/self/statm")
"""How much memory this process has, on Linux."""


class Count(NamedTuple):
    """A count, what it may be at most, and what it is for."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the count is within its limit."""
        return self.value <= self.limit


def body_runs(loops: Loops, depth: int) -> int:
    """How often bodies are run to trace nested `fori_loop`s with a literal 0 at each level once."""
    runs = 0

    def nest(levels: int, x: jax.Array) -> jax.Array:
        if levels == 0:
            return x

        def body(_: jax.Array, carry: jax.Array) -> jax.Array:
            nonlocal runs
            runs += 1
            return carry + nest(levels - 1, x)

        return loops.fori_loop(0, 2, body, 0)

    jax.make_jaxpr(lambda x: nest(depth, x))(jnp.float32(1))
    return runs


def compilations(run: Callable[[], object]) -> int:
    """How many programs `run` compiles."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(events)


def three_lambdas_in_turn(loops: Loops) -> None:
    """100 turns of a Python loop over three eager scans whose bodies are written at the call."""
    xs, init = jnp.zeros(5, jnp.float32), jnp.float32(0)
    for _ in range(100):
        loops.scan(lambda c, x: (c * 0.7 + x, None), init, xs)
        loops.scan(lambda c, x: (c * 0.8 + x, None), init, xs)
        loops.scan(lambda c, x: (c - x, None), init, xs)


def resident_bytes() -> int:
    """How much memory the process has now."""
    resident_pages = int(STATM.read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def megabytes_added(loops: Loops, calls: int) -> float:
    """How much memory eager calls with bodies written at the call leave behind."""
    xs, init = jnp.zeros(5, jnp.float32), jnp.float32(0)

    def run(times: int) -> None:
        for number in range(times):
            captured = jnp.full(1000, number, jnp.float32)
            loops.scan(lambda c, x: (c + captured[0] * x, None), init, xs)  # noqa: B023
            loops.while_loop(lambda c: c < 3, lambda c: c + captured[1] + 4, init)  # noqa: B023
        gc.collect()

    run(calls // 10)
    before = resident_bytes()
    run(calls // 2)
    return round((resident_bytes() - before) / 2**20, 1)


def counts(loops: Loops) -> list[Count]:
    """All counts, for one implementation."""
    runs = body_runs(loops, 10)
    begin = time.perf_counter()
    body_runs(loops, 20)
    seconds = time.perf_counter() - begin
    jnp.zeros(5, jnp.float32).block_until_ready()
    compiled = compilations(lambda: three_lambdas_in_turn(loops))
    added = megabytes_added(loops, 10_000) if STATM.exists() else 0.0
    return [
        Count("body runs, ten nested fori_loops with a literal 0 (jax.lax: 3070)", runs, 120),
        Count("seconds to trace twenty of them", round(seconds, 2), 2),
        Count("programs compiled for three lambdas in 100 turns (jax.lax: 300)", compiled, 3),
        Count("MB that 10 000 eager calls with fresh lambdas add", added, 5),
    ]
