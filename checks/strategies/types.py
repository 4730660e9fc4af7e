"""Strategies for the types of arrays: dtypes, shapes and avals."""

from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.core import ShapedArray

from checks.strategies.validation import (
    check_choices,
    check_dtype,
    check_flag,
    check_range,
    check_shape,
    check_size,
    check_strategy,
)

KINDS = ("float", "int", "bool", "unsigned", "complex")
_DTYPES = {
    "float": ("float32", "bfloat16", "float16"),
    "int": ("int32", "int8", "int16"),
    "bool": ("bool",),
    "unsigned": ("uint32", "uint8", "uint16"),
    "complex": ("complex64",),
}
_WIDE = {
    "float": ("float64",),
    "int": ("int64",),
    "bool": (),
    "unsigned": ("uint64",),
    "complex": ("complex128",),
}


@st.composite
def dtypes(draw: st.DrawFn, *, kinds: Any = KINDS) -> np.dtype:
    """Dtypes that arrays of JAX have.

    Shrinks towards float32, or else towards the first of the kinds.

    Args:
      draw: given by Hypothesis.
      kinds: some of `float`, `int`, `bool`, `unsigned` and `complex`. The 64-bit dtypes of a kind
        belong to it in x64 mode.

    Returns:
      A strategy of NumPy dtypes.

    Raises:
      hypothesis.errors.InvalidArgument: a kind is unknown, or there is none. It is raised when a
        value is drawn, as by all strategies here.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(dtypes(), lambda dtype: True)
      dtype('float32')
    """
    check_choices(kinds, "kinds", KINDS)
    wide = jax.config.read("jax_enable_x64")
    names = [n for kind in kinds for n in _DTYPES[kind] + (_WIDE[kind] if wide else ())]
    return np.dtype(draw(st.sampled_from(names)))


@st.composite
def shapes(
    draw: st.DrawFn,
    *,
    min_dims: int = 0,
    max_dims: int = 2,
    min_side: int = 0,
    max_side: int = 3,
) -> tuple[int, ...]:
    """Shapes of small arrays, empty ones among them.

    Shrinks towards few and short axes.

    Args:
      draw: given by Hypothesis.
      min_dims: the least number of axes.
      max_dims: the greatest.
      min_side: the least length of an axis; 1 leaves out arrays without an element.
      max_side: the greatest.

    Returns:
      A strategy of tuples of integers.

    Raises:
      hypothesis.errors.InvalidArgument: a bound is negative, or a pair of bounds leaves nothing.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(shapes(), lambda shape: len(shape) == 2)
      (0, 0)
    """
    for name, value in (("min_dims", min_dims), ("min_side", min_side)):
        check_size(value, name)
    check_size(max_dims, "max_dims")
    check_size(max_side, "max_side")
    check_range(min_dims, max_dims, "min_dims", "max_dims")
    check_range(min_side, max_side, "min_side", "max_side")
    sides = st.integers(min_side, max_side)
    return tuple(draw(st.lists(sides, min_size=min_dims, max_size=max_dims)))


@st.composite
def avals(
    draw: st.DrawFn,
    *,
    dtypes: st.SearchStrategy[np.dtype] | None = None,
    shapes: st.SearchStrategy[tuple[int, ...]] | None = None,
    weak: bool | None = None,
) -> ShapedArray:
    """Types of arrays, weak ones among them.

    Shrinks towards a strong float32 scalar.

    Args:
      draw: given by Hypothesis.
      dtypes: a strategy of dtypes; `dtypes()` by default.
      shapes: a strategy of shapes; `shapes()` by default.
      weak: True for weak types only, False for strong ones only, None for both. Only the types that
        Python numbers have are ever weak, so `weak=True` takes of `dtypes` the kinds, which must
        not be boolean.

    Returns:
      A strategy of `jax.core.ShapedArray`.

    Raises:
      hypothesis.errors.InvalidArgument: an argument is no strategy, or not one of dtypes or shapes,
        or `weak` is no flag.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(avals(), lambda aval: True)
      ShapedArray(float32[])
    """
    check_strategy(dtypes, "dtypes")
    check_strategy(shapes, "shapes")
    check_flag(weak, "weak")
    dtype = check_dtype(draw(_all_dtypes() if dtypes is None else dtypes), "each of dtypes")
    shape = check_shape(draw(_all_shapes() if shapes is None else shapes), "each of shapes")
    python_type = python_type_of(dtype)
    # Drawn for a boolean as well: fewer choices are taken for simpler, and it is no simpler.
    is_weak = draw(st.booleans()) if weak is None else weak
    weak_type = is_weak and python_type is not None
    if weak_type:
        dtype = jax.dtypes.canonicalize_dtype(python_type)
    return ShapedArray(shape, dtype, weak_type=weak_type)


_all_dtypes, _all_shapes = dtypes, shapes  # `avals` has arguments of these names


def python_type_of(dtype: Any) -> type | None:
    """The Python number that a weakly typed array of that kind comes from, if there is one."""
    if jax.numpy.issubdtype(dtype, np.integer):
        return int
    if jax.numpy.issubdtype(dtype, np.floating):
        return float
    return complex if jax.numpy.issubdtype(dtype, np.complexfloating) else None
