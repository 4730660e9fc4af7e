"""What an inner loop learned is used when its outer loop is traced again.

A pass over the outer body meets the inner loops anew. If one of them has the same body and starts
from the same types as one of the pass before, it would only find out the same: so it converts its
init at once as that one had to in the end. It still runs its body, and if the types that come out
are others after all, it starts afresh.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Place(NamedTuple):
    """All that the passes of a loop depend on: its functions, as they are described, and its init.

    Functions are described by `loops.same_function`.
    """

    functions: Any
    init_tree: Any
    init_avals: tuple[Any, ...]


class Learned(NamedTuple):
    """The conversions of the init that a loop's passes led to, one after the other.

    `is_settled` says that the last pass confirmed them.
    """

    place: Place
    conversions: tuple[Any, ...]
    is_settled: bool


def take_recalled(place: Place, recalled: list[Learned]) -> Learned | None:
    """Take the first of what is recalled that was learned in the same place."""
    for position, learned in enumerate(recalled):
        if _is_same(place, learned.place):
            return recalled.pop(position)
    return None


def _is_same(one: Place, other: Place) -> bool:
    try:
        return one == other
    except (TypeError, ValueError):  # a user's class that cannot be compared
        return False
