"""Equal programs compile once: an eager loop runs the first program that equals its own.

Outside jit a loop is compiled for its body's jaxpr. A lambda written at the call is traced to a new
jaxpr each time, which JAX would compile anew. So before a loop is compiled its jaxpr is looked up
among those seen before, by all that the compiled program depends on: equations, operands, types,
parameters and the context of each equation. Constants are arguments, so nothing that a body closes
over is kept. Custom derivative rules and checkpoint policies do not matter to a program that is
compiled, and are left out. What cannot be compared exactly (a callback) is not looked up.

The table is bounded, is emptied by `jax.clear_caches()`, and has a section for each setting of
JAX's configuration that changes what is traced.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from loops import _jax

MAX_PROGRAMS = 1024

# Equal ones of these are one object, and none holds an array.
COMPARED_BY_IDENTITY = (
    type,
    enum.Enum,
    np.dtype,
    _jax.Primitive,
    jax.sharding.Mesh,
    jax.sharding.AbstractMesh,
    _jax.RandomImplementation,
)


class NotComparable(Exception):  # noqa: N818 - it is not an error, and never leaves this module
    """A jaxpr holds something that only its identity tells from others."""


class _KnownProgram:
    """A jaxpr that equals another if their keys are equal."""

    __slots__ = ("hash", "jaxpr", "key")

    def __init__(self, key: Hashable, jaxpr: Any) -> None:
        self.key, self.jaxpr, self.hash = key, jaxpr, hash(key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KnownProgram) and self.key == other.key


@_jax.cached_by_value(MAX_PROGRAMS)
def _first_seen(program: _KnownProgram) -> Any:
    return program.jaxpr


@_jax.cached_by_jaxpr
def _reference_to_equal(jaxpr: Any) -> weakref.ref:
    """A weak reference, because this cache must not keep its own key alive."""
    try:
        plain = without_derivative_rules(jaxpr)
        program = _KnownProgram(program_key(plain), plain)
    except NotComparable:
        return weakref.ref(jaxpr)
    return weakref.ref(_first_seen(program))


def first_equal_program(jaxpr: Any) -> Any:
    """The first jaxpr seen that equals this one, which may be itself."""
    equal = _reference_to_equal(jaxpr)()
    return jaxpr if equal is None else equal


def without_derivative_rules(jaxpr: Any) -> Any:
    """The same program without what only differentiation asks for, as far as it is functions.

    Calls of custom_jvp and custom_vjp functions become calls of their jaxprs; `jax.checkpoint`
    keeps its barriers and loses its policy.
    """
    return _jax.map_equations(_without_rule, jaxpr)


def _without_rule(eqn: Any) -> Any:
    params = _jax.map_parameters(
        lambda value: without_derivative_rules(value) if _jax.is_jaxpr(value) else value, eqn.params
    )
    if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        return _jax.staged_call_equation(params["call_jaxpr"], eqn.invars, eqn.outvars, eqn)
    if eqn.primitive.name in ("checkpoint", "remat2"):
        params["policy"] = None
    return _jax.with_parameters(eqn, params)


def program_key(jaxpr: Any) -> Hashable:
    """All that the compiled form of a jaxpr depends on, with variables by their order.

    Raises:
      NotComparable: something in it has no value to compare.
    """
    inner = _jax.open_jaxpr(jaxpr)
    # Reading and writing Refs is what equations say; other effects have an identity.
    if inner.constvars or not all(map(_jax.is_effect_on_input, inner.effects)):
        raise NotComparable
    numbers: dict[Any, int] = {}

    def define(variables: Sequence[Any]) -> tuple[Any, ...]:
        for v in variables:
            numbers[v] = len(numbers)
        return tuple(v.aval for v in variables)

    def operand(atom: Any) -> Hashable:
        if isinstance(atom, _jax.Var):
            return numbers[atom]
        return ("literal", value_key(atom.val), atom.aval)

    inputs = define(inner.invars)
    equations = tuple(
        (
            eqn.primitive,
            tuple(map(operand, eqn.invars)),
            value_key(eqn.params),
            eqn.ctx,
            define(eqn.outvars),
        )
        for eqn in inner.eqns
    )
    return inputs, equations, tuple(map(operand, inner.outvars))


def value_key(value: Any) -> Hashable:
    """A parameter's value with its type, so that 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    match value:
        case _ if isinstance(value, COMPARED_BY_IDENTITY):
            content: Hashable = value
        case float():
            content = float(value).hex()
        case complex():
            content = value.real.hex(), value.imag.hex()
        case np.ndarray() | np.generic():
            content = value.shape, value.dtype, value.tobytes()
        case dict():
            content = tuple((key, value_key(v)) for key, v in value.items())
        case tuple() | list():
            content = tuple(map(value_key, value))
        case _ if _jax.is_jaxpr(value):
            content = program_key(value)
        case _ if _compares_by_value(value):
            content = value
        case _:
            raise NotComparable
    return type(value), content


def _compares_by_value(value: Any) -> bool:
    """Whether `==` looks at what an object holds, and it can be hashed; functions do neither."""
    if value is _jax.UNSPECIFIED_SHARDING:
        return True
    if callable(value) or type(value).__eq__ is object.__eq__:
        return value is None
    try:
        hash(value)
    except TypeError:
        return False
    return True
