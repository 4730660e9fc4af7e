"""An initial carry of zeros, as an expression for given types."""

from typing import Any

from jax.core import ShapedArray

from checks.leaf_problem import dtype_code, placed
from checks.written import WrittenBody


def types_code(tree: Any, written: WrittenBody) -> str | None:
    """An expression that makes zeros of the given types.

    Args:
      tree: a pytree of avals.
      written: the body, whose file has names for jax.numpy and the like.

    Returns:
      The expression; None where there is no plain one, for a typed key or a class of the user's.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from checks.tracing import LoopBody
      >>> body = WrittenBody(LoopBody(lambda carry: jnp.sin(carry)))
      >>> types_code({"n": jax.typeof(1), "m": None}, body)
      "{'n': jnp.zeros((), jnp.int32), 'm': None}"
    """
    if tree is None:
        return "None"
    if isinstance(tree, ShapedArray):
        return _array_code(tree, written)
    if type(tree) not in (dict, list, tuple):
        return None
    items = list(tree.values()) if type(tree) is dict else list(tree)
    codes = [types_code(item, written) for item in items]
    known = [code for code in codes if code is not None]
    if len(known) < len(items):
        return None
    if type(tree) is dict:
        return "{" + ", ".join(f"{k!r}: {code}" for k, code in zip(tree, known)) + "}"
    around = "[{}]" if type(tree) is list else "({},)" if len(known) == 1 else "({})"
    return around.format(", ".join(known))


def _array_code(aval: ShapedArray, written: WrittenBody) -> str | None:
    alias = written.jnp
    try:
        dtype = dtype_code(aval.dtype, alias)
    except TypeError:  # a typed key
        return None
    return placed(f"{alias or 'jnp'}.zeros({aval.shape!r}, {dtype})", aval, written)
