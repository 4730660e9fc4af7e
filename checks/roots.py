"""The equations of a body that made a type which does not fit.

The output is followed back through the body's jaxpr as long as the values already have what is
wrong with it, a foreign dtype or shape. What is left are the roots: equations that made the foreign
type of something else, and inputs or constants that came with it.

    s = jnp.sum(x)     root: int64[] made of int32[2]       (`reduce_sum`)
    return c + s       c is converted because s is int64    (a consequence, not a root)
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.core import AbstractValue, ShapedArray

from checks.jaxprs import Scope, inner_outputs, is_literal
from checks.source import Place

# What promotion of dtypes and broadcasting of shapes put before an operation.
_ADAPTERS = ("convert_element_type", "broadcast_in_dim")


class Root(NamedTuple):
    """Where a foreign type comes from: an equation, or an input or constant that `consumer` reads.

    `atom` is the value of the foreign type, and `meets` is the nearest equation after it that also
    reads a value of the carry's own type.
    """

    scope: Scope
    atom: Any
    eqn: Any
    consumer: "Reader | None"
    meets: "Reader | None"

    def teller(self) -> "Reader | None":
        """The equation, or what first reads the input."""
        return self.consumer if self.eqn is None else Reader(self.scope, self.eqn, 0)

    def places(self) -> list[Place]:
        """The lines of the equation, or of what first reads the input."""
        teller = self.teller()
        return [] if teller is None else teller.places()

    def position(self) -> int:
        """How many equations of the body stand before it, or before the one that it is in."""
        scope, eqn = self.scope, self.eqn
        while scope.parent is not None:
            scope, eqn = scope.parent, scope.eqn
        return next((i for i, other in enumerate(scope.jaxpr.eqns) if other is eqn), 0)

    @property
    def is_constant(self) -> bool:
        """Whether it is made of constants, as the 1.0 is that a gradient starts from."""
        return all(map(is_literal, [self.atom] if self.eqn is None else self.eqn.invars))

    @property
    def is_adapter(self) -> bool:
        """Whether it only brings an operand to the type of the others, at the same expression."""
        if self.eqn is None or self.consumer is None or self.consumer.num_foreign < 2:
            return False
        name = self.eqn.primitive.name
        return name in _ADAPTERS and self.places()[:1] == self.consumer.places()[:1]


class Reader(NamedTuple):
    """An equation that reads a value, in its scope, and how many values of the foreign type.

    Constants written into the equation do not count: in `n / 2` it is the division that makes a
    float of an integer.
    """

    scope: Scope
    eqn: Any
    num_foreign: int

    def places(self) -> list[Place]:
        """Where the equation was made."""
        return self.scope.places(self.eqn)


class Aspect(NamedTuple):
    """One thing that differs between two types: whether a type has the output's, or the input's.

    `is_other_kind` says that the two are different kinds of numbers.
    """

    name: str
    is_foreign: Callable[[Any], bool]
    is_native: Callable[[Any], bool]
    is_other_kind: bool = False


def differing(in_aval: AbstractValue, out_aval: AbstractValue) -> list[Aspect]:
    """What differs between two types, each thing by itself; the shape goes first."""

    def aspect(name: str, get: Callable[[Any], Any]) -> Aspect:
        inside, outside = get(in_aval), get(out_aval)
        return Aspect(name, lambda aval: get(aval) == outside, lambda aval: get(aval) == inside)

    def placement(aval: Any) -> Any:
        if not isinstance(aval, ShapedArray):
            return aval
        return aval.mat, aval.memory_space, aval.sharding.spec

    if not (isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray)):
        return [aspect("type", lambda aval: aval)]
    aspects = [
        aspect("shape", lambda aval: getattr(aval, "shape", None)),
        aspect("dtype", lambda aval: getattr(aval, "dtype", None))._replace(
            is_other_kind=_is_float(in_aval) != _is_float(out_aval)
        ),
    ]
    differ = [a for a in aspects if not a.is_native(out_aval)]
    return differ or [aspect("placement", placement)]


def _is_float(aval: ShapedArray) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


class Walk:
    """A walk from a value back to the roots of what is foreign about it."""

    def __init__(self, aspect: Aspect) -> None:
        self.aspect = aspect
        self.seen: set[Any] = set()

    def roots(
        self, scope: Scope, atom: Any, consumer: Reader | None = None, meets: Reader | None = None
    ) -> Iterator[Root]:
        """The roots of a value that `consumer` reads."""
        if is_literal(atom):
            yield Root(scope, atom, None, consumer, meets)
            return
        # The same jaxpr may stand in two equations: a jitted function that is called twice.
        key = (id(scope.eqn), id(scope.jaxpr), atom)
        if key in self.seen:
            return
        self.seen.add(key)
        made = scope.producer(atom)
        if made is None:
            yield from self._roots_of_input(scope, atom, consumer, meets)
        else:
            yield from self._roots_of_equation(scope, *made, consumer, meets)

    def _roots_of_equation(
        self, scope: Scope, eqn: Any, output: int, consumer: Reader | None, meets: Reader | None
    ) -> Iterator[Root]:
        is_foreign, is_native = self.aspect.is_foreign, self.aspect.is_native
        inner = [i for i in inner_outputs(scope, eqn, output) if is_foreign(i.atom.aval)]
        for deeper in inner:
            yield from self.roots(deeper.scope, deeper.atom, Reader(scope, eqn, 1), meets)
        if inner:
            return
        foreign = [operand for operand in eqn.invars if is_foreign(operand.aval)]
        if all(map(is_literal, eqn.invars)):  # an array made of constants
            foreign = []
        if not foreign:
            yield Root(scope, eqn.outvars[output], eqn, consumer, meets)
        reader = Reader(scope, eqn, sum(not is_literal(operand) for operand in foreign))
        is_meeting = any(is_native(operand.aval) for operand in eqn.invars) or (
            self.aspect.name == "shape" and any(self._is_spread(scope, v) for v in eqn.invars)
        )
        for operand in foreign:
            yield from self.roots(scope, operand, reader, reader if is_meeting else meets)

    def _is_spread(self, scope: Scope, operand: Any) -> bool:
        """Whether an operand is one of the carry's shape, with axes put before it to broadcast."""
        made = None if is_literal(operand) else scope.producer(operand)
        return (
            made is not None
            and made[0].primitive.name == "broadcast_in_dim"
            and self.aspect.is_native(made[0].invars[0].aval)
        )

    def _roots_of_input(
        self, scope: Scope, atom: Any, consumer: Reader | None, meets: Reader | None
    ) -> Iterator[Root]:
        outer = scope.operand_of(atom)
        if outer is None or scope.parent is None:
            yield Root(scope, atom, None, consumer, meets)
        elif self.aspect.is_foreign(outer.aval):
            if is_literal(outer) and _is_loop(scope.eqn):  # the line that starts the loop has it
                consumer = Reader(scope.parent, scope.eqn, 1)
            yield from self.roots(scope.parent, outer, consumer, meets)
        else:  # a row of what is scanned over, say: the equation around made the type
            yield Root(scope.parent, outer, scope.eqn, consumer, meets)


def _is_loop(eqn: Any) -> bool:
    return "body_jaxpr" in eqn.params or "num_carry" in eqn.params
