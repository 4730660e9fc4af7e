"""How many steps a scan runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from loops import _jax


def infer_length(xs: Any, avals: Sequence[Any], length: Any) -> Any:
    """The number of steps, from the leading axes of the xs and from `length`.

    Args:
      xs: the pytree that is scanned over, for the names of its leaves.
      avals: the types of its leaves.
      length: what the caller asked for, or None.

    Returns:
      An integer, or a symbolic dimension where the xs have one.

    Raises:
      ValueError: a leaf has no leading axis, the axes disagree with one another or with `length`,
        there is neither an axis nor a `length` (a high-level value shows none), or it is negative.
      TypeError: `length` is no whole number; jax.errors.ConcretizationTypeError if it is traced.
    """
    sizes = _leading_axes(xs, avals)
    if length is None:
        if not sizes and avals:
            raise ValueError(
                "must provide `length` to `scan`, since the leading-axis size of non-array (hijax) "
                "types cannot be inferred"
            )
        if not sizes:
            raise ValueError("scan got no values to scan over and `length` not provided.")
        if any(size is not sizes[0] and size != sizes[0] for size in sizes):
            listed = ", ".join(str(size) for size in sizes)
            message = f"scan got values with different leading axis sizes: {listed}."
            raise _naming_leaves(ValueError(message), xs, sizes)
        return sizes[0]
    length = whole_length(length)
    if any(size is not length and size != length for size in sizes):
        message = (
            f"scan got `length` argument of {length} which disagrees with "
            f"leading axis sizes {sizes}."
        )
        raise _naming_leaves(ValueError(message), xs, sizes)
    return length


def _leading_axes(xs: Any, avals: Sequence[Any]) -> list[Any]:
    """The leading axis of each leaf that is an array or a Ref."""
    avals = [aval for aval in avals if not aval.is_high]
    if not all(aval.shape for aval in avals):
        typed = [(x, jax.typeof(x)) for x in jax.tree.leaves(xs)]
        without_axis = [x for x, aval in typed if not aval.is_high and not aval.shape]
        listed = ", ".join(str(x) for x in without_axis)
        raise ValueError(f"scan got value with no leading axis to scan over: {listed}.")
    sharded = [a for a in avals if not _jax.is_ref(a) and a.sharding.spec.partitions[0] is not None]
    if sharded:
        raise ValueError(
            "0th dimension of all xs should be replicated. Got "
            f"{', '.join(str(a.sharding.spec) for a in sharded)}. Steps run one after the other: "
            "use `jax.sharding.reshard` before the loop to shard another dimension."
        )
    return [aval.shape[0] for aval in avals]


def whole_length(length: Any) -> Any:
    """`length` as an integer, or unchanged if it is a symbolic dimension.

    A float is taken if it is whole: `length=total / step` that comes out as 2.9999999999999996 must
    not quietly become two steps.
    """
    if _jax.is_symbolic_dimension(length):
        return length
    length = _jax.concrete_int(
        length,
        "The `length` argument to `scan` expects a concrete `int` value. For scan-like iteration "
        "with a dynamic length, use `while_loop` or `fori_loop`.",
    )
    try:
        whole = operator.index(length)
    except TypeError:
        whole = int(length) if isinstance(length, float) and length.is_integer() else None
    if whole is None:
        raise TypeError(
            f"scan needs a whole number for `length`, got {length!r}. "
            "Round it first, for instance `length=round(total / step)`."
        )
    if whole < 0:
        raise ValueError(f"scan got a negative `length`: {whole}.")
    return whole


def _naming_leaves(error: ValueError, xs: Any, sizes: list[Any]) -> ValueError:
    """Add a note that says which leaf of the xs has which leading axis."""
    leaves = tree_flatten_with_path(xs)[0]
    paths = [keystr(path) for path, x in leaves if not jax.typeof(x).is_high]
    rows = [f"  xs{path}: {size}" for path, size in zip(paths, sizes, strict=True)]
    error.add_note("\n".join(["The leading axis of each leaf of `xs`:", *rows]))
    return error
