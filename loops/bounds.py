"""The bounds of a `fori_loop`: their integer type, and whether they are known while tracing."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from loops import _jax


class Bound(NamedTuple):
    """One bound: its name, what the caller passed, its type and whether that is weak."""

    name: str
    value: Any
    dtype: np.dtype
    weak: bool

    def known(self) -> int | None:
        """Its value, if that is known while tracing."""
        if _jax.is_symbolic_dimension(self.value) or not _jax.is_concrete(self.value):
            return None
        return int(self.value) if self.is_integer() else None

    def is_dimension(self) -> bool:
        """Whether it is an integer or a symbolic dimension, of which a length can be made."""
        return self.known() is not None or _jax.is_symbolic_dimension(self.value)

    def dimension(self) -> Any:
        """Its value as an integer or a symbolic dimension."""
        value = self.known()
        return self.value if value is None else value

    def is_integer(self) -> bool:
        """Whether it counts in integers; a traced bound may be a float."""
        return jnp.issubdtype(self.dtype, np.integer)


class Bounds(NamedTuple):
    """Both bounds as integers of one type, or as Python ints where both are weakly typed.

    `length` is the number of steps, None where a bound is not known while tracing. Symbolic bounds
    (jax.export) give a symbolic length.
    """

    lower: Any
    upper: Any
    length: int | None


def check_bounds(lower: Any, upper: Any) -> Bounds:
    """Bring two bounds to one type, without changing a value.

    A traced float is taken as it is and counted up from; a float whose value is known is refused,
    because it would have to be cut down to a number of steps.

    Raises:
      TypeError: a bound is no integer scalar, or both have types of their own that differ.
      OverflowError: a value does not fit the common type.
    """
    if type(lower) is type(upper) is int and -(2**31) <= lower <= upper < 2**31:
        return Bounds(lower, None, upper - lower)  # the usual case: nothing below changes it
    first, last = _bound("lower", lower), _bound("upper", upper)
    dtype = _common_type(first, last)
    weak = first.weak and last.weak
    start, stop = first.known(), last.known()
    if start is not None and stop is not None:
        length = max(stop - start, 0)
        for index in (start, stop - 1) if length else ():
            _check_fits("an index", index, dtype)
        if not length:
            start = stop = min(max(start, np.iinfo(dtype).min), np.iinfo(dtype).max)
        return Bounds(start if weak else np.asarray(start, dtype), None, length)
    if first.is_dimension() and last.is_dimension():
        steps = _jax.at_least_zero(last.dimension() - first.dimension())
        lower = start if weak and start is not None else _converted(first, dtype)
        return Bounds(lower, None, steps)
    return Bounds(_converted(first, dtype), _converted(last, dtype), None)


def _bound(name: str, value: Any) -> Bound:
    if _jax.is_symbolic_dimension(value) or type(value) is int:
        return Bound(name, value, jnp.result_type(int), weak=True)
    try:
        aval = jax.typeof(value)
        shape, dtype, weak = aval.shape, aval.dtype, getattr(aval, "weak_type", False)
    except TypeError:
        raise _not_an_integer(name, type(value).__name__) from None
    counts_in_floats = isinstance(value, jax.core.Tracer) and jnp.issubdtype(dtype, np.floating)
    if shape or not (jnp.issubdtype(dtype, np.integer) or counts_in_floats):
        raise _not_an_integer(name, aval.str_short())
    return Bound(name, value, dtype, weak)


def _not_an_integer(name: str, type_name: str) -> TypeError:
    advice = ""
    if type_name.startswith(("float", "bfloat")):
        advice = " Round it first, for instance `round(total / step)`: it is never truncated."
    return TypeError(f"fori_loop: {name} must be an integer scalar, got {type_name}.{advice}")


def _common_type(first: Bound, last: Bound) -> np.dtype:
    """The type of the bound that has one of its own; a weakly typed integer takes it.

    A traced integer may be negative, so it takes signed types only.
    """
    if first.dtype == last.dtype:
        return first.dtype
    weak, strong = (first, last) if first.weak else (last, first)
    is_mixed = weak.weak and not strong.weak and weak.is_integer() and strong.is_integer()
    if is_mixed and (weak.known() is not None or jnp.issubdtype(strong.dtype, np.signedinteger)):
        return strong.dtype
    raise TypeError(
        "lower and upper arguments to fori_loop must have equal types, got "
        f"{first.dtype.name} and {last.dtype.name}. Give both the same integer type."
    )


def _check_fits(what: str, value: int, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise OverflowError(
            f"fori_loop: {what} would be {value}, which does not fit {dtype.name}. "
            "Give the bounds a wider integer type (for 64 bits turn on jax_enable_x64)."
        )


def _converted(bound: Bound, dtype: np.dtype) -> Any:
    """A bound of the common type, whose value stays as it is."""
    value = bound.known()
    if value is not None:
        _check_fits(bound.name, value, dtype)
        return np.asarray(value, dtype)
    if _jax.is_symbolic_dimension(bound.value):
        return jnp.asarray(_jax.symbolic_value(bound.value), dtype)
    return jax.lax.convert_element_type(bound.value, dtype)


def steps_between(bounds: Bounds) -> Any:
    """The number of steps between two traced bounds, as an unsigned integer of 32 bits or more.

    Raises:
      TypeError: the bounds are floats, of which no number of steps can be made.
    """
    dtype = jnp.result_type(bounds.lower)
    if not jnp.issubdtype(dtype, np.integer):
        raise _not_an_integer("lower", dtype.name)
    unsigned = np.dtype(f"uint{max(dtype.itemsize * 8, 32)}")
    # The difference of two signed integers may not fit their type; modulo 2**bits it is right.
    difference = jax.lax.sub(
        jax.lax.convert_element_type(bounds.upper, unsigned),
        jax.lax.convert_element_type(bounds.lower, unsigned),
    )
    is_empty = jnp.asarray(bounds.upper) <= jnp.asarray(bounds.lower)
    return jnp.where(is_empty, jnp.zeros_like(difference), difference)
