"""Strategies for pytrees: carries of any structure, and values for a structure that is given."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.core import ShapedArray

from checks.strategies.leaves import array_of
from checks.strategies.leaves import leaves as all_leaves
from checks.strategies.types import python_type_of
from checks.strategies.validation import check_choices, check_size, check_strategy

CONTAINERS = ("tuple", "list", "dict", "namedtuple", "dataclass")


class Pair(NamedTuple):
    """A named tuple to put carries into.

    Example:
      >>> jax.tree.leaves(Pair(1, 2))
      [1, 2]
    """

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    """A registered dataclass to put carries into; `label` is metadata, not a leaf.

    Example:
      >>> jax.tree.leaves(Record(1, 2))
      [1, 2]
    """

    value: Any
    state: Any
    label: str = dataclasses.field(metadata={"static": True}, default="")


@st.composite
def pytrees(
    draw: st.DrawFn,
    leaves: st.SearchStrategy[Any] | None = None,
    *,
    containers: Any = CONTAINERS,
    max_leaves: int = 5,
) -> Any:
    """Pytrees over leaves: nested containers, empty ones and None among them.

    Shrinks towards a single leaf.

    Args:
      draw: given by Hypothesis.
      leaves: a strategy of leaves; `leaves()` by default.
      containers: some of `tuple`, `list`, `dict`, `namedtuple` (a `Pair`) and `dataclass` (a
        `Record`).
      max_leaves: about how many leaves a tree has at most.

    Returns:
      A strategy of pytrees.

    Raises:
      hypothesis.errors.InvalidArgument: a container is unknown, `leaves` is no strategy, or
        `max_leaves` is not positive.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(pytrees(), lambda tree: isinstance(tree, dict) and tree)
      {'a': Array(0., dtype=float32)}
    """
    check_strategy(leaves, "leaves")
    check_choices(containers, "containers", CONTAINERS)
    check_size(max_leaves, "max_leaves", minimum=1)
    bottom = st.one_of(all_leaves() if leaves is None else leaves, st.none())
    some = tuple(containers)
    return draw(st.recursive(bottom, lambda inner: _filled(some, inner), max_leaves=max_leaves))


def _filled(names: tuple[str, ...], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Containers of these kinds with pytrees inside."""
    few = st.lists(inner, max_size=3)
    filled = {
        "tuple": few.map(tuple),
        "list": few,
        "dict": few.map(lambda values: dict(zip("abc", values, strict=False))),
        "namedtuple": st.builds(Pair, inner, inner),
        "dataclass": st.builds(Record, inner, inner),
    }
    return st.one_of([filled[name] for name in names])


def carries(
    leaves: st.SearchStrategy[Any] | None = None,
    *,
    containers: Any = CONTAINERS,
    max_leaves: int = 5,
) -> st.SearchStrategy[Any]:
    """Carries for a body that must work for any: see `pytrees`, whose arguments it has.

    Shrinks towards a single leaf.

    Args:
      leaves: a strategy of leaves; `leaves()` by default.
      containers: the kinds of containers.
      max_leaves: about how many leaves a carry has at most.

    Returns:
      A strategy of pytrees.

    Raises:
      hypothesis.errors.InvalidArgument: as `pytrees` does.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(carries(), lambda carry: True)
      Array(0., dtype=float32)
    """
    return pytrees(leaves, containers=containers, max_leaves=max_leaves)


@st.composite
def inits(draw: st.DrawFn, like: Any, *, elements: st.SearchStrategy[Any] | None = None) -> Any:
    """Initial carries for a given structure: other values of the same types.

    Shrinks towards zeros.

    Args:
      draw: given by Hypothesis.
      like: a pytree of arrays, Python numbers, `jax.ShapeDtypeStruct` or avals. A number of Python
        stays one.
      elements: a strategy of numbers for all leaves, as for `arrays`.

    Returns:
      A strategy of pytrees with the structure of `like`.

    Raises:
      hypothesis.errors.InvalidArgument: `elements` is no strategy.
      TypeError: a leaf of `like` is nothing that a carry may have.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(inits({"n": 3, "x": jax.ShapeDtypeStruct((2,), "float32")}), bool)
      {'n': 0, 'x': Array([0., 0.], dtype=float32)}
    """
    check_strategy(elements, "elements")

    def one(leaf: Any) -> Any:
        value = array_of(draw, type_of(leaf), elements)
        return type(leaf)(value) if isinstance(leaf, bool | int | float | complex) else value

    return jax.tree.map(one, like)


@st.composite
def xs(
    draw: st.DrawFn,
    like: Any,
    *,
    lengths: st.SearchStrategy[int] | None = None,
    elements: st.SearchStrategy[Any] | None = None,
) -> Any:
    """What a scan runs over, for a given structure of one row.

    Shrinks towards no rows, and then towards zeros.

    Args:
      draw: given by Hypothesis.
      like: a pytree of the types of one row, as for `inits`.
      lengths: a strategy of the number of rows; from none to three by default.
      elements: a strategy of numbers for all leaves, as for `arrays`.

    Returns:
      A strategy of pytrees with the structure of `like`, whose leaves have one axis more in front.

    Raises:
      hypothesis.errors.InvalidArgument: an argument is no strategy.
      TypeError: a leaf of `like` is nothing that a scan may run over.

    Example:
      >>> import hypothesis
      >>> hypothesis.find(xs(1.0), lambda rows: len(rows) == 2)
      Array([0., 0.], dtype=float32, weak_type=True)
    """
    check_strategy(lengths, "lengths")
    check_strategy(elements, "elements")
    length = draw(st.integers(0, 3) if lengths is None else lengths)
    check_size(length, "each of lengths")

    def one(leaf: Any) -> Any:
        row = type_of(leaf)
        aval = ShapedArray((length, *row.shape), row.dtype, weak_type=row.weak_type)
        return array_of(draw, aval, elements)

    return jax.tree.map(one, like)


def type_of(leaf: Any) -> ShapedArray:
    """The type of an array, a number, or of what only describes one."""
    if isinstance(leaf, jax.ShapeDtypeStruct | ShapedArray):
        weak = bool(leaf.weak_type) and python_type_of(leaf.dtype) is not None
        return ShapedArray(leaf.shape, leaf.dtype, weak_type=weak)
    aval = jax.typeof(leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf))
    return ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)
