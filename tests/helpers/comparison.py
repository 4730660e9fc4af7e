"""Comparing two trees of results: structure, shapes, dtypes, weak types and values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# What two orders of the same operations may differ by, for each dtype.
_TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "bfloat16": 3e-2, "float16": 3e-3}


def assert_same(got: Any, want: Any, *, rtol: float = 1e-5, weak_types: bool = True) -> None:
    """Fails with every leaf that differs: where it is, and what each side has there."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    leaves = zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True)
    differences = [
        f"result{jax.tree_util.keystr(path)}: {problem}"
        for (path, left), right in leaves
        if (problem := _difference(left, right, rtol, weak_types))
    ]
    assert not differences, "\n".join(differences)


def type_of(leaf: Any, *, weak_type: bool = True) -> tuple[Any, ...]:
    """Shape, dtype and, if asked for, weak type of one leaf."""
    if isinstance(leaf, np.ndarray):  # float0, which is no type of a jax.Array
        return leaf.shape, leaf.dtype, False
    aval = jax.typeof(leaf)
    return aval.shape, aval.dtype, aval.weak_type if weak_type else None


def types_of(tree: Any) -> list[tuple[Any, ...]]:
    """The types of all leaves."""
    return [type_of(leaf) for leaf in jax.tree.leaves(tree)]


def is_float(leaf: Any) -> bool:
    """Whether the leaf has a derivative."""
    return jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact)


def _difference(got: Any, want: Any, rtol: float, weak_types: bool) -> str | None:
    if not isinstance(want, jax.Array | np.ndarray):  # a type or a number that was put there
        return None if got == want else f"{got} instead of {want}"
    types = [type_of(leaf, weak_type=weak_types) for leaf in (got, want)]
    if types[0] != types[1]:
        return f"type {types[0]} instead of {types[1]}"
    if want.dtype == jax.dtypes.float0:
        return None
    left, right = _numbers(got), _numbers(want)
    rtol = max(rtol, _TOLERANCE.get(str(want.dtype), rtol))
    exact = not jnp.issubdtype(want.dtype, jnp.inexact)
    same = np.array_equal(left, right) if exact else _close(left, right, rtol)
    return None if same else f"{got} instead of {want}"


def _close(left: np.ndarray, right: np.ndarray, rtol: float) -> bool:
    return np.allclose(left, right, rtol=rtol, atol=rtol, equal_nan=True)


def _numbers(leaf: Any) -> np.ndarray:
    """The leaf in a dtype that numpy compares: keys as their words, bfloat16 as float32."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    if leaf.dtype == jnp.bfloat16:
        return np.asarray(leaf, np.float32)
    return np.asarray(leaf)
