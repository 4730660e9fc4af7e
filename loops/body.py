"""A loop's body traced against its carry: the contract, and the conversions of its init."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef, treedef_children

from checks.explanation import explain_mismatches
from checks.passes import BodyOut, CarryChanges, CarryPasses
from checks.tracing import LoopBody
from loops import _jax
from loops.learning import (
    finishing_all_after_an_error,
    is_learning,
    is_unfinished,
    only_promoted_depend,
    tracing_a_body,
)


class TracedBody(NamedTuple):
    """A scan's body traced to `jaxpr`: [*consts, *carry, *x] -> [*carry, *y]."""

    jaxpr: Any
    consts: list[Any]
    carry_tree: PyTreeDef
    ys_tree: PyTreeDef


Traced = TypeVar("Traced")


class SettledLoop(NamedTuple, Generic[Traced]):
    """A loop whose carry keeps its types: the initial carry, promoted, and the traced body.

    Of an unfinished loop (see `loops.learning`) only `carry_avals` counts: the types that the carry
    would settle at.
    """

    init: Any
    traced: Traced
    carry_avals: list[Any]
    is_unfinished: bool


def trace_to_fixpoint(
    name: str,
    body_fun: Callable[..., Any],
    init: Any,
    trace: Callable[[Any, list[Any], bool], tuple[Traced, BodyOut]],
    num_settled: int = 0,
    written: Callable[[], LoopBody] | None = None,
) -> SettledLoop[Traced]:
    """Trace a body until the carry that comes out has the types that went in.

    A weakly typed init (a Python scalar) may have another type than the body's output without being
    wrong: it is converted to what promotion makes of the two, and the body is traced again. So is
    an init that inside `jax.shard_map` varies over fewer mesh axes than the output, where that is
    all that differs. Each pass moves a leaf up in the order of types or adds an axis to one, so
    there are few of them; an init that needs neither takes one pass.

    Args:
      name: what the contract's message calls the body.
      body_fun: the user's function, for the names in that message.
      init: flat tree of the initial carry.
      trace: runs the body on a flat tree of carry or on the types of its leaves, and is told
        whether the loops inside must be finished; returns what it made of it and what came out.
      num_settled: how many leading leaves are known to keep their types (a counter).
      written: gives the body as the user wrote it, for the explanation of an error.

    Raises:
      checks.CarryTypeError: the carry that comes out differs in type or structure.
    """
    try:
        return finishing_all_after_an_error(
            lambda finish: _settle(
                InitPasses(name, body_fun, init, written), trace, num_settled, finish
            )
        )
    except ValueError as error:
        _explain_refs(error, init)
        raise


def _explain_refs(error: ValueError, init: Any) -> None:
    """Add what to do to JAX's refusal of a body that returns a Ref which it was given as carry."""
    if any(_jax.is_ref(jax.typeof(x)) for x in init):
        error.add_note(
            "A loop cannot carry a Ref. Let the body close over it, or scan over it as one of the "
            "xs: it may be read and written there."
        )


def _settle(
    passes: InitPasses,
    trace: Callable[[Any, list[Any], bool], tuple[Traced, BodyOut]],
    num_settled: int,
    finish: bool,
) -> SettledLoop[Traced]:
    """Trace, convert the initial carry, and trace again until nothing has to be converted."""
    while True:
        with tracing_a_body(may_be_thrown_away=passes.may_promote(num_settled)):
            traced, out = trace(passes.init, passes.avals, finish)
        changes = passes.changes_after(out)
        if not changes:
            if out.jaxpr is not None and is_unfinished(out.jaxpr) and not is_learning():
                with tracing_a_body(may_be_thrown_away=False):
                    traced, _ = trace(passes.init, passes.avals, True)
            return SettledLoop(passes.init, traced, passes.avals, is_unfinished=False)
        if _leave_others_as_they_are(changes, out) and is_learning():
            return SettledLoop(passes.init, traced, changes.promoted_avals(), is_unfinished=True)
        passes.convert(changes)


def _leave_others_as_they_are(changes: CarryChanges, out: BodyOut) -> bool:
    """Whether the changes are promotions that change no other type than the promoted ones."""
    if out.jaxpr is None or any(changes.missing_axes):
        return False
    marks = [p is not None for p in changes.promoted]
    return only_promoted_depend(out.jaxpr, out.num_consts, marks)


class InitPasses(CarryPasses):
    """The initial carry of a loop, pass by pass."""

    def __init__(
        self,
        name: str,
        body_fun: Callable[..., Any],
        init: Any,
        written: Callable[[], LoopBody] | None,
    ) -> None:
        explain = None if written is None else partial(explain_mismatches, written)
        super().__init__(name, body_fun, init.tree, [jax.typeof(x) for x in init], explain)
        self.init = init

    def carry(self) -> Any:
        """The values that go in: a class of the user's may refuse types in their place."""
        return self.init.unflatten()

    def convert(self, changes: CarryChanges) -> None:
        """Convert the initial carry, for the next pass."""
        rows = zip(self.init, changes.promoted, changes.missing_axes, strict=True)
        self.init = self.init.update(_convert(*row) for row in rows)
        self.avals = [jax.typeof(x) for x in self.init]


def _convert(x: Any, promoted: Any, axes: tuple[Any, ...]) -> Any:
    """A leaf of the carry converted to a promoted type, unless that is None, and cast over axes."""
    if promoted is not None:
        x = lax.convert_element_type(x, promoted.dtype)
    return lax.pcast(jnp.asarray(x), axes, to="varying") if axes else x


def trace_scan_body(
    f: Callable[..., Any], carry_avals: Any, x_avals: Any, debug: Any
) -> tuple[TracedBody, BodyOut]:
    """Trace a scan's body for flat trees of avals and take its output apart."""
    traced = _jax.trace_function(f, (carry_avals, x_avals), debug)
    node, children = traced.out_tree.node_data(), treedef_children(traced.out_tree)
    if node is None or node[0] not in (tuple, list) or len(children) != 2:
        output = jax.tree_util.tree_unflatten(traced.out_tree, traced.out_avals)
        raise TypeError(f"scan body output must be a pair, got {output}.")
    carry_tree, ys_tree = children
    carry_out = traced.out_avals[: carry_tree.num_leaves]
    body = TracedBody(traced.jaxpr, traced.consts, carry_tree, ys_tree)
    return body, BodyOut(carry_tree, carry_out, traced.jaxpr, len(traced.consts))


def refuse_forbidden_effects(loop: str, *jaxprs: Any) -> None:
    """Raise if a body has effects that a loop cannot run in the right number and order."""
    forbidden = _jax.forbidden_effects(frozenset().union(*(jaxpr.effects for jaxpr in jaxprs)))
    if forbidden:
        raise NotImplementedError(
            f"Effects not supported in `{loop}`: {forbidden}. Move what has them out of the body."
        )
    for jaxpr in jaxprs:
        for before, after in _jax.boxes_that_change_type(jaxpr):
            raise TypeError(
                f"type-changing mutations not allowed in {loop}: a step leaves a hijax box with "
                f"{after} that held {before}. Set it to a value of that type before the loop."
            )
