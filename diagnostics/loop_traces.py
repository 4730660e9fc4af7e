"""Counting body traces and compilations, and the list of the loops that were traced.

A body is traced when it is run on types. A loop that has to promote a weakly typed init runs its
body again within the same call: that is another *pass*, not another *trace*. What a user wants to
know is whether a later call traced the body again, which JAX's cache should have spared.
"""

from __future__ import annotations

import collections
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from checks.written_function import python_function
from loops.observers import BodyPass, LoopTraced, observed_by

_COMPILED = "/jax/core/compile/backend_compile_duration"


class LoopTraces:
    """What was traced and compiled since it began to look.

    Example:
      >>> import jax.numpy as jnp, loops
      >>> def body(total, x):
      ...     return total + x, None
      >>> with count_loop_traces() as seen:
      ...     _ = loops.scan(body, 0, jnp.ones(3))
      ...     _ = loops.scan(body, 0, jnp.ones(3))
      >>> seen.traces(body), seen.passes(body)
      (1, 2)
      >>> seen.assert_at_most(traces=1, body=body)
      >>> _ = seen.assert_at_most(traces=0, body=body)
      Traceback (most recent call last):
      ...
      AssertionError: 1 body trace where at most 0 were allowed...
    """

    def __init__(self) -> None:
        self.loops: list[LoopTraced] = []
        self.compilations = 0
        self._traces: collections.Counter[str] = collections.Counter()
        self._passes: collections.Counter[str] = collections.Counter()
        self._jaxprs: dict[int, Any] = {}  # held, so that no id is used again

    def saw_pass(self, body_pass: BodyPass) -> None:
        """Count a pass, unless JAX had it cached."""
        if id(body_pass.jaxpr) in self._jaxprs:
            return
        self._jaxprs[id(body_pass.jaxpr)] = body_pass.jaxpr
        self._passes[body_pass.body] += 1
        if body_pass.number == 1 and not body_pass.is_repeated:
            self._traces[body_pass.body] += 1

    def saw_loop(self, loop: LoopTraced) -> None:
        """Keep a loop for the report."""
        self.loops.append(loop)

    def saw_event(self, event: str, *_: Any, **__: Any) -> None:
        """Count a compilation that JAX's monitoring tells of."""
        self.compilations += event == _COMPILED

    def traces(self, body: Any = None) -> int:
        """How often bodies were traced anew, or the one that is named.

        Args:
          body: a function, a method or a partial of one, or its name.
        """
        return _count(self._traces, body)

    def passes(self, body: Any = None) -> int:
        """How often bodies were run on types, promotion passes included.

        Args:
          body: a function, a method or a partial of one, or its name.
        """
        return _count(self._passes, body)

    def assert_at_most(
        self,
        *,
        traces: int | None = None,
        passes: int | None = None,
        compilations: int | None = None,
        body: Any = None,
    ) -> None:
        """Fail if more was traced or compiled than is allowed.

        Args:
          traces: how often bodies may be traced anew; a promotion pass is no new trace.
          passes: how often they may be run on types, promotion passes included.
          compilations: how many programs XLA may compile, whether they have loops or not.
          body: the function, or its name, that `traces` and `passes` are for; all by default.

        Raises:
          AssertionError: says what there was more of, and of which bodies.
        """
        limits = (
            ("body trace", self.traces(body), traces),
            ("body pass", self.passes(body), passes),
            ("compilation", self.compilations, compilations),
        )
        for what, count, limit in limits:
            if limit is not None and count > limit:
                plural = "" if count == 1 else "es" if what.endswith("s") else "s"
                raise AssertionError(
                    f"{count} {what}{plural} where at most {limit} were allowed{self._by_body()}"
                )

    def _by_body(self) -> str:
        rows = [
            f"\n  {body}: {self._traces[body]} traces, {passes} passes"
            for body, passes in self._passes.items()
        ]
        return ":" + "".join(rows) if rows else ""


def _count(counter: collections.Counter[str], body: Any) -> int:
    """The sum over the bodies that a function, a name, or nothing names."""
    if body is None:
        return counter.total()
    if isinstance(body, str):
        return sum(n for where, n in counter.items() if where.split(" at ")[0] == body)
    function = python_function(body)
    if function is None:
        raise TypeError(f"body must be a function or the name of one, got {body!r}")
    line = f" at {function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    return sum(n for where, n in counter.items() if where.endswith(line))


@contextmanager
def count_loop_traces() -> Generator[LoopTraces]:
    """Count what is traced and compiled inside.

    Example:
      >>> with count_loop_traces() as seen:
      ...     pass
      >>> seen.traces(), seen.compilations
      (0, 0)
    """
    seen = LoopTraces()
    jax.monitoring.register_event_duration_secs_listener(seen.saw_event)
    try:
        with observed_by(seen):
            yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(seen.saw_event)


def report(loops: list[LoopTraced]) -> list[str]:
    r"""Lines that show each loop: its contract and its cost.

    Equal loops are shown once, with how often they were traced.

    Args:
      loops: the loops, in the order in which they were traced.

    Example:
      >>> import jax.numpy as jnp, loops
      >>> def body(total, x):
      ...     return total + x, total
      >>> with count_loop_traces() as seen:
      ...     _ = loops.scan(body, 0, jnp.ones(3))
      >>> print(*report(seen.loops), sep="\n")
      scan of body at ...
        carry: int32[] (weak) -> float32[]
        3 steps, 4 bytes carried, 1 equation in the body, 2 passes in ... ms
    """
    groups: dict[Any, list[LoopTraced]] = {}
    for loop in loops:
        carry = tuple((c.path, str(c.init), str(c.settled)) for c in loop.carry)
        groups.setdefault((loop.loop, loop.body, str(loop.length), carry), []).append(loop)
    return [line for same in groups.values() for line in _loop_lines(same)]


def _loop_lines(same: list[LoopTraced]) -> list[str]:
    loop = same[0]
    times = f", traced {len(same)} times" if len(same) > 1 else ""
    contract = [
        f"  carry{c.path}: {_text(c.init)}"
        + ("" if _text(c.init) == _text(c.settled) else f" -> {_text(c.settled)}")
        for c in loop.carry
    ]
    steps = "unknown number of steps" if loop.length is None else _plural(loop.length, "step")
    carried = sum(_bytes(c.settled) for c in loop.carry)
    cost = (
        f"  {steps}, {carried} bytes carried, {_plural(_equations(loop.jaxpr), 'equation')} in the "
        f"body, {_plural(loop.passes, 'pass')} in {1000 * sum(x.seconds for x in same):.1f} ms"
    )
    return [f"{loop.loop} of {loop.body}{times}", *contract, cost]


def _plural(count: Any, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun[-1] == 's' else 's'}"


def _text(aval: Any) -> str:
    return aval.str_short() + (" (weak)" if getattr(aval, "weak_type", False) else "")


def _bytes(aval: Any) -> int:
    size = int(np.prod([d for d in aval.shape if isinstance(d, int)], dtype=int))
    return size * aval.dtype.itemsize


def _equations(jaxpr: Any) -> int:
    return len(jaxpr.eqns)
