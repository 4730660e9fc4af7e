"""A loop's body traced against its carry: the contract, and the conversions of its init."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef, treedef_children

from checks import _check_carry_type, missing_varying_axes, promote_weak_avals
from loops import _jax


class CarryOut(NamedTuple):
    """What a body returned for the carry: its structure and the types of its leaves."""

    tree: PyTreeDef
    avals: list[Any]


class TracedBody(NamedTuple):
    """A body traced to `jaxpr`: [*consts, *carry, *x] -> [*carry, *y]."""

    jaxpr: Any
    consts: list[Any]
    carry: CarryOut
    ys_tree: PyTreeDef


Traced = TypeVar("Traced")


def trace_to_fixpoint(
    name: str,
    body_fun: Callable[..., Any],
    init: Any,
    trace: Callable[[Any], tuple[Traced, CarryOut]],
) -> tuple[Any, Traced]:
    """Trace a body until the carry that comes out has the types that went in.

    A weakly typed init (a Python scalar) may have another type than the body's output without being
    wrong: it is converted to what promotion makes of the two, and the body is traced again. So is
    an init that inside `jax.shard_map` varies over fewer mesh axes than the output, where that is
    all that differs. Each pass makes a leaf strong or adds an axis to one, so there are few of
    them; an init that needs neither takes one pass.

    Args:
      name: what the contract's message calls the body.
      body_fun: the user's function, for the names in that message.
      init: flat tree of the initial carry.
      trace: runs the body on a flat tree of carry; returns what it made of it and what came out.

    Returns:
      The initial carry, promoted, and what the last trace returned.

    Raises:
      checks.CarryTypeError: the carry that comes out differs in type or structure.
    """
    while True:
        traced, out = trace(init)
        if out.tree != init.tree:
            _check_carry_type(name, body_fun, init.unflatten(), out.tree, out.avals)
        in_avals = [jax.typeof(x) for x in init]
        promoted = promote_weak_avals(in_avals, out.avals)
        strong = [p or aval for p, aval in zip(promoted, in_avals, strict=True)]
        missing = missing_varying_axes(strong, out.avals)
        if not any(promoted) and not any(missing):
            _check_carry_type(name, body_fun, init.unflatten(), out.tree, out.avals)
            return init, traced
        init = init.update(_convert(*each) for each in zip(init, promoted, missing, strict=True))


def _convert(x: Any, promoted: Any, axes: tuple[Any, ...]) -> Any:
    """A leaf of the carry converted to a promoted type, unless that is None, and cast over axes."""
    if promoted is not None:
        x = lax.convert_element_type(x, promoted.dtype)
    return lax.pcast(jnp.asarray(x), axes, to="varying") if axes else x


def trace_scan_body(f: Callable[..., Any], carry: Any, x_avals: Any, debug: Any) -> TracedBody:
    """Trace a scan's body for a flat tree of carry and take its output apart."""
    traced = _jax.trace_function(f, (carry.map(jax.typeof), x_avals), debug)
    node, children = traced.out_tree.node_data(), treedef_children(traced.out_tree)
    if node is None or node[0] not in (tuple, list) or len(children) != 2:
        output = jax.tree_util.tree_unflatten(traced.out_tree, traced.out_avals)
        raise TypeError(f"scan body output must be a pair, got {output}.")
    carry_tree, ys_tree = children
    carry_out = CarryOut(carry_tree, traced.out_avals[: carry_tree.num_leaves])
    return TracedBody(traced.jaxpr, traced.consts, carry_out, ys_tree)


def refuse_forbidden_effects(loop: str, effects: Any) -> None:
    """Raise if a body has effects that a loop cannot run in the right number and order."""
    forbidden = _jax.forbidden_effects(effects)
    if forbidden:
        raise NotImplementedError(
            f"Effects not supported in `{loop}`: {forbidden}. Move what has them out of the body."
        )
