"""Weakly typed inputs of a loop, promoted to what its body makes of them.

A carry that starts as a Python scalar has a weak type: the scalar may still become another dtype.
Where the body returns another type than it got, the initial value is converted to the dtype that
promotion gives for the two, and the loop traces its body again.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import AbstractValue, ShapedArray

from checks.errors import CarryTypeError
from checks.matching import avals_match

# The Python type that stands for a weak type in `jax.numpy.result_type`. A weak type has a kind
# only: its precision has no say in a promotion.
_WEAK_SCALARS = ((jnp.integer, int), (jnp.floating, float), (jnp.complexfloating, complex))


def promote_weak_dtype(in_aval: AbstractValue, out_aval: AbstractValue) -> np.dtype | None:
    """The dtype to which a loop must convert a carry leaf before it traces its body again.

    It is what JAX's promotion makes of the weak input and of the output's dtype as a strong one,
    also where that is not yet the output's dtype and where the shapes differ: the second trace
    decides whether the carry fits.

    Args:
      in_aval: aval of the leaf that goes in.
      out_aval: aval of the leaf that comes out.

    Returns:
      The dtype, or `None` where there is nothing to convert: the input is strongly typed, or
      matches the output, or promotion does not know the two (a PRNG key for an integer, say).

    Example:
      >>> import jax
      >>> promote_weak_dtype(jax.typeof(0), jax.typeof(jnp.bfloat16(1)))
      dtype(bfloat16)
      >>> promote_weak_dtype(jax.typeof(jnp.int32(0)), jax.typeof(jnp.bfloat16(1))) is None
      True
    """
    if not (isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray)):
        return None
    if not in_aval.weak_type or avals_match(in_aval, out_aval):
        return None
    scalar = next((s for kind, s in _WEAK_SCALARS if jnp.issubdtype(in_aval.dtype, kind)), bool)
    try:
        return jnp.result_type(scalar, out_aval.normalize())
    except ValueError:  # no promotion path: the carry check says what differs
        return None


def promote_weak_avals(
    in_avals: Sequence[AbstractValue],
    out_avals: Sequence[AbstractValue],
    began_weak: Sequence[bool] | None = None,
) -> list[ShapedArray | None]:
    """The types to which a loop must convert its carry before it traces its body again.

    Args:
      in_avals: avals of the carry's leaves.
      out_avals: avals of the leaves that the body returns for them, as many.
      began_weak: for each leaf whether the caller gave it as a weakly typed value. Such a leaf,
        made strong by an earlier pass, is promoted further where its output has moved up since,
        because another leaf that feeds it was promoted too.

    Returns:
      For each leaf the aval to convert it to, which is strongly typed and else differs from the
      leaf's in the dtype alone; `None` where the leaf stays as it is.

    Example:
      >>> import jax
      >>> promote_weak_avals([jax.typeof(0), jax.typeof(1.0)], [jax.typeof(0.5), jax.typeof(2.0)])
      [ShapedArray(float32[]), None]
    """
    if began_weak is None:
        began_weak = [False] * len(in_avals)
    return [_promoted(*leaf) for leaf in zip(in_avals, out_avals, began_weak, strict=True)]


def _promoted(
    in_aval: AbstractValue, out_aval: AbstractValue, began_weak: bool
) -> ShapedArray | None:
    if not isinstance(in_aval, ShapedArray):
        return None
    if began_weak and not in_aval.weak_type:
        dtype = _promoted_further(in_aval, out_aval)
    else:
        dtype = promote_weak_dtype(in_aval, out_aval)
    return None if dtype is None else in_aval.update(dtype=dtype, weak_type=False)


def _promoted_further(in_aval: ShapedArray, out_aval: AbstractValue) -> np.dtype | None:
    """The output's dtype, if that is above the input's in the order of promotion."""
    if not isinstance(out_aval, ShapedArray) or in_aval.dtype == out_aval.dtype:
        return None
    try:
        both = jnp.promote_types(in_aval.dtype, out_aval.dtype)
    except ValueError:  # strict promotion mode knows no order
        return None
    return both if both == out_aval.dtype else None


def explain_passes(error: CarryTypeError, passes: Sequence[Sequence[AbstractValue]]) -> None:
    """Add a note to an error with the carry's types in each pass, if there was more than one.

    Args:
      error: the error that the last pass ended with.
      passes: for each pass the types of the carry's leaves that went in.

    Example:
      >>> import jax
      >>> from checks import CarryTypeError
      >>> error = CarryTypeError("they differ", name="scan body", mismatches=())
      >>> explain_passes(error, [[jax.typeof(0)], [jax.typeof(jnp.float32(0))]])
      >>> print(error.__notes__[0])
      The carry's types, promoted from pass to pass:
        pass 1: int32[] (weak)
        pass 2: float32[]
    """
    if len(passes) < 2:
        return
    rows = [
        f"  pass {number}: {', '.join(map(_type_with_weakness, avals))}"
        for number, avals in enumerate(passes, start=1)
    ]
    error.add_note("\n".join(["The carry's types, promoted from pass to pass:", *rows]))


def _type_with_weakness(aval: AbstractValue) -> str:
    weak = " (weak)" if getattr(aval, "weak_type", False) else ""
    return f"{aval.str_short()}{weak}"
