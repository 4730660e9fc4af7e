"""Comparing two trees of results: structure, shapes, dtypes, weak types and values."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# What two orders of the same operations may differ by, for each dtype.
_TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "bfloat16": 3e-2, "float16": 3e-3}


def differences(got: Any, want: Any, *, rtol: float = 1e-5, weak_types: bool = True) -> list[str]:
    """The leaves of two trees that differ: where each is, and what either side has there.

    Args:
      got: a pytree of arrays, keys among them, or of anything that compares by `==`.
      want: another.
      rtol: by how much floats may differ, relative to themselves and absolutely. Narrow dtypes may
        differ by more.
      weak_types: whether weak types have to agree.

    Returns:
      A sentence for each leaf that differs, one for all where the structures do.

    Example:
      >>> differences({"a": jnp.float32(1), "b": 2}, {"a": jnp.int32(1), "b": 2})
      ["result['a']: type float32[] instead of int32[]"]
    """
    structures = jax.tree.structure(got), jax.tree.structure(want)
    if structures[0] != structures[1]:
        return [f"result: structure {structures[0]} instead of {structures[1]}"]
    return list(_leaf_differences(got, want, rtol, weak_types))


def _leaf_differences(got: Any, want: Any, rtol: float, weak_types: bool) -> Iterator[str]:
    leaves = zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, left), right in leaves:
        if problem := _difference(left, right, rtol, weak_types):
            yield f"result{jax.tree_util.keystr(path)}: {problem}"


def type_of(leaf: Any, *, weak_type: bool = True) -> tuple[Any, ...]:
    """Shape, dtype and, if asked for, weak type of one leaf."""
    if isinstance(leaf, np.ndarray):  # float0, which is no type of a jax.Array, or a constant
        return leaf.shape, leaf.dtype, False if weak_type else None
    aval = jax.typeof(leaf)
    # A weak boolean promotes as a strong one does, and not all of JAX keeps it weak.
    weak = aval.weak_type and aval.dtype != bool
    return aval.shape, aval.dtype, weak if weak_type else None


def is_float(leaf: Any) -> bool:
    """Whether the leaf has a derivative."""
    return jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact)


def _difference(got: Any, want: Any, rtol: float, weak_types: bool) -> str | None:
    if not isinstance(want, jax.Array | np.ndarray):  # a type or a number that was put there
        return None if got == want else f"{got} instead of {want}"
    if type_of(got, weak_type=weak_types) != type_of(want, weak_type=weak_types):
        return f"type {_type_text(got)} instead of {_type_text(want)}"
    if want.dtype == jax.dtypes.float0:
        return None
    left, right = _numbers(got), _numbers(want)
    rtol = max(rtol, _TOLERANCE.get(str(want.dtype), rtol))
    exact = not jnp.issubdtype(want.dtype, jnp.inexact)
    same = np.array_equal(left, right) if exact else _close(left, right, rtol)
    return None if same else f"{got} instead of {want}"


def _type_text(leaf: Any) -> str:
    shape, dtype, weak = type_of(leaf)
    return f"{dtype}[{','.join(map(str, shape))}]{' (weak)' if weak else ''}"


def _close(left: np.ndarray, right: np.ndarray, rtol: float) -> bool:
    return np.allclose(left, right, rtol=rtol, atol=rtol, equal_nan=True)


def _numbers(leaf: Any) -> np.ndarray:
    """The leaf in a dtype that numpy compares: keys as their words, bfloat16 as float32."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    if leaf.dtype == jnp.bfloat16:
        return np.asarray(leaf, np.float32)
    return np.asarray(leaf)
