"""`map`: a function of one row applied to each row, one after the other or in batches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_leaves, tree_map

from loops import _jax
from loops.lengths import infer_length
from loops.scan import scan_named
from loops.wrappers import map_body

X = TypeVar("X")
Y = TypeVar("Y")


@_jax.api_boundary
def map(f: Callable[[X], Y], xs: X, *, batch_size: int | None = None) -> Y:
    """Apply `f` to each row of `xs` and stack what it returns.

    It computes what this Python function does, compiled as one loop::

        def map(f, xs):
            return stack([f(x) for x in xs])

    With `batch_size` it applies `jax.vmap(f)` to that many rows at a time: a middle road between
    the memory of `jax.vmap` and the speed of one row after the other.

    Args:
      f: a function of one row.
      xs: arrays with a common leading axis, in any pytree.
      batch_size: how many rows to work on at a time; the last batch may be smaller.

    Returns:
      What `f` returns, with a new leading axis.

    Raises:
      TypeError: `f` is not callable.
      ValueError: `batch_size` is negative, or the leading axes of `xs` disagree.

    Example:
      >>> import jax.numpy as jnp
      >>> print(map(lambda x: x**2, jnp.arange(4)))
      [0 1 4 9]
    """
    if not callable(f):
        raise TypeError(f"lax.map: f must be callable, got {type(f).__name__}.")
    if batch_size is not None:
        return _map_in_batches(f, xs, operator.index(batch_size))
    debug = _jax.debug_info("map", f, xs)
    _, ys = scan_named(map_body(f), (), xs, None, False, 1, debug)
    return ys


def _map_in_batches(f: Callable[[Any], Any], xs: Any, batch_size: int) -> Any:
    """Scan over whole batches of rows, then apply `jax.vmap(f)` to the rows that are left."""
    if batch_size < 0:
        raise ValueError(f"map: batch_size must not be negative, got {batch_size}.")
    leaves = tree_leaves(xs)
    num_rows = infer_length(xs, [jax.typeof(x) for x in leaves], None)
    num_batches = num_rows // batch_size if batch_size else 0
    num_scanned = num_batches * batch_size
    if num_batches == 0:
        return jax.vmap(f)(xs)

    batches = tree_map(
        lambda x: x[:num_scanned].reshape(num_batches, batch_size, *x.shape[1:]),
        tree_map(jnp.asarray, xs),
    )
    stacked = map(jax.vmap(f), batches)
    ys = tree_map(lambda y: y.reshape(num_scanned, *y.shape[2:]), stacked)
    if num_scanned == num_rows:
        return ys
    rest = jax.vmap(f)(tree_map(lambda x: x[num_scanned:], xs))
    return tree_map(lambda first, last: lax.concatenate([first, last], 0), ys, rest)
