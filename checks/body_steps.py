"""A loop body run step by step, as a loop would run it, each step against its contract."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from checks.carry import _check_carry_type
from checks.errors import CarryMismatch, CarryTypeError
from checks.passes import BodyOut, CarryPasses
from checks.python_loops import as_type

BODY_NAMES = {"scan": "scan body", "fori": "scan body", "while": "while_loop body"}


class Checks(NamedTuple):
    """Which promises of a body are checked; see `assert_carry_contract`."""

    loop: str
    loops: Any
    steps: int
    weak_types: bool
    finite: bool
    jit: bool
    vmap: bool
    gradient: bool
    rtol: float


class Step(NamedTuple):
    """One step that was run: what went in and what came out."""

    index: Any
    carry: Any
    x: Any
    new_carry: Any
    y: Any


def as_step(body: Callable[..., Any], loop: str) -> Callable[..., Any]:
    """The body as `(index, carry, x) -> (carry, y)`."""

    def step(index: Any, carry: Any, x: Any) -> Any:
        if loop == "while":
            return body(carry), None
        if loop == "fori":
            return body(index, carry), None
        out = body(carry, x)
        if not isinstance(out, tuple | list) or len(out) != 2:
            raise TypeError(f"scan body output must be a pair, got {out}.")
        return tuple(out)

    return step


def length_of(xs: Any) -> int:
    """How many rows there are."""
    lengths = {np.shape(leaf)[0] for leaf in jax.tree.leaves(xs)}
    if len(lengths) != 1:
        raise ValueError(f"the leaves of xs have different lengths: {sorted(lengths)}")
    return lengths.pop()


def settle(
    body: Callable[..., Any], step: Callable[..., Any], carry: Any, row: Any, wanted: Checks
) -> Any:
    """The initial carry as a loop would run it: of the types at which promotion settles.

    Raises:
      CarryTypeError: the body returns another type than it takes.
    """
    leaves, treedef = jax.tree.flatten(carry)
    avals = [jax.typeof(jnp.asarray(leaf)) for leaf in leaves]
    name = BODY_NAMES[wanted.loop]
    passes = CarryPasses(name, body, treedef, avals)
    index = _struct(jax.typeof(jnp.asarray(0)))
    while True:
        inputs = jax.tree.unflatten(treedef, [_struct(aval) for aval in passes.avals])
        # A function of its own each time: eval_shape remembers what it saw by function.
        out, _ = jax.eval_shape(functools.partial(step), index, inputs, row)
        out_leaves, out_tree = jax.tree.flatten(out)
        out_avals = [_aval(leaf) for leaf in out_leaves]
        changes = passes.changes_after(BodyOut(out_tree, out_avals))
        if wanted.weak_types:
            _check_weak_types(name, jax.tree.unflatten(treedef, avals), out_avals)
        if not changes:
            break
        passes.convert(changes)
    arrays = [as_type(leaf, aval) for leaf, aval in zip(leaves, passes.avals, strict=True)]
    return jax.tree.unflatten(treedef, arrays)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def row_of(xs: Any) -> Any:
    """The types of one x."""
    return jax.tree.map(lambda leaf: _struct(_shorter(jax.typeof(jnp.asarray(leaf)))), xs)


def _shorter(aval: Any) -> ShapedArray:
    return ShapedArray(aval.shape[1:], aval.dtype, weak_type=aval.weak_type)


def _aval(struct: Any) -> ShapedArray:
    return ShapedArray(struct.shape, struct.dtype, weak_type=struct.weak_type)


def _check_weak_types(name: str, in_carry: Any, out_avals: list[ShapedArray]) -> None:
    """Raise where a leaf's weak type changes, which the loops' own check lets pass."""
    leaves = jax.tree_util.tree_leaves_with_path(in_carry)
    differing = [
        (path, before, after)
        for (path, before), after in zip(leaves, out_avals, strict=True)
        if before.weak_type != after.weak_type
    ]
    if not differing:
        return
    words = {True: "weakly", False: "strongly"}
    sentences = [
        f"carry{jax.tree_util.keystr(path)} goes in {words[before.weak_type]} typed and comes out "
        f"{words[after.weak_type]} typed"
        for path, before, after in differing
    ]
    raise CarryTypeError(
        f"{name} function changes weak types: {'; '.join(sentences)}.",
        name=name,
        mismatches=tuple(
            CarryMismatch(path, f"carry{jax.tree_util.keystr(path)}", before, after, "other")
            for path, before, after in differing
        ),
    )


def run(
    body: Callable[..., Any],
    step: Callable[..., Any],
    carry: Any,
    xs: Any,
    length: int,
    wanted: Checks,
) -> Iterator[Step]:
    """The steps, each checked against the contract as it is run."""
    treedef = jax.tree.structure(carry)
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves(carry)]
    for position in range(length):
        x = jax.tree.map(lambda leaf, i=position: jnp.asarray(leaf)[i], xs)
        index = jnp.asarray(position)
        out, y = jax.tree.map(jnp.asarray, step(index, carry, x))
        out_leaves, out_tree = jax.tree.flatten(out)
        in_carry = jax.tree.unflatten(treedef, avals)
        out_avals = [jax.typeof(leaf) for leaf in out_leaves]
        _check_carry_type(BODY_NAMES[wanted.loop], body, in_carry, out_tree, out_avals)
        yield Step(index, carry, x, out, y)
        kept = [as_type(leaf, aval) for leaf, aval in zip(out_leaves, avals, strict=True)]
        carry = jax.tree.unflatten(treedef, kept)
