"""The bounds of a `fori_loop`: their integer type, and whether they are known while tracing."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from loops import _jax


class Bound(NamedTuple):
    """One bound: its name, what the caller passed, its integer type and whether that is weak."""

    name: str
    value: Any
    dtype: np.dtype
    weak: bool

    def known(self) -> int | None:
        """Its value, if that is known while tracing."""
        if _jax.is_symbolic_dimension(self.value) or not _jax.is_concrete(self.value):
            return None
        return int(self.value)


class Bounds(NamedTuple):
    """Both bounds as integers of one type, or as Python ints where both are weakly typed.

    `length` is the number of steps, None where a bound is not known while tracing.
    """

    lower: Any
    upper: Any
    length: int | None


def check_bounds(lower: Any, upper: Any) -> Bounds:
    """Bring two bounds to one integer type, without changing a value.

    Raises:
      TypeError: a bound is no integer scalar, or both have integer types of their own that differ.
      OverflowError: a value does not fit the common type.
    """
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
    return Bounds(_converted(first, dtype), _converted(last, dtype), None)


def _bound(name: str, value: Any) -> Bound:
    if _jax.is_symbolic_dimension(value) or type(value) is int:
        return Bound(name, value, jnp.result_type(int), weak=True)
    try:
        aval = jax.typeof(value)
        shape, dtype, weak = aval.shape, aval.dtype, getattr(aval, "weak_type", False)
    except TypeError:
        raise _not_an_integer(name, type(value).__name__) from None
    if shape or not jnp.issubdtype(dtype, np.integer):
        raise _not_an_integer(name, aval.str_short())
    return Bound(name, value, dtype, weak)


def _not_an_integer(name: str, type_name: str) -> TypeError:
    advice = ""
    if type_name.startswith(("float", "bfloat")):
        advice = " Round it first, for instance `round(total / step)`: it is never truncated."
    return TypeError(f"fori_loop: {name} must be an integer scalar, got {type_name}.{advice}")


def _common_type(first: Bound, last: Bound) -> np.dtype:
    """The type of the bound that has one of its own; Python ints take the other's."""
    if first.dtype == last.dtype:
        return first.dtype
    strong = [bound for bound in (first, last) if not bound.weak]
    fits = (
        all(
            b.known() is not None or jnp.issubdtype(strong[0].dtype, np.signedinteger)
            for b in (first, last)
            if b.weak
        )
        if len(strong) == 1
        else False
    )
    if not fits:
        raise TypeError(
            "lower and upper arguments to fori_loop must have equal types, got "
            f"{first.dtype.name} and {last.dtype.name}. Convert one of them, for instance "
            f"`upper.astype({first.dtype.name})`."
        )
    return strong[0].dtype


def _check_fits(what: str, value: int, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        has_64_bits = jnp.result_type(int) == np.int64
        hint = "" if has_64_bits else " Turn on jax_enable_x64 for 64-bit indices."
        raise OverflowError(
            f"fori_loop: {what} would be {value}, which does not fit {dtype.name}.{hint}"
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
