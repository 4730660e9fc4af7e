"""The types of a loop's carry, settled as the loop settles them, from types alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jax.core import AbstractValue
from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

from checks.condition import check_predicate
from checks.explanation import explain_mismatches
from checks.jaxprs import Scope, forwards
from checks.nesting import Settling, nesting
from checks.passes import BodyOut, CarryPasses, with_varying
from checks.tracing import LoopBody, TracedFunction, as_aval, trace


@dataclass(frozen=True)
class Loop:
    """A loop to be checked.

    `named` is the function that messages take the carry's name from, `fun` takes the loop's whole
    carry and then `after`, and `written` is the body as the user wrote it.
    """

    name: str
    named: Callable[..., Any]
    fun: Callable[..., Any]
    written: LoopBody
    after: tuple[Any, ...] = ()
    condition: Callable[[Any], Any] | None = None
    num_settled: int = 0


class Pass(NamedTuple):
    """One trace of a loop: its condition, if it has one, and its body."""

    condition: TracedFunction | None
    jaxpr: Any
    out: BodyOut


class Settled(NamedTuple):
    """The passes that a loop took until its carry's types agreed, and the types that went in."""

    tree: PyTreeDef
    history: list[list[AbstractValue]]
    passes: list[Pass]
    traces: int


def settle(loop: Loop, init: Any) -> Settled:
    """Trace a loop's body until its carry's types agree.

    Raises:
      checks.CarryTypeError: they never do.
    """
    leaves, tree = tree_flatten(init)
    avals = [as_aval(leaf) for leaf in leaves]
    return nesting().settle_loop(lambda settling, _: _settle_types(loop, tree, avals, settling))


def _settle_types(
    loop: Loop, tree: PyTreeDef, avals: list[AbstractValue], settling: Settling
) -> Settled:
    """Trace, promote, and trace again until nothing has to be promoted."""
    explain = partial(explain_mismatches, lambda: loop.written)
    passes = CarryPasses(loop.name, loop.named, tree, avals, explain)
    done: list[Pass] = []
    may_learn = True
    while True:
        with settling.tracing_a_body(may_learn and passes.may_promote(loop.num_settled)):
            done.append(_trace(loop, passes.carry()))
        holds_unfinished = settling.holds_unfinished(done[-1].jaxpr)
        changes = passes.changes_after(done[-1].out)
        if changes:
            passes.convert(changes)
        elif holds_unfinished:
            may_learn = False
        else:
            settling.guesses_were_right()
            return Settled(tree, passes.history, done, len(done))


def _trace(loop: Loop, carry: Any) -> Pass:
    condition = None
    if loop.condition is not None:
        with nesting().tracing_a_condition():
            condition = trace(loop.condition, carry)
        check_predicate("cond_fun", condition.out_tree, condition.out_avals)
    traced = trace(loop.fun, carry, *loop.after)
    tree, avals = traced.out_tree, traced.out_avals
    if loop.written.returns_pair:
        node, children = tree.node_data(), tree.children()
        if node is None or node[0] not in (tuple, list) or len(children) != 2:
            output = tree_unflatten(tree, avals)
            raise TypeError(f"scan body output must be a pair, got {output}.")
        tree = children[0]
        avals = avals[: tree.num_leaves]
    if condition is not None:
        avals = _varying_with(condition.out_avals[0], traced.jaxpr, avals)
    return Pass(condition, traced.jaxpr, BodyOut(tree, avals, traced.jaxpr))


def _varying_with(
    predicate: AbstractValue, jaxpr: Any, avals: list[AbstractValue]
) -> list[AbstractValue]:
    """What a body changes varies over the mesh axes that the loop's predicate varies over."""
    axes = getattr(predicate, "mat").varying  # noqa: B009  a boolean scalar has it
    if not axes:
        return avals
    scope = Scope(jaxpr)
    outputs = zip(avals, scope.jaxpr.outvars, scope.jaxpr.invars)
    return [
        aval if forwards(scope, output, source) else with_varying(aval, axes)
        for aval, output, source in outputs
    ]
