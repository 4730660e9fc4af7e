"""Checks of a strategy's arguments: a wrong one is named, and raises when a value is drawn."""

from collections.abc import Collection
from typing import Any

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


def check_flag(value: Any, name: str) -> None:
    """Raise unless the argument is True, False or None, which stands for both."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True, False or None for either, got {value!r}")
