"""`to_lax`: a program with JAX's own scan and while equations in the place of ours.

The only file that builds equations of JAX's loop primitives. What knows only those by name (an
interpreter of another library, a kernel language, a tool that draws jaxprs) can read its result.
"""

from __future__ import annotations

import copy
from typing import Any

import jax

from loops import _jax
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


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
      NotImplementedError: a high-level primitive holds one of our loops inside a function.

    Example:
      >>> import jax
      >>> program = jax.make_jaxpr(lambda x: fori_loop(0, 3, lambda i, c: 2 * c, x))(1.0)
      >>> rewritten = to_lax(program)
      >>> print(rewritten.eqns[0].primitive is jax.lax.scan_p)
      True
      >>> print(jax.core.eval_jaxpr(rewritten.jaxpr, rewritten.consts, 1.0))
      [Array(8., dtype=float32, weak_type=True)]
    """
    if not _jax.is_jaxpr(closed_jaxpr):
        raise TypeError(
            f"to_lax takes a jaxpr, got {type(closed_jaxpr).__name__}. "
            "jax.make_jaxpr(f)(*args) makes one of a function."
        )
    return _rewrite(closed_jaxpr)


def _rewrite_uncached(jaxpr: Any) -> Any:
    return _jax.map_equations(_rewrite_equation, jaxpr)


# A jaxpr that occurs twice stays one object, which JAX's caches know again.
_rewrite = _jax.cached_weakly(_rewrite_uncached)


def _rewrite_equation(eqn: Any) -> Any:
    params = {name: _rewrite_value(value) for name, value in eqn.params.items()}
    if eqn.primitive in _COUNTERPARTS:
        if eqn.primitive not in (while_p, _jax.tangent_primitive(while_p, is_vjp=True)):
            params = _jax.lax_scan_params(**params)
        return eqn.replace(primitive=_COUNTERPARTS[eqn.primitive], params=params)
    unchanged = all(new is eqn.params[name] for name, new in params.items())
    return eqn if unchanged else eqn.replace(params=params)


_COUNTERPARTS = {scan_p: jax.lax.scan_p, while_p: jax.lax.while_p} | {
    _jax.tangent_primitive(ours, is_vjp=True): _jax.tangent_primitive(theirs, is_vjp=True)
    for ours, theirs in ((scan_p, jax.lax.scan_p), (while_p, jax.lax.while_p))
}


def _rewrite_value(value: Any) -> Any:
    """A parameter with each jaxpr in it rewritten; the same object if none was."""
    if _jax.is_jaxpr(value):
        return _rewrite(value)
    if _jax.is_high_primitive(value):
        return _rewrite_high_primitive(value)
    if isinstance(value, (tuple, list)):
        new = [_rewrite_value(item) for item in value]
        if all(a is b for a, b in zip(new, value, strict=True)):
            return value
        return value._make(new) if hasattr(value, "_make") else type(value)(new)
    return value


def _rewrite_high_primitive(primitive: Any) -> Any:
    """A high-level primitive with the jaxprs among its parameters rewritten.

    What its expansion takes from elsewhere, say from a function that it holds, cannot be rewritten.
    """
    params = {name: _rewrite_value(value) for name, value in primitive.params.items()}
    if any(new is not primitive.params[name] for name, new in params.items()):
        primitive = copy.copy(primitive)
        primitive.params = params
        vars(primitive).update(params)
    expansion = _jax.expand_high_primitive(primitive)
    if _rewrite(expansion) is not expansion:
        raise NotImplementedError(
            f"to_lax cannot rewrite {type(primitive).__name__}: it holds a loop of ours in a "
            "function, not in a jaxpr. Inside `replace_lax` nothing need be rewritten the other "
            "way round; or use jax.lax's loops in that function."
        )
    return primitive
