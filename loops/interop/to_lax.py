"""`to_lax`: a program with JAX's own scan and while equations in the place of ours.

The only file that builds equations of JAX's loop primitives. What knows only those by name (an
interpreter of another library, a kernel language, a tool that draws jaxprs) can read its result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.interop.checkpointed import written_out
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


class Counterpart(NamedTuple):
    """JAX's loop primitive for one of ours, and its parameters for those of ours."""

    primitive: Any
    change: Callable[[dict[str, Any]], dict[str, Any]]


COUNTERPARTS = {
    scan_p: Counterpart(jax.lax.scan_p, lambda params: _jax.lax_scan_params(**params)),
    while_p: Counterpart(jax.lax.while_p, dict),  # the parameters are the same
}


def to_lax(closed_jaxpr: Any) -> Any:
    """Write a program with JAX's own scan and while equations in the place of ours.

    Every jaxpr inside is rewritten too: loops in loops, branches of `cond`, jitted functions,
    `jax.checkpoint`, `jax.shard_map`, kernels of Pallas, and the functions that a custom derivative
    belongs to. A part that has none of our loops is the same object as before.

    A rule that is still a function, as that of `jax.custom_jvp` is, is traced when the program is
    differentiated or batched, so loops of ours may come out of it then: rewrite that program again.

    Args:
      closed_jaxpr: what `jax.make_jaxpr` returns.

    Returns:
      A jaxpr of the same type, with the same inputs, outputs and constants.

    Raises:
      TypeError: `closed_jaxpr` is no jaxpr.

    Example:
      >>> import jax, loops
      >>> doubled = lambda x: loops.fori_loop(0, 3, lambda i, c: 2 * c, x)
      >>> program = loops.to_lax(jax.make_jaxpr(doubled)(1.0))
      >>> print(program.eqns[0].primitive is jax.lax.scan_p)
      True
      >>> print(*jax.core.eval_jaxpr(program.jaxpr, program.consts, 1.0))
      8.0
    """
    if not _jax.is_jaxpr(closed_jaxpr):
        raise TypeError(
            f"to_lax takes a jaxpr, got {type(closed_jaxpr).__name__}. "
            "jax.make_jaxpr(f)(*args) makes one of a function."
        )
    return _rewrite(closed_jaxpr)


# Cached so that a jaxpr that occurs twice stays one object, which JAX's caches know again.
@_jax.cached_weakly
def _rewrite(jaxpr: Any) -> Any:
    return _jax.map_equations(_rewrite_equation, jaxpr)


def _rewrite_equation(eqn: Any) -> Any:
    params = rewrite_parameters(eqn.params)
    if eqn.primitive is checkpointed_loop_p:
        written = written_out([v.aval for v in eqn.invars], eqn.params)
        return _jax.staged_call_equation(_rewrite(written), eqn.invars, eqn.outvars, eqn)
    theirs = _counterpart(eqn.primitive)
    if theirs is not None:
        return eqn.replace(primitive=theirs.primitive, params=theirs.change(params))
    return _jax.with_parameters(eqn, params)


def _counterpart(primitive: Any) -> Counterpart | None:
    if primitive is not scan_p and primitive is _jax.tangent_primitive(scan_p, is_vjp=True):
        scan = COUNTERPARTS[scan_p]
        return scan._replace(primitive=_jax.tangent_primitive(scan.primitive, is_vjp=True))
    return COUNTERPARTS.get(primitive)


def rewrite_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """An equation's parameters with every jaxpr among them rewritten."""
    return _jax.map_parameters(_rewrite_value, params)


def _rewrite_value(value: Any) -> Any:
    if _jax.is_jaxpr(value):
        return _rewrite(value)
    return _rewrite_high_primitive(value) if _jax.is_high_primitive(value) else value


def _rewrite_high_primitive(primitive: Any) -> Any:
    """A high-level primitive that expands to a program without loops of ours.

    Loops in its jaxprs are rewritten. Where its expansion takes one from elsewhere, as that of
    `custom_root` does from a function, the expansion is rewritten when it is asked for.
    """
    params = rewrite_parameters(primitive.params)
    if any(new is not primitive.params[name] for name, new in params.items()):
        primitive = copy.copy(primitive)
        primitive.params = params
        vars(primitive).update(params)
    return _with_rewritten_expansion(primitive) if _expands_to_ours(primitive) else primitive


def _expands_to_ours(primitive: Any) -> bool:
    try:
        expansion = _jax.expand_high_primitive(primitive)
    except Exception:  # noqa: BLE001  (out of its context, say of a mesh, it may raise anything)
        return True
    return _rewrite(expansion) is not expansion


def _with_rewritten_expansion(primitive: Any) -> Any:
    """The same primitive, of a subclass that differs in nothing but its expansion."""

    def expand(_: Any, *args: Any) -> Any:
        program = _rewrite(_jax.expand_high_primitive(primitive))
        flat = primitive.in_tree.flatten_up_to(args)
        outputs = _jax.evaluate_jaxpr(program, *flat)
        return primitive.out_tree.unflatten(outputs)

    rewritten, kind = copy.copy(primitive), type(primitive)
    rewritten.__class__ = type(kind.__name__, (kind,), {"expand": expand})
    return rewritten
