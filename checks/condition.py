"""What the condition of a while loop must return."""

from collections.abc import Sequence

import numpy as np
from jax.core import AbstractValue, ShapedArray
from jax.tree_util import PyTreeDef, treedef_is_leaf


def check_predicate(name: str, tree: PyTreeDef, avals: Sequence[AbstractValue]) -> None:
    """Check that the condition of a while loop returns a boolean scalar.

    Args:
      name: what the message calls it, such as `cond_fun`.
      tree: structure of what it returns.
      avals: the types of its leaves.

    Raises:
      TypeError: it returns something else.

    Example:
      >>> import jax
      >>> check_predicate("cond_fun", jax.tree.structure(0), [jax.typeof(True)])
      >>> check_predicate("cond_fun", jax.tree.structure(0), [jax.typeof(1)])  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      TypeError: cond_fun must return a boolean scalar, but got output type(s) ...
    """
    must = f"{name} must return a boolean scalar, but got "
    if not treedef_is_leaf(tree) or len(avals) != 1:
        raise TypeError(f"{must}pytree {tree}.")
    (aval,) = avals
    if not isinstance(aval, ShapedArray) or aval.shape or aval.dtype != np.bool_:
        raise TypeError(f"{must}output type(s) [ShapedArray({aval.str_short()})].")
