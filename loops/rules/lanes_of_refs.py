"""Refs that a loop over lanes writes to, with their lanes where the predicate has them.

Lowered, a Ref that a loop writes to is a part of its carry, of which a lane that is done keeps its
own. So its lanes must be the axis that they are in the rest of the carry. A Ref's memory cannot be
transposed: one whose lanes are another axis is copied before the loop, and copied back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.primitives.layout import keep


class MovedRefs(NamedTuple):
    """Constants of a loop and their batch axes, with copies in the place of some Refs."""

    consts: list[Any]
    dims: list[int | None]
    copied: list[tuple[Any, int, Any]]  # each Ref, its batch axis and its copy
    position: int

    def copy_back(self) -> None:
        """Write what the loop left in the copies to the Refs."""
        for ref, dim, copy in self.copied:
            ref[...] = _jax.move_axis(copy[...], self.position, dim)


def move_lanes_of_refs(
    position: int, consts: Sequence[Any], dims: Sequence[int | None], is_written: Sequence[bool]
) -> MovedRefs:
    """Copy the Refs that are written and have their batch axis elsewhere than at `position`.

    A Ref that occurs twice, in condition and body say, has one copy.
    """
    copies: dict[int, Any] = {}
    copied = []
    for ref, dim in keep(is_written, list(zip(consts, dims, strict=True))):
        if dim is not None and dim != position and id(ref) not in copies:
            copies[id(ref)] = jax.new_ref(_jax.move_axis(ref[...], dim, position))
            copied.append((ref, dim, copies[id(ref)]))
    return MovedRefs(
        [copies.get(id(x), x) for x in consts],
        [position if id(x) in copies else dim for x, dim in zip(consts, dims, strict=True)],
        copied,
        position,
    )
