"""Traces whose only purpose is to learn types do not finish the loops inside.

A loop with a weakly typed init traces its body to see which types come out, and traces it again if
it has to promote the init. A loop inside does the same each time, so that nested loops would trace
the innermost body 2**depth times. Two things keep it from that:

* A pass that will be thrown away needs an inner loop's output types, not its jaxpr; and once the
  inner loop has run its body once, it often knows them. Then it leaves an `unfinished_loop`
  equation in its place. An effect keeps that from being compiled.
* What an inner loop learned in one pass of its outer loop it need not learn in the next one: if
  its body is still the same function, it starts from the types that it promoted its init to then
  (`loops.recall`).

    pass 1 of the outer loop          inner loop: one pass, then an `unfinished_loop` equation
    pass 2, the promoted one          inner loop: one pass, and its real equation

If pass 1 turns out to be the last one, because nothing had to be promoted, but it holds an
unfinished loop, it is run again. So a loop is left unfinished only if a loop inside it was promoted
too: a single promotion is made at once, for no more than it costs without all this.

The types of an unfinished loop are a guess: that a body's other outputs do not depend on the carry
that is promoted, as far as its jaxpr says. But a body may look at a type (`x.astype(c.dtype)`). So
when the outer loop has settled, each guess must be the types of a loop in its last pass; if one is
not, or if anything was raised after a guess, the outer loop is settled anew without guesses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from checks.nesting import Nesting, register_nesting
from loops import _jax
from loops.data_flow import depends_on
from loops.recall import Learned, Place, take_recalled


class UnfinishedLoop(_jax.Effect):
    """Marks the jaxprs that hold an unfinished loop, through all that they are nested in."""

    def __str__(self) -> str:
        return "UnfinishedLoop"


_unfinished = UnfinishedLoop()
_jax.allow_effect_inside_loops(UnfinishedLoop)

unfinished_loop_p = _jax.Primitive("unfinished_loop")
unfinished_loop_p.multiple_results = True
unfinished_loop_p.def_effectful_abstract_eval(lambda *, avals: (list(avals), {_unfinished}))


class Outcome(NamedTuple):
    """The types that a loop returned, and whether they are a guess."""

    types: tuple[Any, ...]
    is_guess: bool


class _Pass:
    """A pass over a body: the trace around it, if it may only learn types, and the loops inside.

    `recalled` is what they learned in the pass before and `learned` what they learn in this one.
    """

    def __init__(self, around: Any, recalled: list[Learned]) -> None:
        self.around, self.recalled = around, recalled
        self.learned: list[Learned] = []
        self.outcomes: list[Outcome] = []


class _State(threading.local):
    """The passes that are being made, from the outermost in."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []
        self.finish_all = False
        self.has_guessed = False


_state = _State()

# JAX may have a trace cached, and then the loops inside are not met again.
_outcomes_inside: WeakKeyDictionary[Any, list[Outcome]] = WeakKeyDictionary()


class Settling:
    """What the passes over one body tell of the loops inside it."""

    def __init__(self) -> None:
        self.guessed_wrong = False
        self.forget()

    def forget(self) -> None:
        """Begin again with what is known now: nothing."""
        self._last = _Pass(None, [])
        self._guesses: list[Outcome] = []

    @contextmanager
    def tracing_a_body(self, may_be_thrown_away: bool) -> Generator[None]:
        """Say that the body is traced, and whether the pass may only learn types."""
        self._guesses += [outcome for outcome in self._last.outcomes if outcome.is_guess]
        learning = may_be_thrown_away or is_learning()
        around = _jax.current_trace() if learning else None
        self._last = _Pass(around, recalled=self._last.learned)
        _state.passes.append(self._last)
        try:
            yield
        finally:
            _state.passes.pop()

    def holds_unfinished(self, jaxpr: Any) -> bool:
        """Whether the pass just made, which gave a jaxpr, left loops inside unfinished."""
        if jaxpr is None:
            return False
        holds_unfinished = _unfinished in jaxpr.effects
        if self._last.outcomes:
            _outcomes_inside[jaxpr] = self._last.outcomes
        elif holds_unfinished or self._guesses:
            unknown = [Outcome((), is_guess=True)]  # nothing equals it, so it proves wrong
            self._last.outcomes = _outcomes_inside.get(jaxpr, unknown)
        return holds_unfinished

    def has_promoted_inside(self) -> bool:
        """Whether a loop inside was promoted in the pass just made."""
        return bool(self._last.learned)

    def guesses_were_right(self) -> bool:
        """Compare the guesses of earlier passes with what came out of the last one."""
        outcomes = iter(self._last.outcomes)
        for guess in self._guesses:
            if not any(outcome.types == guess.types for outcome in outcomes):
                self.guessed_wrong = True
        return not self.guessed_wrong

    def tell_outer_loop(self, learned: Learned | None, outcome: Outcome) -> None:
        """Tell the pass around the loop what the loop, and those inside it, came to."""
        if not _state.passes:
            return
        outer = _state.passes[-1]
        outer.learned += self._last.learned
        if learned is not None:
            outer.learned.append(learned)
        outer.outcomes.append(outcome)


@contextmanager
def tracing_a_condition() -> Generator[None]:
    """Say that a loop's condition is traced: its type is known beforehand, so nothing is learned.

    The loops inside belong to the pass that is being made.
    """
    this = _state.passes[-1]
    around, this.around = this.around, None
    try:
        yield
    finally:
        this.around = around


Result = TypeVar("Result")


def settle_loop(settle: Callable[[Settling, bool], Result]) -> Result:
    """Run `settle(settling, finish_all=False)`, and without guesses if one was wrong.

    Where several loops of a nest break the contract, the one to name is the one that is met when
    all loops are finished in all passes. So is any other error that comes after a guess: the
    outermost loop is settled again in that way.
    """
    is_outermost = not _state.passes
    before = _state.has_guessed
    if is_outermost:
        _state.has_guessed = False
    settling = Settling()
    try:
        settled = settle(settling, _state.finish_all)
        if not settling.guessed_wrong:
            return settled
    except Exception:
        if not (is_outermost and _state.has_guessed):
            raise
    finally:
        if is_outermost:  # an error's explanation tries out loops of its own
            _state.has_guessed = before
    with _finishing_all():
        return settle(Settling(), True)


@contextmanager
def _finishing_all() -> Generator[None]:
    before, _state.finish_all = _state.finish_all, True
    try:
        yield
    finally:
        _state.finish_all = before


def is_learning() -> bool:
    """Whether what is traced now is the body of a loop that only learns types, and nothing else."""
    if _state.finish_all or not _state.passes:
        return False
    around = _state.passes[-1].around
    return around is not None and _jax.trace_around(_jax.current_trace()) is around


def is_nested() -> bool:
    """Whether a loop's body is being traced."""
    return bool(_state.passes)


def recall(place: Place) -> Learned | None:
    """What a loop learned when its body was the same, in the pass before of a loop around it."""
    for outer in reversed(_state.passes):
        learned = take_recalled(place, outer.recalled)
        if learned is not None:
            return learned
    return None


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
    _state.has_guessed = True
    return unfinished_loop_p.bind(avals=tuple(avals))


register_nesting(Nesting(settle_loop, tracing_a_condition))
