"""A jaxpr read backwards: which equation made a value, through jit, loops, cond and custom rules.

Only attributes that jaxprs show to everyone are read, so this needs no private module of JAX.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from jax.core import AbstractValue

from checks.source import Place, places


def open_jaxpr(jaxpr: Any) -> Any:
    """The inputs, outputs and equations of a jaxpr, whether or not it holds its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant written into the equation."""
    return hasattr(atom, "val")


class Scope:
    """A jaxpr with the equation that holds it, if it is nested in another."""

    def __init__(
        self,
        jaxpr: Any,
        parent: "Scope | None" = None,
        eqn: Any = None,
        operands: "list[Any] | None" = None,
    ) -> None:
        self.jaxpr, self.parent, self.eqn = open_jaxpr(jaxpr), parent, eqn
        self._operands = operands or []
        self._inputs = {variable: i for i, variable in enumerate(self.jaxpr.invars)}
        self._producers = {
            variable: (eqn, i) for eqn in self.jaxpr.eqns for i, variable in enumerate(eqn.outvars)
        }

    def producer(self, variable: Any) -> tuple[Any, int] | None:
        """The equation that made a variable and which of its outputs that is."""
        return self._producers.get(variable)

    def operand_of(self, variable: Any) -> Any:
        """The operand of the equation around that a variable stands for, or None."""
        position = self._inputs.get(variable)
        has = position is not None and position < len(self._operands)
        return self._operands[position] if has else None

    def input_position(self, variable: Any) -> int | None:
        """Which input of the jaxpr a variable is."""
        return self._inputs.get(variable)

    def places(self, eqn: Any) -> list[Place]:
        """Where in the user's code an equation was made, or the one around it if JAX made it.

        JAX caches the jaxprs of its own functions with the source lines of their first use, so
        only lines of functions that run inside such a jaxpr count, and then it is the user's.
        """
        found = places(eqn)
        if found or self.parent is None:
            return found
        return self.parent.places(self.eqn)


class Inner(NamedTuple):
    """A nested jaxpr and the variable in it that an output of the equation around comes from."""

    scope: Scope
    atom: Any


def inner_outputs(scope: Scope, eqn: Any, output: int) -> Iterator[Inner]:
    """The nested jaxprs of an equation that give its output, one for each branch of a cond."""
    for jaxpr in _jaxprs_that_give_outputs(eqn):
        inner = open_jaxpr(jaxpr)
        if len(inner.outvars) != len(eqn.outvars):
            continue
        # What the jaxpr takes are the last operands: before them stand a cond's index, or the
        # constants of a while loop's condition.
        operands = list(eqn.invars)[max(len(eqn.invars) - len(inner.invars), 0) :]
        if len(operands) == len(inner.invars):
            yield Inner(Scope(inner, scope, eqn, operands), inner.outvars[output])


def _jaxprs_that_give_outputs(eqn: Any) -> list[Any]:
    params = eqn.params
    if "body_jaxpr" in params:
        return [params["body_jaxpr"]]
    if "branches" in params:
        return list(params["branches"])
    return [value for value in params.values() if hasattr(value, "eqns")][:1]


_CALLS = ("jit", "pjit", "closed_call", "remat", "checkpoint", "remat2", "custom_jvp_call")


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr of an equation that only calls it, with all its operands; None for any other."""
    if eqn.primitive.name not in _CALLS:
        return None
    found = [value for value in eqn.params.values() if hasattr(value, "eqns")]
    fits = len(found) == 1 and len(open_jaxpr(found[0]).invars) == len(eqn.invars)
    return found[0] if fits else None


def depends_on(scope: Scope, atom: Any, source: Any) -> bool:
    """Whether a value is computed from a variable of the same jaxpr, each equation as a whole."""
    seen, left = set(), [atom]
    while left:
        current = left.pop()
        if is_literal(current) or current in seen:
            continue
        if current is source:
            return True
        seen.add(current)
        made = scope.producer(current)
        left.extend(made[0].invars if made else ())
    return False


def computed_from(scope: Scope, atoms: Iterable[Any], sources: Container[Any]) -> bool:
    """Whether any of some values is computed from inputs of the outermost jaxpr.

    Args:
      scope: where the values stand, perhaps deep in nested jaxprs.
      atoms: the values.
      sources: variables that are inputs of the outermost jaxpr.
    """
    seen, left = set(), [(scope, atom) for atom in atoms]
    while left:
        scope, atom = left.pop()
        if is_literal(atom) or (scope.jaxpr, atom) in seen:
            continue
        seen.add((scope.jaxpr, atom))
        made = scope.producer(atom)
        if made is not None:
            left.extend((scope, operand) for operand in made[0].invars)
        elif scope.parent is None:
            if atom in sources:
                return True
        elif (outer := scope.operand_of(atom)) is not None:
            left.append((scope.parent, outer))
    return False


def forwards(scope: Scope, atom: Any, source: Any) -> bool:
    """Whether a value is an input of the jaxpr as it came, perhaps through a jitted function."""
    while not is_literal(atom):
        if scope.parent is None and atom is source:
            return True
        made = scope.producer(atom)
        if made is not None:
            eqn, output = made
            inner = list(inner_outputs(scope, eqn, output))
            if eqn.primitive.name not in ("jit", "pjit", "closed_call") or len(inner) != 1:
                return False
            scope, atom = inner[0]
        elif scope.parent is not None:
            outer = scope.operand_of(atom)
            if outer is None:
                return False
            scope, atom = scope.parent, outer
        else:
            return False
    return False


def type_text(aval: AbstractValue) -> str:
    """A type as messages write it."""
    return aval.str_short()


def equation_text(eqn: Any) -> str:
    """An equation in one line: the primitive, the types that go in and those that come out."""
    inputs = " ".join(type_text(v.aval) for v in eqn.invars)
    outputs = " ".join(type_text(v.aval) for v in eqn.outvars)
    return f"{eqn.primitive.name}: {inputs} -> {outputs}".replace(":  ->", ": ->")
