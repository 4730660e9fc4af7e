"""Advice where two things are returned in each other's place.

return y, carry                      the pair of a scan's body
best, count = c; ...                 two components of the carry, which come out with each
return count + 1, maximum(best, x)   other's types
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.core import ShapedArray
from jax.tree_util import SequenceKey

from checks.jaxprs import Scope, depends_on, forwards
from checks.leaf_problem import changed_site
from checks.matching import avals_match
from checks.rewriting import swapped
from checks.trial import Change, subtree_at
from checks.written import WrittenBody


def carry_and_y(written: WrittenBody, jaxpr: Any, carry: slice, num_out: int) -> Iterator[Change]:
    """The carry and the y of a scan's body exchanged, where the y is what the carry should be.

    That is so if only the y is computed from the carry, or if it alone has as many parts. A y that
    is the carry as it came says nothing: many a body returns `x, c` for the value before.

    Args:
      written: the body's source.
      jaxpr: the body's jaxpr; its outputs are those of the carry, then those of the y.
      carry: which of its inputs are the carry.
      num_out: how many of its outputs are returned for the carry.
    """
    pair = written.returned_pair()
    if pair is None or not _y_is_the_carry(Scope(jaxpr), carry, num_out):
        return
    edit = changed_site(pair, lambda text: swapped(text, 0, 1))
    if edit is not None:
        yield Change((edit,), is_the_fault=True)


def _y_is_the_carry(scope: Scope, carry: slice, num_out: int) -> bool:
    inputs, outputs = scope.jaxpr.invars[carry], scope.jaxpr.outvars
    reads = [any(depends_on(scope, output, source) for source in inputs) for output in outputs]
    as_it_came = [any(forwards(scope, output, source) for source in inputs) for output in outputs]
    is_computed = [read and not same for read, same in zip(reads, as_it_came)]
    has_all_parts = len(outputs) - num_out == len(inputs) > max(num_out, 1)
    return any(is_computed[num_out:]) and (has_all_parts or not any(reads[:num_out]))


def two_components(
    written: WrittenBody, broken: Sequence[tuple[Any, ...]], before: Any, after: Any
) -> Iterator[Change]:
    """Two components exchanged that come out with each other's types, and not with their own.

    Args:
      written: the body's source.
      broken: the key paths of the components that are broken.
      before: the carry of types that goes in.
      after: the one that comes out.
    """
    if len(broken) != 2:
        return
    (*parent, first), (*other, second) = broken
    if parent != other or not all(isinstance(key, SequenceKey) for key in (first, second)):
        return
    types = [[subtree_at(tree, path) for path in broken] for tree in (before, after)]
    crossed = all(_fits(a, b) for a, b in zip(types[0], reversed(types[1])))
    if not crossed:
        return
    for place in written.returned(tuple(parent)).exact:
        edit = changed_site(place, lambda text: swapped(text, first.idx, second.idx))
        if edit is not None:
            yield Change((edit,), is_the_fault=True)


def _fits(before: Any, after: Any) -> bool:
    both = isinstance(before, ShapedArray) and isinstance(after, ShapedArray)
    return both and avals_match(before, after)
