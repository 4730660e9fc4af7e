"""Checks of a strategy's arguments: a wrong one is named, and raises when a value is drawn."""

import warnings
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy


def check_strategy(value: Any, name: str) -> None:
    """Raise unless the argument is a strategy or None, which stands for the default one.

    Example:
      >>> check_strategy(3, "shapes")
      Traceback (most recent call last):
      ...
      hypothesis.errors.InvalidArgument: shapes must be a strategy or None, got 3
    """
    if value is not None and not isinstance(value, SearchStrategy):
        raise InvalidArgument(f"{name} must be a strategy or None, got {value!r}")


def check_size(value: Any, name: str, minimum: int = 0) -> None:
    """Raise unless the argument is an integer that is at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise InvalidArgument(f"{name} must be at least {minimum}, got {value}")


def check_range(low: Any, high: Any, low_name: str, high_name: str) -> None:
    """Raise if an interval is empty."""
    if low > high:
        raise InvalidArgument(f"{low_name}={low!r} is above {high_name}={high!r}")


def check_choice(value: Any, name: str, choices: Collection[Any]) -> None:
    """Raise unless the argument is one of the choices."""
    if value not in choices:
        raise InvalidArgument(f"{name} must be one of {list(choices)}, got {value!r}")


def check_choices(values: Any, name: str, choices: Collection[Any]) -> None:
    """Raise unless the argument is a collection of some of the choices."""
    if isinstance(values, str) or not isinstance(values, Collection) or not values:
        raise InvalidArgument(f"{name} must be a collection of some of {list(choices)}")
    for value in values:
        check_choice(value, f"each of {name}", choices)


def check_dtype(value: Any, name: str) -> np.dtype:
    """The argument as a dtype; raise if it is none."""
    try:
        return np.dtype(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be a dtype, got {value!r}") from None


def check_shape(value: Any, name: str) -> tuple[int, ...]:
    """The argument as a shape; raise if it is none."""
    if not isinstance(value, tuple | list):
        raise InvalidArgument(f"{name} must be a tuple of integers, got {value!r}")
    for side in value:
        check_size(side, f"each side of {name}")
    return tuple(value)


def check_aval(value: Any, name: str) -> Any:
    """The argument, if it describes an array; raise if it does not."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise InvalidArgument(f"{name} must have a shape and a dtype, got {value!r}")
    return value


def check_held(values: np.ndarray, dtype: Any, name: str) -> None:
    """Raise unless a dtype holds all values; floats may be rounded, and neither cut nor overflow.

    Example:
      >>> check_held(np.array([1, 300]), np.dtype("int8"), "elements")
      Traceback (most recent call last):
      ...
      hypothesis.errors.InvalidArgument: elements must be numbers that int8 holds, got 300
    """
    if not values.size:
        return
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held = values.astype(dtype)
            lost = ~(np.isfinite(held) == np.isfinite(values)) if _rounds(dtype) else held != values
            lost |= (np.imag(values) != 0) & (np.imag(held) == 0)
    except (TypeError, ValueError):
        lost = np.full(values.shape, fill_value=True)
    if lost.any():
        first = values[lost].tolist()[0]
        raise InvalidArgument(f"{name} must be numbers that {dtype} holds, got {first!r}")


def _rounds(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.inexact)


def check_bool(value: Any, name: str) -> None:
    """Raise unless the argument is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, got {value!r}")


def check_flag(value: Any, name: str) -> None:
    """Raise unless the argument is True, False or None, which stands for both."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True, False or None for either, got {value!r}")
