"""Where a carry's type changed: the equation in the body, and the user's line.

The output is followed back through the body's jaxpr as long as the values already have what is wrong
with it, a foreign dtype or shape. What is left are the roots: equations that made the foreign type of
something else, and inputs or constants that came with it.

    s = jnp.sum(x)     root: int64[] made of int32[2]       (`reduce_sum`)
    return c + s       c is converted because s is int64    (a consequence, not a root)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray

from checks.jaxprs import Scope, equation_text, inner_outputs, is_literal
from checks.source import Place

# What promotion of dtypes and broadcasting of shapes put before an operation.
_ADAPTERS = ("convert_element_type", "broadcast_in_dim")


@dataclass(frozen=True)
class Provenance:
    """Where the type of a carry's component changed.

    Args:
      place: the line, in the user's code, at which the type that does not fit was made or came in.
      equation: the equation that did it, as `primitive: input types -> output types`; empty where
        no equation did, because the structure of the carry changed.
      primitive: the name of that equation's primitive, or an empty text.
      reaches: the later line at which the carry took the type over, if that is another expression.
      returns: the expression that made the value which is returned, if that is yet another.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from checks import CarryTypeError, check_scan
      >>> def body(c, x):
      ...     longer = jnp.concatenate([c, c])
      ...     return longer, None
      >>> try:
      ...     check_scan(body, jnp.zeros(2), length=3)
      ... except CarryTypeError as error:
      ...     provenance = error.mismatches[0].provenance
      >>> provenance.equation, provenance.place.text
      ('concatenate: float32[2] float32[2] -> float32[4]', 'jnp.concatenate([c, c])')
    """

    place: Place
    equation: str = ""
    primitive: str = ""
    reaches: Place | None = None
    returns: Place | None = None

    @property
    def file(self) -> str:
        """The file of the line."""
        return self.place.file

    @property
    def line(self) -> int:
        """The number of the line, from 1."""
        return self.place.line

    @property
    def function(self) -> str:
        """The name of the function that the line is in."""
        return self.place.function

    def __str__(self) -> str:
        text = f" `{' '.join(self.place.text.split())}`" if self.place.text else ""
        equation = f" ({self.equation})" if self.equation else ""
        return f"{self.place}, in {self.function}:{text}{equation}"


class Root(NamedTuple):
    """Where a foreign type comes from: an equation, or an input or constant that `consumer` reads."""

    scope: Scope
    eqn: Any
    consumer: "Reader | None"

    def places(self) -> list[Place]:
        """The lines of the equation, or of what first reads the input."""
        if self.eqn is not None:
            return self.scope.places(self.eqn)
        return self.consumer.places() if self.consumer is not None else []

    @property
    def is_adapter(self) -> bool:
        """Whether it only brings an operand to the type of the others, at the same expression."""
        if self.eqn is None or self.consumer is None or self.consumer.num_foreign < 2:
            return False
        name = self.eqn.primitive.name
        return name in _ADAPTERS and self.places()[:1] == self.consumer.places()[:1]


class Reader(NamedTuple):
    """An equation that reads a value, in its scope, and how many operands of the foreign type."""

    scope: Scope
    eqn: Any
    num_foreign: int

    def places(self) -> list[Place]:
        """Where the equation was made."""
        return self.scope.places(self.eqn)


Foreign = Callable[[AbstractValue], bool]


def foreign_types(in_aval: AbstractValue, out_aval: AbstractValue) -> list[Foreign]:
    """For each thing that is wrong with an output's type, which types have it too."""
    if not (isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray)):
        return [lambda aval: aval == out_aval]
    wrong: list[Foreign] = []
    if in_aval.shape != out_aval.shape:
        wrong.append(lambda aval: getattr(aval, "shape", None) == out_aval.shape)
    if in_aval.dtype != out_aval.dtype:
        wrong.append(lambda aval: getattr(aval, "dtype", None) == out_aval.dtype)
    if not wrong:
        wrong.append(
            lambda aval: (
                isinstance(aval, ShapedArray)
                and (aval.mat, aval.memory_space, aval.sharding.spec)
                == (out_aval.mat, out_aval.memory_space, out_aval.sharding.spec)
            )
        )
    return wrong


def _causes(found: list[Root]) -> list[Root]:
    """The roots without those that only follow from others, unless there are no others."""
    return [root for root in found if not root.is_adapter] or found


def _roots(
    scope: Scope, atom: Any, is_foreign: Foreign, consumer: Reader | None, seen: set
) -> Iterator[Root]:
    if is_literal(atom):
        yield Root(scope, None, consumer)
        return
    # The same jaxpr may stand in two equations: a jitted function that is called twice.
    key = (id(scope.eqn), id(scope.jaxpr), atom)
    if key in seen:
        return
    seen.add(key)
    made = scope.producer(atom)
    if made is None:
        yield from _roots_of_input(scope, atom, is_foreign, consumer, seen)
        return
    eqn, output = made
    inner = [i for i in inner_outputs(scope, eqn, output) if is_foreign(i.atom.aval)]
    if inner:
        for deeper in inner:
            reader = Reader(scope, eqn, 1)
            yield from _roots(deeper.scope, deeper.atom, is_foreign, reader, seen)
        return
    foreign = [operand for operand in eqn.invars if is_foreign(operand.aval)]
    if not foreign:
        yield Root(scope, eqn, consumer)
    reader = Reader(scope, eqn, len(foreign))
    for operand in foreign:
        yield from _roots(scope, operand, is_foreign, reader, seen)


def _roots_of_input(
    scope: Scope, atom: Any, is_foreign: Foreign, consumer: Reader | None, seen: set
) -> Iterator[Root]:
    outer = scope.operand_of(atom)
    if outer is None or scope.parent is None:
        yield Root(scope, None, consumer)
    elif is_foreign(outer.aval):
        yield from _roots(scope.parent, outer, is_foreign, consumer, seen)
    else:  # a row of what is scanned over, say: the equation around made the type
        yield Root(scope.parent, scope.eqn, consumer)


class Trail(NamedTuple):
    """Where a type changed, and the expressions that led there.

    `sites` could be changed to mend it: what made the foreign type, what took it over, what is
    returned, and the calls of helpers that these stand in. `upstream` are those of reductions that
    the roots were computed with.
    """

    provenance: Provenance | None
    sites: tuple[Place, ...] = ()
    upstream: tuple[Place, ...] = ()


def follow(jaxpr: Any, output: int, in_aval: AbstractValue) -> Trail:
    """Follow an output of a body back to where its type became another than that of its input.

    Args:
      jaxpr: the body's jaxpr.
      output: position of the output.
      in_aval: the type that it should have.

    Returns:
      The trail; without a provenance where no line of the user's is known: the body returns another
      of its inputs, or nothing tells where its equations were written.
    """
    scope = Scope(jaxpr)
    atom = scope.jaxpr.outvars[output]
    last = _last_places(scope, atom)
    for is_foreign in foreign_types(in_aval, atom.aval):
        everything = list(_roots(scope, atom, is_foreign, None, set()))
        found = [root for root in _causes(everything) if root.places()]
        if found:
            # What made the foreign type of something else tells more than what came with it.
            root = min(found, key=lambda root: root.eqn is None)
            reaches = _reaches(everything, root.places()[0])
            sites = tuple(dict.fromkeys([*root.places(), *reaches, *last]))
            return Trail(_provenance(root, reaches, last), sites, tuple(_reductions(found)))
    return Trail(None, tuple(last))


def _provenance(root: Root, reaches: list[Place], last: list[Place]) -> Provenance:
    place, *_ = root.places()
    teller = root.eqn if root.consumer is None or root.eqn is not None else root.consumer.eqn
    took_over = next(iter(reaches), None)
    returned = next(iter(last), None)
    return Provenance(
        place,
        equation_text(teller),
        teller.primitive.name,
        took_over,
        returned if returned not in (place, took_over) else None,
    )


def _last_places(scope: Scope, atom: Any) -> list[Place]:
    made = None if is_literal(atom) else scope.producer(atom)
    return scope.places(made[0]) if made else []


def _reaches(everything: list[Root], known: Place) -> list[Place]:
    """Where an operand was brought to the foreign type because another operand has it."""
    readers = [root.consumer for root in everything if root.is_adapter and root.consumer]
    found = [reader.places() for reader in readers]
    return next((places for places in found if places and places[0] != known), [])


def _reductions(found: list[Root]) -> Iterator[Place]:
    """Where reductions were made that the roots were computed with, the latest first."""
    for root in found:
        reader = Reader(root.scope, root.eqn, 0) if root.eqn is not None else root.consumer
        left = [] if reader is None else list(reader.eqn.invars)
        seen: set[Any] = set()
        while left and reader is not None:
            atom = left.pop()
            made = None if is_literal(atom) or atom in seen else reader.scope.producer(atom)
            if made is None:
                continue
            seen.add(atom)
            if made[0].primitive.name.startswith(("reduce_", "arg")):
                yield from reader.scope.places(made[0])[:1]
            left.extend(made[0].invars)
