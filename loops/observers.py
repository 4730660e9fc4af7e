"""Who looks on while loops are traced: a list that is empty unless somebody does.

A tool that counts traces, or that shows each loop of a test run, puts an `Observer` here for as
long as it looks. Loops then tell it of each pass over a body and of each loop that has settled.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import jax


class BodyPass(NamedTuple):
    """One pass over a body: it was run on the types of a carry, unless JAX had that trace cached.

    Args:
      loop: `scan`, `fori_loop`, `while_loop` or `map`, as the user called it.
      body: the name, file and line of the body.
      number: counts the passes of one loop from 1; from 2 on an init was promoted, or the loops
        inside are finished.
      jaxpr: what the pass gave. It is the very object of an earlier pass if that was cached.
      depth: how many other bodies are being traced around this one.
      is_repeated: whether one of those is in a pass after its first.
      seconds: how long it took.
    """

    loop: str
    body: str
    number: int
    jaxpr: Any
    depth: int
    is_repeated: bool
    seconds: float


class SettledCarry(NamedTuple):
    """A leaf of a carry: where it is, the type of its init, and the one that the loop runs with."""

    path: str
    init: Any
    settled: Any


class LoopTraced(NamedTuple):
    """A loop whose carry keeps its types.

    Args:
      loop: as in `BodyPass`.
      body: as in `BodyPass`.
      length: the number of steps, None where it is not known.
      carry: the leaves of the carry.
      jaxpr: the body.
      passes: how many passes over the body it took.
      seconds: how long these took together.
    """

    loop: str
    body: str
    length: Any
    carry: tuple[SettledCarry, ...]
    jaxpr: Any
    passes: int
    seconds: float


class Observer(Protocol):
    """What is told of loops."""

    def saw_pass(self, body_pass: BodyPass) -> None:
        """A body has been run on the types of its carry, or found in JAX's cache."""

    def saw_loop(self, loop: LoopTraced) -> None:
        """A loop has settled; its passes have been told before."""


observers: list[Observer] = []


@contextmanager
def observed_by(observer: Observer) -> Generator[None]:
    """Let an observer see the loops that are traced inside.

    Example:
      >>> import loops
      >>> class Printer:
      ...     def saw_pass(self, body_pass):
      ...         print(body_pass.loop, "pass", body_pass.number)
      ...
      ...     def saw_loop(self, loop):
      ...         print([(c.init.str_short(), c.settled.str_short()) for c in loop.carry])
      >>> with observed_by(Printer()):
      ...     _ = loops.scan(lambda c, x: (c + x, None), 0, jax.numpy.ones(2))
      scan pass 1
      scan pass 2
      [('int32[]', 'float32[]')]
    """
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


Traced = TypeVar("Traced")


class _Passes(threading.local):
    """Of each body that is being traced, from the outermost in: is the pass not its first?"""

    def __init__(self) -> None:
        self.stack: list[bool] = []


_passes = _Passes()
_LOOPS = {"while_body": "while_loop"}


class Watch:
    """Tells the observers of one loop."""

    def __init__(self, debug: Any, length: Any) -> None:
        self.loop = _LOOPS.get(debug.traced_for, debug.traced_for)
        self.body, self.length = debug.func_src_info, length
        self.passes, self.seconds = 0, 0.0

    def watching(self, trace: Callable[..., Any]) -> Callable[..., Any]:
        """The function that makes a pass over the body, watched."""
        return functools.partial(self._run, trace)

    def _run(self, trace: Callable[..., tuple[Traced, Any]], *args: Any) -> tuple[Traced, Any]:
        self.passes += 1
        depth, is_repeated = len(_passes.stack), any(_passes.stack)
        _passes.stack.append(self.passes > 1)
        start = time.perf_counter()
        try:
            traced, out = trace(*args)
        finally:
            _passes.stack.pop()
        seconds = time.perf_counter() - start
        self.seconds += seconds
        told = BodyPass(self.loop, self.body, self.passes, out.jaxpr, depth, is_repeated, seconds)
        for observer in tuple(observers):
            observer.saw_pass(told)
        return traced, out

    def settled(self, init: Any, avals: list[Any], jaxpr: Any) -> None:
        """The loop has settled: its flat init, the types that it runs with, and its body."""
        leaves = jax.tree_util.tree_leaves_with_path(init.unflatten())
        carry = tuple(
            SettledCarry(jax.tree_util.keystr(path), jax.typeof(leaf), aval)
            for (path, leaf), aval in zip(leaves, avals, strict=True)
        )
        told = LoopTraced(
            self.loop, self.body, self.length, carry, jaxpr, self.passes, self.seconds
        )
        for observer in tuple(observers):
            observer.saw_loop(told)


def watch(debug: Any, length: Any = None) -> Watch | None:
    """What tells the observers of a loop, None if there are none."""
    return Watch(debug, length) if observers else None
