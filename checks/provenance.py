"""Where a carry's type changed: the equation in the body, and the user's line.

The output is followed back through the body's jaxpr as long as the values already have what is
wrong with it, a foreign dtype or shape. What is left are the roots: equations that made the foreign
type of something else, and inputs or constants that came with it.

    s = jnp.sum(x)     root: int64[] made of int32[2]       (`reduce_sum`)
    return c + s       c is converted because s is int64    (a consequence, not a root)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray

from checks.jaxprs import Scope, computed_from, equation_text, inner_outputs, is_literal
from checks.source import Place, shown

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
      origin: the earlier line at which what came in was made, if that is another expression.
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
    origin: Place | None = None
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
    """One thing that differs between two types: whether a type has the output's, or the input's."""

    name: str
    is_foreign: Callable[[Any], bool]
    is_native: Callable[[Any], bool]


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
        aspect("dtype", lambda aval: getattr(aval, "dtype", None)),
    ]
    differ = [a for a in aspects if not a.is_native(out_aval)]
    return differ or [aspect("placement", placement)]


class _Walk:
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


class Trail(NamedTuple):
    """Where a type changed, and the expressions that led there.

    `sites` could be changed to mend it: what made the foreign type, what took it over, what is
    returned, and the calls of helpers that these stand in. `upstream` are those of reductions that
    the roots were computed with. `from_carry` says whether a root was computed from the carry.
    """

    provenance: Provenance | None
    sites: tuple[Place, ...] = ()
    upstream: tuple["Upstream", ...] = ()
    from_carry: bool = False


class Upstream(NamedTuple):
    """A reduction that a foreign value was computed with."""

    place: Place
    equation: str
    primitive: str


def follow(jaxpr: Any, output: int, in_aval: AbstractValue, carry: slice = slice(0)) -> Trail:
    """Follow an output of a body back to where its type became another than that of its input.

    Args:
      jaxpr: the body's jaxpr.
      output: position of the output.
      in_aval: the type that it should have.
      carry: which inputs of the jaxpr are the user's carry.

    Returns:
      The trail; without a provenance where no line of the user's is known: the body returns another
      of its inputs, or nothing tells where its equations were written.
    """
    scope = Scope(jaxpr)
    atom = scope.jaxpr.outvars[output]
    last = _last_places(scope, atom)
    for aspect in differing(in_aval, atom.aval):
        found = [root for root in _Walk(aspect).roots(scope, atom) if root.places()]
        if found:
            variables = scope.jaxpr.invars[carry]
            of_carry = [root for root in found if computed_from(root.scope, [root.atom], variables)]
            return _trail(aspect, found, of_carry, last)
    return Trail(None, tuple(last))


def _trail(aspect: Aspect, found: list[Root], of_carry: list[Root], last: list[Place]) -> Trail:
    """Choose the line to name: where the foreign type was made, or where it met the carry."""
    origin = min(found, key=lambda root: (root.is_adapter, root.is_constant, root.eqn is None))
    meeting = _meeting(found)
    # Data may have any shape: where the carry takes it over is the line, but not for its own parts.
    joins = meeting is not None and meeting.eqn.primitive.name in ("concatenate", "pad")
    is_part = aspect.name == "shape" and origin in of_carry and not joins
    is_made = is_part or _makes(origin, aspect)
    tellers = [origin.teller(), meeting] if is_made else [meeting, origin.teller()]
    teller = next(t for t in tellers if t is not None and t.places())
    lines = [teller.places(), *(t.places() for t in tellers if t is not None), last]
    first, *others = dict.fromkeys(places[0] for places in lines if places)
    returned = last[0] if last and last[0] in others else None
    others = [place for place in others if place != returned]
    eqn = teller.eqn
    came_before = bool(others) and teller is meeting
    provenance = Provenance(
        shown(first),
        equation_text(eqn),
        eqn.primitive.name,
        origin=shown(others[0]) if came_before else None,
        reaches=shown(others[0]) if others and not came_before else None,
        returns=returned and shown(returned),
    )
    sites = tuple(dict.fromkeys(place for places in lines for place in places))
    return Trail(provenance, sites, tuple(_reductions(found)), bool(of_carry))


def _makes(root: Root, aspect: Aspect) -> bool:
    """Whether an equation itself made the foreign type, of something that did not have it."""
    if root.eqn is None or root.is_adapter:
        return False
    if aspect.name == "dtype":  # an index or a slice has the dtype of what it is taken from
        return True
    # Any operation makes a shape: only what took the carry's away is to blame for it.
    return any(not is_literal(v) and aspect.is_native(v.aval) for v in root.eqn.invars)


def _meeting(found: list[Root]) -> Reader | None:
    """The equation at which a value of the carry's type was brought to the foreign one."""
    adapted = [root.consumer for root in found if root.is_adapter]
    return next((r for r in [*adapted, *(root.meets for root in found)] if r is not None), None)


def _last_places(scope: Scope, atom: Any) -> list[Place]:
    made = None if is_literal(atom) else scope.producer(atom)
    return scope.places(made[0]) if made else []


def _reductions(found: list[Root]) -> Iterator[Upstream]:
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
                name, text = made[0].primitive.name, equation_text(made[0])
                places = reader.scope.places(made[0])[:1]
                yield from (Upstream(place, text, name) for place in places)
            left.extend(made[0].invars)
