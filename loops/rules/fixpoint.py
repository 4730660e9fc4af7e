"""The fixpoint that the rules share: which parts of a carry have a property.

A property such as "has a tangent", "is batched" or "is unknown" enters a loop with the initial
carry and spreads through the body: a part that lacks it going in may have it coming out, and has it
going in at the next step. So a rule assumes a set of parts, runs the body's transformation, and
adds what came out, until nothing new comes out. Each round adds at least one part, so it takes at
most one round more than there are parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def grow_to_fixpoint(
    start: Sequence[bool], transform: Callable[[list[bool]], tuple[Result, Sequence[bool]]]
) -> tuple[list[bool], Result]:
    """Grow a set of marked parts until a transformation of the body marks no others.

    Args:
      start: the parts that are marked in the initial carry.
      transform: given marked parts going in, what it made of the body, and the parts coming out.

    Returns:
      The marked parts, and what `transform` made of the body for them.
    """
    marked = list(start)
    while True:
        result, marked_out = transform(marked)
        grown = [a or b for a, b in zip(marked, marked_out, strict=True)]
        if grown == marked:
            return marked, result
        marked = grown
