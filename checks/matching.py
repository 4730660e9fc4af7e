"""When two types are the same to a loop, and what differs when they are not."""

from typing import Literal

from jax.core import AbstractValue, ShapedArray
from jax.sharding import AxisType

from checks.errors import MismatchKind

Aspect = Literal["dtype", "shape", "varying axes", "memory space", "sharding"]


def avals_match(first: AbstractValue, second: AbstractValue) -> bool:
    """Whether a loop may use one type for the other: all but the weak type must agree.

    Args:
      first: aval of one value.
      second: aval of the other.

    Returns:
      True where dtype, shape, varying axes, memory space and (on a mesh with an explicit axis)
      sharding agree; avals that are no arrays must be equal.

    Example:
      >>> import jax
      >>> avals_match(jax.typeof(1.0), jax.typeof(jax.numpy.float32(1.0)))
      True
      >>> avals_match(jax.typeof(1), jax.typeof(1.0))
      False
    """
    first, second = first.normalize(), second.normalize()  # drops the weak type
    if first == second:
        return True
    if isinstance(first, ShapedArray) and isinstance(second, ShapedArray):
        return not differing_aspects(first, second)
    return False


def differing_aspects(first: ShapedArray, second: ShapedArray) -> list[Aspect]:
    """What differs between the types of two arrays, in the order in which messages name it."""
    # Symbolic dimensions that might be equal compare as unequal, so `==` on shapes never raises.
    differs: dict[Aspect, bool] = {
        "dtype": first.dtype != second.dtype,
        "shape": first.shape != second.shape,
        "varying axes": first.mat != second.mat,
        "memory space": first.memory_space != second.memory_space,
        "sharding": _shardings_differ(first, second),
    }
    return [aspect for aspect, different in differs.items() if different]


def _shardings_differ(first: ShapedArray, second: ShapedArray) -> bool:
    # A sharding is part of a type on explicit axes only, and a type that has met no mesh yet
    # fits any: both as in JAX's own comparison.
    meshes = first.sharding.mesh, second.sharding.mesh
    if any(mesh.empty for mesh in meshes):
        return False
    if not any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        return False
    return first.sharding != second.sharding


def mismatch_kind(in_aval: AbstractValue, out_aval: AbstractValue) -> MismatchKind:
    """One word for what differs between two types that do not match."""
    aspects = _aspects(in_aval, out_aval)
    if "dtype" in aspects and "shape" in aspects:
        return "shape and dtype"
    return aspects[0] if aspects else "other"


_PHRASES: dict[Aspect, str] = {
    "dtype": "the dtypes do not match",
    "shape": "the shapes do not match",
    "varying axes": "the manual axis types do not match",
    "memory space": "the memory spaces do not match",
    "sharding": "the shardings do not match",
}


def mismatch_text(in_aval: AbstractValue, out_aval: AbstractValue) -> str:
    """The end of the sentence about two types: `, so the shapes do not match`, or nothing."""
    phrases = [_PHRASES[aspect] for aspect in _aspects(in_aval, out_aval)]
    if not phrases:
        return ""
    *before, last = phrases
    return ", so " + (", ".join(before) + ", and " if before else "") + last


def _aspects(in_aval: AbstractValue, out_aval: AbstractValue) -> list[Aspect]:
    if isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray):
        return differing_aspects(in_aval, out_aval)
    return []
