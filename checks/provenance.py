"""Where a carry's type changed: the equation in the body, and the user's line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.core import AbstractValue

from checks.jaxprs import Scope, computed_from, equation_text, is_literal
from checks.rewriting import one_line
from checks.roots import Aspect, Reader, Root, Walk, differing
from checks.source import Place, shown


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
        text = f" `{one_line(self.place.text)}`" if self.place.text else ""
        equation = f" ({self.equation})" if self.equation else ""
        return f"{self.place}, in {self.function}:{text}{equation}"


class Trail(NamedTuple):
    """Where a type changed, and the expressions that led there.

    `sites` could be changed to mend it: what made the foreign type, what took it over, what is
    returned, and the calls of helpers that these stand in. `upstream` are those of reductions that
    the roots were computed with. `from_carry` says whether a root was computed from the carry, or
    what the leaf meets from the leaf, and `from_itself` whether a root that made the type was.
    """

    provenance: Provenance | None
    sites: tuple[Place, ...] = ()
    upstream: tuple["Upstream", ...] = ()
    from_carry: bool = False
    from_itself: bool = False


class Upstream(NamedTuple):
    """A reduction that a foreign value was computed with."""

    place: Place
    equation: str
    primitive: str


def follow(
    jaxpr: Any,
    output: int,
    in_aval: AbstractValue,
    carry: slice = slice(0),
    position: int | None = None,
) -> Trail:
    """Follow an output of a body back to where its type became another than that of its input.

    Args:
      jaxpr: the body's jaxpr.
      output: position of the output.
      in_aval: the type that it should have.
      carry: which inputs of the jaxpr are the user's carry.
      position: which leaf of that the output is.

    Returns:
      The trail; without a provenance where no line of the user's is known: the body returns another
      of its inputs, or nothing tells where its equations were written.
    """
    scope = Scope(jaxpr)
    atom = scope.jaxpr.outvars[output]
    last = _last_places(scope, atom)
    variables = scope.jaxpr.invars[carry]
    itself = [] if position is None else [variables[position]]
    for aspect in differing(in_aval, atom.aval):
        found = [root for root in Walk(aspect).roots(scope, atom) if root.places()]
        if found:
            of_carry = [root for root in found if computed_from(root.scope, [root.atom], variables)]
            own = [root for root in of_carry if computed_from(root.scope, [root.atom], itself)]
            found.sort(key=lambda root: (root not in own, root.position()))
            return _trail(aspect, found, own, last)._replace(
                from_carry=bool(of_carry) or _meets_itself(found, aspect, itself),
                from_itself=not all(root.is_adapter for root in own),
            )
    return Trail(None, tuple(last))


def _trail(aspect: Aspect, found: list[Root], own: list[Root], last: list[Place]) -> Trail:
    """Choose the line to name: where the foreign type was made, or where it met the carry."""
    origin = min(found, key=lambda root: _rank(root, aspect))
    meeting = _meeting(found)
    # Others may have any shape: the line is where the leaf takes it over, but not from itself.
    joins = meeting is not None and meeting.eqn.primitive.name in ("concatenate", "pad")
    is_part = aspect.name == "shape" and origin in own and not joins
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
    return Trail(provenance, sites, tuple(_reductions(found)))


def _rank(root: Root, aspect: Aspect) -> tuple[Any, ...]:
    """Which root to name first: one that made the type of something."""
    return root.is_adapter, root.is_constant or _is_random(root, aspect), root.eqn is None


def _meets_itself(found: list[Root], aspect: Aspect, itself: list[Any]) -> bool:
    """Whether what the leaf meets, and takes its type over from, was computed from the leaf."""
    return any(
        computed_from(root.meets.scope, [operand], itself)
        for root in found
        if root.meets is not None
        for operand in root.meets.eqn.invars
        if aspect.is_foreign(operand.aval)
    )


def _makes(root: Root, aspect: Aspect) -> bool:
    """Whether an equation itself made the foreign type, of something that did not have it."""
    if root.eqn is None or root.is_adapter or _is_random(root, aspect):
        return False
    if aspect.name == "dtype":  # an index or a slice has the dtype of what it is taken from
        return True
    # Any operation makes a shape: only what took the carry's away is to blame for it.
    return any(not is_literal(v) and aspect.is_native(v.aval) for v in root.eqn.invars)


def _is_random(root: Root, aspect: Aspect) -> bool:
    """Whether random bits became numbers, which are floats by nature and not by a mistake."""
    made = None if root.eqn is None else root.eqn.primitive.name
    return aspect.is_other_kind and made == "bitcast_convert_type"


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
