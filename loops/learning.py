"""Traces whose only purpose is to learn types do not finish the loops inside.

A loop with a weakly typed init traces its body to see which types come out, and traces it again if
it has to promote the init. A loop inside does the same each time, so that nested loops would trace
the innermost body 2**depth times. But a pass that will be thrown away needs an inner loop's output
types, not its jaxpr; and once the inner loop has run its body once, it often knows them:

    pass 1 of the outer loop          inner loop: one pass, then an `unfinished_loop` equation
    pass 2, the promoted one          inner loop: all passes, and its real equation

So a body at depth d is run d + 1 times. If pass 1 turns out to be the last one, because nothing had
to be promoted, but it holds an unfinished loop, it is run again. An unfinished equation has an
effect that no program can be compiled with, so it cannot be mistaken for a loop.

An inner loop is left unfinished only where that is exact: if it runs in the very trace that is
learning, with no cached function in between, and if no output but the promoted carry depends on the
promoted carry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from checks import CarryTypeError
from checks.nesting import Nesting, register_nesting
from loops import _jax
from loops.data_flow import depends_on


class UnfinishedLoop(_jax.Effect):
    """Marks the jaxprs that hold an unfinished loop, through all that they are nested in."""

    def __str__(self) -> str:
        return "UnfinishedLoop"


_unfinished = UnfinishedLoop()
_jax.allow_effect_inside_loops(UnfinishedLoop)

unfinished_loop_p = _jax.Primitive("unfinished_loop")
unfinished_loop_p.multiple_results = True
unfinished_loop_p.def_effectful_abstract_eval(lambda *, avals: (list(avals), {_unfinished}))


class _Frames(threading.local):
    """For each loop whose body is being traced, the trace around it if that pass only learns."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.left_unfinished = False
        self.finish_all = False


_frames = _Frames()


@contextmanager
def tracing_a_body(may_be_thrown_away: bool) -> Generator[None]:
    """Say that a body is traced, and whether the pass may only learn types."""
    learning = may_be_thrown_away or is_learning()
    _frames.stack.append(_jax.current_trace() if learning else None)
    try:
        yield
    finally:
        _frames.stack.pop()


Result = TypeVar("Result")


def finishing_all_after_an_error(settle: Callable[[bool], Result]) -> Result:
    """Run `settle(False)`; if it raises the contract's error, blame the loop that it should.

    Where several loops of a nest break the contract, the one to name is the one that is met when
    all loops are finished in all passes. So the outermost loop is settled again in that way,
    `settle(True)`, if a loop was left unfinished before the error.
    """
    if _frames.stack or _frames.finish_all:
        return settle(_frames.finish_all)
    _frames.left_unfinished = False
    try:
        return settle(False)
    except CarryTypeError:
        if not _frames.left_unfinished:
            raise
    _frames.finish_all = True
    try:
        return settle(True)
    finally:
        _frames.finish_all = False


def is_learning() -> bool:
    """Whether what is traced now is the body of a loop that only learns types, and nothing else."""
    if _frames.finish_all:
        return False
    around = _frames.stack[-1] if _frames.stack else None
    return around is not None and _jax.trace_around(_jax.current_trace()) is around


def is_unfinished(jaxpr: Any) -> bool:
    """Whether a jaxpr holds an unfinished loop."""
    return _unfinished in jaxpr.effects


def only_promoted_depend(jaxpr: Any, num_consts: int, promoted: Sequence[bool]) -> bool:
    """Whether promoting parts of the carry changes no types but theirs.

    Args:
      jaxpr: [*consts, *carry, *x] -> [*carry, *y], traced before the promotion.
      num_consts: how many inputs are constants.
      promoted: which parts of the carry are promoted.
    """
    num_carry, num_outputs = len(promoted), len(jaxpr.out_avals)
    num_xs = len(jaxpr.in_avals) - num_consts - num_carry
    reached = depends_on(jaxpr, [*[False] * num_consts, *promoted, *[False] * num_xs])
    may_change = [*promoted, *[False] * (num_outputs - num_carry)]
    return all(may or not does for may, does in zip(may_change, reached, strict=True))


def unfinished_loop(avals: Sequence[Any]) -> list[Any]:
    """Outputs of the given types, in a trace that will be thrown away."""
    _frames.left_unfinished = True
    return unfinished_loop_p.bind(avals=tuple(avals))


register_nesting(Nesting(tracing_a_body, is_unfinished, finishing_all_after_an_error))
