"""A loop's body traced against its carry: the contract, and the conversions of its init."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef, treedef_children

from checks import _check_carry_type, missing_varying_axes, promote_weak_avals
from loops import _jax


class BodyOut(NamedTuple):
    """What a body returned for the carry, and how: by `jaxpr`, unless it was run on real values.

    jaxpr: [*consts, *carry, *x] -> [*carry, *y]
    """

    tree: PyTreeDef
    avals: list[Any]
    jaxpr: Any = None
    num_consts: int = 0


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
    trace: Callable[[Any, bool], tuple[Traced, BodyOut]],
    num_settled: int = 0,
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
      trace: runs the body on a flat tree of carry, the second argument saying whether the loops
        inside must be finished; returns what it made of it and what came out.
      num_settled: how many leading leaves are known to keep their types (a counter).

    Raises:
      checks.CarryTypeError: the carry that comes out differs in type or structure.
    """
    began_weak = [getattr(jax.typeof(x), "weak_type", False) for x in init]
    history = []
    while True:
        in_avals = [jax.typeof(x) for x in init]
        may_promote = any(aval.weak_type for aval in in_avals[num_settled:] if _is_array(aval))
        with tracing_a_body(may_be_thrown_away=may_promote):
            traced, out = trace(init, False)
        history.append(in_avals)
        try:
            if out.tree != init.tree:
                _check_carry_type(name, body_fun, init.unflatten(), out.tree, out.avals)
            promoted = promote_weak_avals(in_avals, out.avals, began_weak)
            strong = [a if p is None else p for p, a in zip(promoted, in_avals, strict=True)]
            missing = missing_varying_axes(strong, out.avals)
            is_settled = all(p is None for p in promoted) and not any(missing)
            if is_settled:
                _check_carry_type(name, body_fun, init.unflatten(), out.tree, out.avals)
        except CarryTypeError as error:
            explain_passes(error, [*history, out.avals])
            raise
        if is_settled:
            if out.jaxpr is not None and is_unfinished(out.jaxpr) and not is_learning():
                with tracing_a_body(may_be_thrown_away=False):
                    traced, _ = trace(init, True)
            return SettledLoop(init, traced, in_avals, is_unfinished=False)
        if out.jaxpr is not None and is_learning() and not any(missing):
            marks = [p is not None for p in promoted]
            num_outputs = len(out.jaxpr.out_avals)
            if only_promoted_depend(out.jaxpr, out.num_consts, marks, num_outputs):
                return SettledLoop(init, traced, strong, is_unfinished=True)
        init = init.update(_convert(*each) for each in zip(init, promoted, missing, strict=True))


def _is_array(aval: Any) -> bool:
    return isinstance(aval, jax.core.ShapedArray)


def _convert(x: Any, promoted: Any, axes: tuple[Any, ...]) -> Any:
    """A leaf of the carry converted to a promoted type, unless that is None, and cast over axes."""
    if promoted is not None:
        x = lax.convert_element_type(x, promoted.dtype)
    return lax.pcast(jnp.asarray(x), axes, to="varying") if axes else x


def trace_scan_body(
    f: Callable[..., Any], carry: Any, x_avals: Any, debug: Any
) -> tuple[TracedBody, BodyOut]:
    """Trace a scan's body for a flat tree of carry and take its output apart."""
    traced = _jax.trace_function(f, (carry.map(jax.typeof), x_avals), debug)
    node, children = traced.out_tree.node_data(), treedef_children(traced.out_tree)
    if node is None or node[0] not in (tuple, list) or len(children) != 2:
        output = jax.tree_util.tree_unflatten(traced.out_tree, traced.out_avals)
        raise TypeError(f"scan body output must be a pair, got {output}.")
    carry_tree, ys_tree = children
    carry_avals = traced.out_avals[: carry_tree.num_leaves]
    body = TracedBody(traced.jaxpr, traced.consts, carry_tree, ys_tree)
    return body, BodyOut(carry_tree, carry_avals, traced.jaxpr, len(traced.consts))


def refuse_forbidden_effects(loop: str, effects: Any) -> None:
    """Raise if a body has effects that a loop cannot run in the right number and order."""
    forbidden = _jax.forbidden_effects(effects)
    if forbidden:
        raise NotImplementedError(
            f"Effects not supported in `{loop}`: {forbidden}. Move what has them out of the body."
        )
