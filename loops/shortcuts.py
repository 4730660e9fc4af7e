"""What need not go through a loop: found once for each traced body.

A carry that the body hands on unchanged is a constant, and an x that goes straight to the ys is the
stacked y already.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from loops import _jax
from loops.primitives.layout import partition, split_scan_outputs


class ScanShortcuts(NamedTuple):
    """A scan's body without what need not go through it.

    before: [*consts, *carry, *x]                   -> [*carry, *y]
    after:  [*consts, *read-only carry, *carry, *x] -> [*carry that changes, *y that is new]

    `row_of` has for each y the position of the x that it is, or None. `jaxpr` is None where nothing
    is left out.
    """

    jaxpr: Any
    is_read_only: list[bool]
    row_of: list[int | None]


@_jax.cached_by_jaxpr
def scan_shortcuts(jaxpr: Any, num_consts: int, num_carry: int) -> ScanShortcuts:
    """Find the read-only carry and the copied xs of a scan's body."""
    first_x = num_consts + num_carry
    carry_source, ys_source = split_scan_outputs(_jax.forwarded_inputs(jaxpr), num_carry)
    is_read_only = [source == num_consts + i for i, source in enumerate(carry_source)]
    row_of = [None if s is None or s < first_x else s - first_x for s in ys_source]
    if not any(is_read_only) and all(row is None for row in row_of):
        return ScanShortcuts(None, is_read_only, row_of)
    changing, constant = partition(is_read_only, range(num_consts, first_x))
    xs = range(first_x, len(jaxpr.in_avals))
    outputs = [
        *(i for i, fixed in enumerate(is_read_only) if not fixed),
        *(num_carry + i for i, row in enumerate(row_of) if row is None),
    ]
    shorter = _jax.permute(jaxpr, [*range(num_consts), *constant, *changing, *xs], outputs)
    return ScanShortcuts(shorter, is_read_only, row_of)


class WhileShortcuts(NamedTuple):
    """A while loop without the carry that its body hands on and its condition does not read.

    cond before: [*consts, *carry]                        -> [predicate]
    cond after:  [*consts, *carry that stays]             -> [predicate]
    body before: [*consts, *carry]                        -> [*carry]
    body after:  [*consts, *constant, *carry that stays]  -> [*carry that stays]

    Both jaxprs are None where nothing is left out.
    """

    cond_jaxpr: Any
    body_jaxpr: Any
    is_constant: list[bool]


@_jax.cached_by_jaxpr
def while_shortcuts(
    body_jaxpr: Any, body_nconsts: int, cond_jaxpr: Any, cond_nconsts: int
) -> WhileShortcuts:
    """Find the carry that only the body reads, and hands on unchanged."""
    sources = _jax.forwarded_inputs(body_jaxpr)
    changes = [source != body_nconsts + i for i, source in enumerate(sources)]
    nothing = WhileShortcuts(None, None, [False] * len(changes))
    if all(changes):
        return nothing
    cond, used = _jax.eliminate_dead_code(cond_jaxpr, [True], [*[True] * cond_nconsts, *changes])
    is_constant = [not is_used for is_used in used[cond_nconsts:]]
    if not any(is_constant):
        return nothing
    stays, moves = partition(is_constant, range(len(changes)))
    inputs = [*range(body_nconsts), *(body_nconsts + i for i in [*moves, *stays])]
    return WhileShortcuts(cond, _jax.permute(body_jaxpr, inputs, stays), is_constant)
