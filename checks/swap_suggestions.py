"""Advice where two things are returned in each other's place, or one in the place of two.

return y, carry                      the pair of a scan's body
return a, b                          the carry in the place of that pair
return (a, b), None                  that pair in the place of the carry, in another loop
best, count = c; ...                 two components of the carry, which come out with each
return count + 1, maximum(best, x)   other's types
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.core import ShapedArray
from jax.tree_util import SequenceKey, tree_leaves, tree_structure, tree_unflatten

from checks.displays import element, swapped
from checks.jaxprs import Scope, depends_on, forwards
from checks.leaf_problem import changed_site
from checks.matching import avals_match
from checks.rewriting import operand
from checks.tracing import LoopBody, key_paths
from checks.trial import Change, subtree_at
from checks.written import WrittenBody


def carry_and_y(written: WrittenBody, body: LoopBody, carry: Any) -> Iterator[Change]:
    """Changes of the pair of carry and y that a scan's body returns.

    The two are exchanged where the y is what the carry should be: if only the y is computed from
    the carry, or if it alone has as many parts. A y that is the carry as it came says nothing: many
    a body returns `x, c` for the value before. And the two of them may be the carry, with no y.

    Args:
      written: the body's source.
      body: the body.
      carry: the types of the carry that goes in.
    """
    pair = written.returned_pair()
    if pair is None:
        return
    traced = body.trace_all(carry)
    output = tree_unflatten(traced.out_tree, traced.out_avals)
    if _are_types_of(carry, output):
        edit = changed_site(pair, lambda text: f"({operand(text)}, None)")
    elif _y_is_the_carry(body, traced.jaxpr, carry, output[0]):
        edit = changed_site(pair, lambda text: swapped(text, 0, 1))
    else:
        edit = None
    if edit is not None:
        yield Change((edit,), is_the_fault=True)


def _are_types_of(before: Any, after: Any) -> bool:
    """Whether a pytree of types has the structure and the types of another."""
    same = tree_structure(before) == tree_structure(after)
    return same and all(map(_fits, tree_leaves(before), tree_leaves(after)))


def _y_is_the_carry(body: LoopBody, jaxpr: Any, carry: Any, carry_out: Any) -> bool:
    scope, start = Scope(jaxpr), len(tree_leaves(body.before))
    inputs, outputs = scope.jaxpr.invars, scope.jaxpr.outvars
    inputs, num_out = inputs[start : start + len(key_paths(carry))], len(key_paths(carry_out))
    reads = [any(depends_on(scope, output, source) for source in inputs) for output in outputs]
    as_it_came = [any(forwards(scope, output, source) for source in inputs) for output in outputs]
    is_computed = [read and not same for read, same in zip(reads, as_it_came)]
    has_all_parts = len(outputs) - num_out == len(inputs) > max(num_out, 1)
    return any(is_computed[num_out:]) and (has_all_parts or not any(reads[:num_out]))


def carry_in_a_tuple(written: WrittenBody, before: Any, after: Any) -> Iterator[Change]:
    """The carry taken out of a tuple in which it is returned, beside what nobody carries.

    Args:
      written: the body's source.
      before: the carry of types that goes in.
      after: the one that comes out.
    """
    items = after if type(after) in (tuple, list) else ()
    fits = [i for i, item in enumerate(items) if _are_types_of(before, item)]
    if len(fits) != 1 or isinstance(before, ShapedArray):
        return
    for place in written.returned(()).exact:
        edit = changed_site(place, lambda text: element(text, fits[0]))
        if edit is not None:
            yield Change((edit,))


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
