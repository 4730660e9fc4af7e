"""How loops nested in a body that is checked behave, told by the loops themselves.

A loop inside a body may leave itself unfinished where the pass is only to learn types, and such a
pass is run again. `loops` registers what it does about that when it is imported; without it there
are no such loops, and nothing to do. So `checks` knows how often a loop traces its body, and still
imports nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Nesting:
    """What loops do about loops inside their bodies.

    Args:
      tracing_a_body: context in which a body is traced; told whether the pass may be thrown away.
      is_unfinished: whether a jaxpr holds an unfinished loop.
      finishing_all_after_an_error: runs a function that settles a loop, and once more if it raises.
    """

    tracing_a_body: Callable[[bool], AbstractContextManager[None]] = lambda _: nullcontext()
    is_unfinished: Callable[[Any], bool] = lambda _: False
    finishing_all_after_an_error: Callable[[Callable[[bool], Any]], Any] = lambda settle: settle(
        False
    )


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
