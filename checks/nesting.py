"""How loops nested in a body that is checked behave, told by the loops themselves.

A loop inside a body may leave itself unfinished where the pass is only to learn types, and such a
pass is run again. `loops` registers what it does about that when it is imported; without it there
are no such loops, and nothing to do. So `checks` knows how often a loop traces its body, and still
imports nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol


class Settling(Protocol):
    """What the passes over one body tell of the loops inside it."""

    def tracing_a_body(self, may_be_thrown_away: bool) -> AbstractContextManager[None]:
        """Context in which the body is traced; told whether the pass may be thrown away."""
        ...

    def holds_unfinished(self, jaxpr: Any) -> bool:
        """Whether the pass just made, which gave a jaxpr, left loops inside unfinished."""
        ...

    def guesses_were_right(self) -> bool:
        """Whether what unfinished loops said was right, now that all are finished."""
        ...


class _NoneInside:
    """Bodies without loops inside."""

    def tracing_a_body(self, may_be_thrown_away: bool) -> AbstractContextManager[None]:
        del may_be_thrown_away
        return nullcontext()

    def holds_unfinished(self, jaxpr: Any) -> bool:
        del jaxpr
        return False

    def guesses_were_right(self) -> bool:
        return True


@dataclass(frozen=True)
class Nesting:
    """What loops do about loops inside their bodies.

    Args:
      settle_loop: runs a function that settles a loop, `settle(settling, finish_all)`, and once
        more if loops inside were unfinished and that went wrong.
      tracing_a_condition: context in which the condition is traced, within that of the body.
    """

    settle_loop: Callable[[Callable[[Any, bool], Any]], Any] = lambda settle: settle(
        _NoneInside(), False
    )
    tracing_a_condition: Callable[[], AbstractContextManager[None]] = nullcontext


_registered = [Nesting()]


def register_nesting(nesting: Nesting) -> None:
    """Tell the static checks how loops nested in a body behave.

    Args:
      nesting: what takes the place of what was registered before.
    """
    _registered[:] = [nesting]


def nesting() -> Nesting:
    """What is registered."""
    return _registered[0]
