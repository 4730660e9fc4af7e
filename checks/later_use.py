"""Whether an expression of a body may get another shape without changing what is made of it.

A forgotten `keepdims` is best given where the axis is lost, and a reshape is best undone where it
was made, but only if what follows treats each element by itself:

    m = x.mean(axis=1)          keepdims=True changes the shape of the result and no more
    return c + 0.1 * m

    m = x.mean(axis=1)          keepdims=True would make each row a softmax over one element
    return jax.nn.softmax(m)

Where more follows, it is the result that has to be given its shape.
"""

from collections.abc import Iterator
from typing import Any

from jax.core import ShapedArray

from checks.growth import ELEMENTWISE
from checks.jaxprs import called_jaxpr, is_literal, open_jaxpr
from checks.source import Place, places

_ALSO_ELEMENTWISE = ("broadcast_in_dim", "add_any", "reshard", "pvary", "pcast")


def may_change_shape(jaxpr: Any, place: Place, *, only_ones: bool) -> bool:
    """Whether what is computed at a place reaches all that is returned element by element.

    Args:
      jaxpr: the body's jaxpr.
      place: the place of an expression.
      only_ones: whether its shape would change in axes of size one alone.
    """
    walk = _Walk(place, only_ones)
    inner = open_jaxpr(jaxpr)
    walk.through(inner, set(), _live(inner))
    return walk.may_change


class _Walk:
    """Follows what is made at a place through a jaxpr."""

    def __init__(self, place: Place, only_ones: bool) -> None:
        self.place, self.only_ones = place, only_ones
        self.may_change = True

    def through(self, jaxpr: Any, reached: set[Any], live: set[Any] | None = None) -> list[bool]:
        """Which outputs have a shape that would change, given the variables that have one."""
        reached = set(reached)
        for eqn in jaxpr.eqns:
            if live is not None and not live.intersection(eqn.outvars):
                continue
            reached |= {eqn.outvars[i] for i in self._outputs(eqn, reached)}
        return [not is_literal(v) and v in reached for v in jaxpr.outvars]

    def _outputs(self, eqn: Any, reached: set[Any]) -> list[int]:
        """Which outputs of an equation would change their shape."""
        everything = list(range(len(eqn.outvars)))
        if self.place in places(eqn):
            return everything
        changing = [v for v in eqn.invars if not is_literal(v) and v in reached]
        called = [called_jaxpr(eqn)] if eqn.primitive.name != "cond" else eqn.params["branches"]
        if called[0] is not None:
            marks = [self._through_call(jaxpr, eqn, reached) for jaxpr in called]
            return [i for i in everything if any(mark[i] for mark in marks)]
        holds_place = any(self.place in places(inner) for inner in _equations_inside(eqn))
        if not holds_place and (not changing or self._stops(eqn, changing)):
            return []
        if holds_place or not self._is_elementwise(eqn, changing):
            self.may_change = False  # in a loop inside it is a part of that loop's carry, perhaps
        return everything

    def _through_call(self, jaxpr: Any, eqn: Any, reached: set[Any]) -> list[bool]:
        inner = open_jaxpr(jaxpr)
        operands = eqn.invars[len(eqn.invars) - len(inner.invars) :]
        pairs = zip(inner.invars, operands)
        return self.through(inner, {v for v, o in pairs if not is_literal(o) and o in reached})

    def _stops(self, eqn: Any, changing: list[Any]) -> bool:
        """Whether an equation gives the same, whatever shape its operands have."""
        out = _shape(eqn.outvars[0])
        if out is None or not self.only_ones:
            return False
        if eqn.primitive.name == "reshape":
            return True
        # What is broadcast to another operand's shape; equal axes could be taken for one another.
        others = [v for v in eqn.invars if v not in changing and _shape(v) == out]
        smaller = all(_num_large(_shape(v) or ()) < _num_large(out) for v in changing)
        return bool(others) and smaller and _num_large(out) == len({n for n in out if n != 1})

    def _is_elementwise(self, eqn: Any, changing: list[Any]) -> bool:
        name = eqn.primitive.name
        if name not in ELEMENTWISE and name not in _ALSO_ELEMENTWISE:
            return False
        # In another layout the elements of a second array would meet other ones.
        others = [v for v in eqn.invars if is_literal(v) or v not in changing]
        return self.only_ones or all(_num_large(_shape(v) or ()) == 0 for v in others)


def _equations_inside(eqn: Any) -> Iterator[Any]:
    """All equations of the jaxprs that an equation holds, as a loop does."""
    for value in eqn.params.values():
        for jaxpr in value if isinstance(value, list | tuple) else [value]:
            for inner in getattr(jaxpr, "eqns", ()):
                yield inner
                yield from _equations_inside(inner)


def _live(jaxpr: Any) -> set[Any]:
    """The variables that the outputs of a jaxpr are computed from."""
    live = {v for v in jaxpr.outvars if not is_literal(v)}
    for eqn in reversed(jaxpr.eqns):
        if live.intersection(eqn.outvars):
            live |= {v for v in eqn.invars if not is_literal(v)}
    return live


def _shape(variable: Any) -> tuple[Any, ...] | None:
    aval = variable.aval
    return aval.shape if isinstance(aval, ShapedArray) else None


def _num_large(shape: tuple[Any, ...]) -> int:
    """How many axes have more than one element."""
    return sum(n != 1 for n in shape)
