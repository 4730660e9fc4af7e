"""Strategies for the leaves of a carry: numbers, arrays and keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.core import ShapedArray

from checks.python_loops import as_type
from checks.strategies.types import avals as all_avals
from checks.strategies.types import python_type_of
from checks.strategies.validation import (
    check_aval,
    check_flag,
    check_held,
    check_shape,
    check_strategy,
)

SCALAR_SHAPES = st.just(())


@st.composite
def arrays(
    draw: st.DrawFn,
    *,
    avals: st.SearchStrategy[ShapedArray] | None = None,
    elements: st.SearchStrategy[Any] | None = None,
) -> jax.Array:
    """Arrays of any type that a carry may have.

    Shrinks towards an array of zeros of the type that `avals` shrinks to.

    Args:
      draw: given by Hypothesis.
      avals: a strategy of types; `avals()` by default.
      elements: a strategy of numbers to fill the array with, which its dtype must hold. By default
        small ones: floats from -10 to 10, integers from -10 or 0 to 10; no infinity and no NaN.

    Returns:
      A strategy of `jax.Array`.

    Raises:
      hypothesis.errors.InvalidArgument: an argument is no strategy, one of `avals` is no type, or
        one of `elements` no number that the dtype holds.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(arrays(), lambda x: x.ndim == 1 and x.size == 2 and x.any())
      Array([0., 1.], dtype=float32)
    """
    check_strategy(avals, "avals")
    check_strategy(elements, "elements")
    aval = check_aval(draw(all_avals() if avals is None else avals), "each of avals")
    return array_of(draw, aval, elements)


def array_of(draw: st.DrawFn, aval: Any, elements: st.SearchStrategy[Any] | None) -> jax.Array:
    """An array of one type, whose elements are drawn."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return _key_of(draw, aval.shape)
    size = int(np.prod(aval.shape, dtype=int))
    numbers = _numbers(aval.dtype) if elements is None else elements
    values = draw(st.lists(numbers, min_size=size, max_size=size))
    plain = np.array(values).reshape(aval.shape)
    check_held(plain, aval.dtype, "elements")
    return as_type(jnp.asarray(plain, dtype=aval.dtype), aval)


def _numbers(dtype: Any) -> st.SearchStrategy[Any]:
    """Small finite numbers that a dtype holds, the floats among them exact in 16 bits."""
    if dtype == np.bool_:
        return st.booleans()
    if jnp.issubdtype(dtype, np.unsignedinteger):
        return st.integers(0, 10)
    if jnp.issubdtype(dtype, np.integer):
        return st.integers(-10, 10)
    floats = st.floats(-10, 10, width=16, allow_subnormal=False)
    if jnp.issubdtype(dtype, np.complexfloating):
        return st.builds(complex, floats, floats)
    return floats


@st.composite
def scalars(
    draw: st.DrawFn,
    *,
    dtypes: st.SearchStrategy[np.dtype] | None = None,
    weak: bool | None = None,
    elements: st.SearchStrategy[Any] | None = None,
) -> Any:
    """Numbers: those of Python, which are weakly typed, and arrays without axes, which are not.

    Shrinks towards a float32 zero.

    Args:
      draw: given by Hypothesis.
      dtypes: a strategy of dtypes; `dtypes()` by default. Of a Python number it says the kind.
      weak: True for numbers of Python only, False for arrays only, None for both. There is no weak
        boolean: `weak=True` gives an array for one.
      elements: a strategy of the numbers' values, as for `arrays`.

    Returns:
      A strategy of `int`, `float`, `complex` and `jax.Array`.

    Raises:
      hypothesis.errors.InvalidArgument: an argument is no strategy, or `weak` is no flag.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(scalars(weak=True), lambda x: x > 1)
      2.0
    """
    check_strategy(dtypes, "dtypes")
    check_flag(weak, "weak")
    check_strategy(elements, "elements")
    aval = draw(all_avals(dtypes=dtypes, shapes=SCALAR_SHAPES, weak=weak))
    value = array_of(draw, aval, elements)
    python_type = python_type_of(aval.dtype)
    return python_type(value) if aval.weak_type and python_type else value


@st.composite
def keys(draw: st.DrawFn, *, shapes: st.SearchStrategy[tuple[int, ...]] | None = None) -> jax.Array:
    """Typed PRNG keys.

    Shrinks towards `jax.random.key(0)`, or as many keys split from it as the shape needs.

    Args:
      draw: given by Hypothesis.
      shapes: a strategy of shapes; no axes by default.

    Returns:
      A strategy of key arrays.

    Raises:
      hypothesis.errors.InvalidArgument: `shapes` is no strategy.

    Example:
      >>> import hypothesis
      >>> print(jax.random.key_data(hypothesis.find(keys(), lambda key: True)))
      [0 0]
    """
    check_strategy(shapes, "shapes")
    shape = draw(SCALAR_SHAPES if shapes is None else shapes)
    return _key_of(draw, check_shape(shape, "each of shapes"))


def _key_of(draw: st.DrawFn, shape: tuple[int, ...]) -> jax.Array:
    # Byte by byte, because fewer choices are taken for simpler: a key is no simpler than a number.
    seed = [draw(st.integers(0, 255)) for _ in range(4)]
    key = jax.random.key(int.from_bytes(bytes(seed), "little"))
    return jax.random.split(key, shape) if shape else key


def leaves() -> st.SearchStrategy[Any]:
    """All that may be a leaf of a carry: numbers, arrays and a typed key.

    Shrinks towards a float32 zero.

    Returns:
      A strategy of Python numbers and `jax.Array`.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(leaves(), lambda leaf: True)
      Array(0., dtype=float32)
    """
    return st.one_of(scalars(), arrays(), keys())
