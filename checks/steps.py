"""How many steps a loop will run, as far as its arguments say, and a `fori_loop`'s road."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import AbstractValue, ShapedArray
from jax.export import is_symbolic_dim
from jax.tree_util import keystr, tree_flatten_with_path

from checks.tracing import as_aval


def scan_steps(xs: Any, length: Any) -> Any:
    """The number of steps of a scan over `xs`, a pytree of types or of arrays.

    Raises:
      ValueError: the leading axes disagree with one another or with `length`, or nothing says how
        many steps there are.
    """
    leaves = [(keystr(path), as_aval(x)) for path, x in tree_flatten_with_path(xs)[0]]
    for path, aval in leaves:
        if not getattr(aval, "shape", ()):
            raise ValueError(f"scan got value with no leading axis to scan over: xs{path}.")
    sizes = [aval.shape[0] for _, aval in leaves]  # pyrefly: ignore[missing-attribute]
    if length is None and not sizes:
        raise ValueError("scan got no values to scan over and `length` not provided.")
    if length is None and any(size != sizes[0] for size in sizes):
        listed = ", ".join(str(size) for size in sizes)
        raise ValueError(f"scan got values with different leading axis sizes: {listed}.")
    if length is None:
        return sizes[0]
    length = length if is_symbolic_dim(length) else operator.index(length)
    if any(size != length for size in sizes):
        raise ValueError(
            f"scan got `length` argument of {length} which disagrees with "
            f"leading axis sizes {sizes}."
        )
    return length


def first_index(lower: Any) -> int | None:
    """The index that a `fori_loop` starts from, if the bound's value is known.

    Example:
      >>> first_index(jnp.int32(2)), first_index(jax.ShapeDtypeStruct((), jnp.int32))
      (2, None)
    """
    try:
        return operator.index(lower)
    except TypeError:  # traced, or a type
        return None


class Road(NamedTuple):
    """What a `fori_loop` becomes, and why.

    `steps` is the number of steps, None where it is known only while running; `index` is the type
    that the body gets its index in.
    """

    primitive: str
    reason: str
    steps: Any
    index: AbstractValue


def fori_road(lower: Any, upper: Any) -> Road:
    """The road that a `fori_loop` takes from `lower` to `upper`, values or types.

    Raises:
      TypeError: a bound is no integer scalar.

    Example:
      >>> road = fori_road(0, 10)
      >>> road.primitive, road.steps
      ('scan', 10)
    """
    first, last = _Bound("lower", lower), _Bound("upper", upper)
    index = _index_type(first, last)
    unknown = [bound for bound in (first, last) if bound.value is None]
    if unknown:
        which = " and ".join(f"`{bound.name}` is {bound.why_unknown}" for bound in unknown)
        reason = f"{which}, so the number of steps is known only while running"
        return Road("while", reason, None, index)
    steps = last.value - first.value
    if not is_symbolic_dim(steps):
        steps = max(steps, 0)
        return Road("scan", "both bounds are known while tracing", steps, index)
    return Road("scan", "both bounds are integers or symbolic dimensions", steps, index)


class _Bound:
    """One bound: its type, and its value if that is known while tracing."""

    def __init__(self, name: str, given: Any) -> None:
        self.name, self.why_unknown = name, ""
        self.value: Any = None
        if is_symbolic_dim(given):
            self.aval, self.value = as_aval(0), given
            return
        try:
            self.aval = as_aval(given)
        except TypeError:
            raise _not_an_integer(name, type(given).__name__) from None
        shape, dtype = (
            getattr(self.aval, "shape", ()),
            getattr(self.aval, "dtype", np.dtype(object)),
        )
        is_traced = isinstance(given, jax.core.Tracer)
        counts_in_floats = is_traced and jnp.issubdtype(dtype, np.floating)
        if shape or not (jnp.issubdtype(dtype, np.integer) or counts_in_floats):
            raise _not_an_integer(name, self.aval.str_short())
        if isinstance(given, (jax.ShapeDtypeStruct, AbstractValue)):
            self.why_unknown = "a type without a value"
            return
        try:
            self.value = operator.index(given)
        except (TypeError, jax.errors.ConcretizationTypeError):
            self.why_unknown = "traced"


def _not_an_integer(name: str, type_name: str) -> TypeError:
    advice = ""
    if type_name.startswith(("float", "bfloat")):
        advice = " Round it first, for instance `round(total / step)`: it is never truncated."
    return TypeError(f"fori_loop: {name} must be an integer scalar, got {type_name}.{advice}")


def _index_type(first: _Bound, last: _Bound) -> AbstractValue:
    """The type of the bound that has one of its own; a weakly typed integer takes it."""
    lower, upper = first.aval, last.aval
    if isinstance(lower, ShapedArray) and isinstance(upper, ShapedArray):
        if lower.dtype == upper.dtype:
            return lower if lower.weak_type == upper.weak_type else lower.update(weak_type=False)
        weak, strong = (lower, upper) if lower.weak_type else (upper, lower)
        if weak.weak_type and not strong.weak_type:
            return strong
        raise TypeError(
            "lower and upper arguments to fori_loop must have equal types, got "
            f"{lower.dtype.name} and {upper.dtype.name}. Give both the same integer type."
        )
    return lower
