"""An initial carry of zeros, as an expression for given types."""

from typing import Any

from jax.core import ShapedArray

from checks.leaf_problem import dtype_code


def types_code(tree: Any, alias: str | None) -> str | None:
    """An expression that makes zeros of the given types.

    Args:
      tree: a pytree of avals.
      alias: the name of jax.numpy.

    Returns:
      The expression; None where there is no plain one, for a typed key or a class of the user's.

    Example:
      >>> import jax
      >>> types_code({"n": jax.typeof(1), "m": None}, "jnp")
      "{'n': jnp.zeros((), jnp.int32), 'm': None}"
    """
    if tree is None:
        return "None"
    if isinstance(tree, ShapedArray):
        return _array_code(tree, alias)
    if type(tree) not in (dict, list, tuple):
        return None
    items = list(tree.values()) if type(tree) is dict else list(tree)
    codes = [types_code(item, alias) for item in items]
    known = [code for code in codes if code is not None]
    if len(known) < len(items):
        return None
    if type(tree) is dict:
        return "{" + ", ".join(f"{k!r}: {code}" for k, code in zip(tree, known)) + "}"
    around = "[{}]" if type(tree) is list else "({},)" if len(known) == 1 else "({})"
    return around.format(", ".join(known))


def _array_code(aval: ShapedArray, alias: str | None) -> str | None:
    try:
        return f"{alias or 'jnp'}.zeros({aval.shape!r}, {dtype_code(aval.dtype, alias)})"
    except TypeError:  # a typed key
        return None
