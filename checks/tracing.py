"""A loop's body as the user wrote it, traced against types."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.core import AbstractValue
from jax.tree_util import PyTreeDef, tree_flatten, tree_flatten_with_path, tree_unflatten

from checks.jaxprs import open_jaxpr


def as_aval(leaf: Any) -> AbstractValue:
    """The type of a leaf: an aval, an array, a Python scalar or a `jax.ShapeDtypeStruct`."""
    if isinstance(leaf, AbstractValue):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        (variable,) = open_jaxpr(jax.make_jaxpr(lambda x: x)(leaf)).invars
        return variable.aval
    return jax.typeof(leaf)


def key_paths(tree: Any) -> list[tuple[Any, ...]]:
    """The key path of each leaf of a pytree."""
    return [path for path, _ in tree_flatten_with_path(tree)[0]]


class TracedFunction(NamedTuple):
    """A function traced to `jaxpr`: [*flat arguments] -> [*flat outputs]."""

    jaxpr: Any
    out_tree: PyTreeDef
    out_avals: list[AbstractValue]


def trace(fun: Callable[..., Any], *args: Any) -> TracedFunction:
    """Trace a function on pytrees of avals; nothing is computed.

    What the function closes over, tracers too, are constants of the jaxpr.
    """
    avals, in_tree = tree_flatten(args)
    trees: list[PyTreeDef] = []

    def flat(*leaves: Any) -> list[Any]:
        out, tree = tree_flatten(fun(*tree_unflatten(in_tree, leaves)))
        trees.append(tree)
        return out

    jaxpr = jax.make_jaxpr(flat)(*avals)
    return TracedFunction(jaxpr, trees[-1], [v.aval for v in open_jaxpr(jaxpr).outvars])


@dataclass(frozen=True)
class LoopBody:
    """What the user gave a loop as its body, and how the loop calls it.

    Args:
      fun: the user's function.
      before: types of the arguments before the carry: the index of a `fori_loop`.
      after: types of the arguments after the carry: the x of a `scan`.
      returns_pair: whether it returns the carry and a y, as in a `scan`.
      slot: where the user's carry stands in the loop's own, as a key path of one key or none:
        `loop_carry[1]` in a `fori_loop`.
      steps: how many steps the loop runs, if that is known.
      condition: the condition of a while loop.
      first_index: the first index of a `fori_loop`, if that is known.
    """

    fun: Callable[..., Any]
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    returns_pair: bool = False
    slot: tuple[Any, ...] = ()
    steps: int | None = None
    condition: Callable[[Any], Any] | None = None
    first_index: int | None = None

    @property
    def position(self) -> int:
        """Which argument of the user's function the carry is."""
        return len(self.before)

    def trace(self, fun: Callable[..., Any], carry: Any) -> TracedFunction:
        """Trace a function like the body for a carry of types; only the carry comes out."""

        def carry_out(before: Any, carry: Any, after: Any) -> Any:
            output = fun(*before, carry, *after)
            return output[0] if self.returns_pair else output

        return trace(carry_out, self.before, carry, self.after)

    def trace_all(self, carry: Any) -> TracedFunction:
        """Trace the body for a carry of types; the y comes out as well."""
        return trace(self.fun, *self.before, carry, *self.after)
