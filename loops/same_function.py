"""Whether a function object made anew is the same function: its code, and what it closes over.

A body written inside another body is a new object each time that one is run, though nothing that
it depends on may have changed. Two functions are the same here if they have the same code and the
same defaults, and close over the same variables or over variables that hold equal values. Tracers
are equal if they have one type, because a trace depends on no more of them; an object that has no
value to compare equals only itself.

As JAX's own trace cache does, this takes a function for one without a memory: what it reads from
globals, or from inside the objects that it closes over, is not looked at.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import jax

from loops.equal_programs import NotComparable, value_key


def description(value: Any) -> Any:
    """What compares equal for two functions, or containers of functions, that are the same.

    The description is of this moment: what a variable holds later does not matter.
    """
    return _describe(value, {})


class _Identity:
    """Equals the description of the very same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    __hash__ = None  # pyrefly: ignore[bad-override]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value


class _Variable:
    """A variable that is closed over: equals itself, and another that holds an equal value."""

    def __init__(self, cell: Any, content: Any) -> None:
        self.cell, self.content = cell, content

    __hash__ = None  # pyrefly: ignore[bad-override]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Variable):
            return False
        return other.cell is self.cell or other.content == self.content


def _describe(value: Any, seen: dict[int, int]) -> Any:
    parts = _parts(value)
    if parts is not None:
        return type(value), [_describe(part, seen) for part in parts]
    if isinstance(value, types.FunctionType):
        variables = [_describe_variable(cell, seen) for cell in value.__closure__ or ()]
        defaults = _describe((value.__defaults__, value.__kwdefaults__), seen)
        return value.__code__, defaults, variables
    if isinstance(value, jax.core.Tracer):
        return jax.typeof(value)
    try:
        return value_key(value)
    except NotComparable:
        return _Identity(value)


def _parts(value: Any) -> tuple[Any, ...] | None:
    """What a container, a method or the like is made of; None for anything else."""
    match value:
        case tuple() | list():
            return tuple(value)
        case dict():
            return *value.keys(), *value.values()
        case types.MethodType():
            return value.__func__, value.__self__
        case functools.partial():
            return value.func, value.args, value.keywords
        case weakref.ref():
            return (value(),)
    return None


def _describe_variable(cell: Any, seen: dict[int, int]) -> Any:
    """A function may close over itself: a variable met before is named by its number."""
    if id(cell) in seen:
        return seen[id(cell)]
    seen[id(cell)] = len(seen)
    try:
        content = cell.cell_contents
    except ValueError:  # nothing has been assigned to it yet
        return _Variable(cell, _Identity(cell))
    return _Variable(cell, _describe(content, seen))
