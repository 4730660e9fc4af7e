"""The four loops written as plain Python loops: what the primitives are compared with.

Nothing here binds a loop primitive. A body runs once for each step, on whatever JAX hands it, so
jit unrolls these loops and derivatives go through them step by step, in reverse too. One thing
they cannot do: `while_loop` asks Python for the truth of its condition, so the condition must be
concrete. That leaves out jit and vmap where it depends on the arguments; `map_by_hand` stands in
for vmap there.

The types of the results are a primitive's, weak types included: the carry goes into every step
with one type, and the last one out has the type that the body gives for that.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree

Pytree = Any

# Read by `checks.assert_loops_agree`: these loops run in Python and leave no primitive behind.
unrolls = True

# The Python type that a weakly typed array comes from, by the kind of its dtype.
_PYTHON_TYPES = {"i": int, "f": float, "c": complex}


class BodyTypes(NamedTuple):
    """The types of one step: of the carry that goes in, and of all that comes out."""

    carry_in: Pytree
    out: Pytree


def scan(
    f: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]],
    init: Pytree,
    xs: Pytree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Pytree, Pytree]:
    """Runs `f(carry, x)` for every row `x` of `xs`, and stacks what it gives beside the carry."""
    del unroll, _split_transpose  # they choose how a loop is compiled; this one is not
    xs = tree.map(as_array, xs)
    length = _scan_length(xs, length)
    types = _body_types(f, init, tree.map(_row_type, xs), carry_of=lambda out: out[0])
    carry_type, y_type = types.out
    carry = init
    rows = [None] * length
    for step in reversed(range(length)) if reverse else range(length):
        x = tree.map(lambda leaf, step=step: leaf[step], xs)
        carry, rows[step] = f(tree.map(as_type, carry, types.carry_in), x)
    ys = tree.map(lambda leaf_type, *leaves: _stack(leaves, leaf_type), y_type, *rows)
    return tree.map(as_type, carry, carry_type), ys


def while_loop(
    cond_fun: Callable[[Pytree], Any],
    body_fun: Callable[[Pytree], Pytree],
    init_val: Pytree,
) -> Pytree:
    """Runs `body_fun(carry)` as long as `cond_fun(carry)` is true."""
    types = _body_types(body_fun, init_val)
    carry = tree.map(as_type, init_val, types.carry_in)
    while cond_fun(carry):
        carry = tree.map(as_type, body_fun(carry), types.carry_in)
    return tree.map(as_type, carry, types.out)


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Pytree], Pytree],
    init_val: Pytree,
    *,
    unroll: int | bool | None = None,
) -> Pytree:
    """Runs `body_fun(i, carry)` for `i` from `lower` up to but not including `upper`.

    The index has the type of the bounds, and Python's where both are Python's.
    """
    del unroll
    index_type = _index_type(lower, upper)
    types = _body_types(lambda carry, i: body_fun(i, carry), init_val, index_type)
    carry = init_val
    for i in range(int(lower), int(upper)):
        index = as_type(as_array(i), index_type)
        carry = body_fun(index, tree.map(as_type, carry, types.carry_in))
    return tree.map(as_type, carry, types.out)


def map(f: Callable[[Pytree], Pytree], xs: Pytree, *, batch_size: int | None = None) -> Pytree:
    """Applies `f` to every row of `xs`, and stacks the results."""
    del batch_size  # rows that are computed together come out the same
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def map_by_hand(fun: Callable[..., Pytree], *batches: Pytree) -> Pytree:
    """What `jax.vmap(fun)(*batches)` means: `fun` on every row of the arguments, stacked."""
    size = _scan_length(batches, None)
    rows = [fun(*tree.map(lambda leaf, row=row: leaf[row], batches)) for row in range(size)]
    return tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def as_array(leaf: Any) -> jax.Array:
    """The leaf as an array; a Python number becomes a weakly typed one."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def as_type(leaf: Any, leaf_type: Any) -> jax.Array:
    """The leaf with the dtype and the weak type of `leaf_type`, if it does not have them yet."""
    leaf = as_array(leaf)
    old, dtype, weak_type = jax.typeof(leaf), leaf_type.dtype, leaf_type.weak_type
    if (old.dtype, old.weak_type) == (dtype, weak_type):
        return leaf
    # No function of jax.numpy makes a strong type weak; the primitive under astype does.
    return jax.lax.convert_element_type_p.bind(
        leaf, new_dtype=dtype, weak_type=weak_type, sharding=None
    )


def _body_types(
    body: Callable[..., Pytree],
    init: Pytree,
    *other_types: Pytree,
    carry_of: Callable[[Pytree], Pytree] = lambda out: out,
) -> BodyTypes:
    """The types of a step, once each weakly typed init has the dtype that the body gives it."""
    carry_in = tree.map(lambda leaf: _type(as_array(leaf)), init)
    while True:
        # A function of its own each time: eval_shape remembers what it saw by function.
        fresh = functools.partial(body)
        out = jax.eval_shape(fresh, carry_in, *other_types)
        _check_structure(carry_in, carry_of(out))
        settled = tree.map(_promoted, carry_in, carry_of(out))
        if settled == carry_in:
            break
        carry_in = settled
    for before, after in zip(tree.leaves(carry_in), tree.leaves(carry_of(out)), strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            msg = f"this body turns a carry of type {before} into {after}"
            raise TypeError(msg)
    return BodyTypes(carry_in, out)


def _check_structure(before: Pytree, after: Pytree) -> None:
    if tree.structure(before) != tree.structure(after):
        msg = f"this body turns a carry {tree.structure(before)} into {tree.structure(after)}"
        raise TypeError(msg)


def _promoted(before: jax.ShapeDtypeStruct, after: Any) -> jax.ShapeDtypeStruct:
    """The type a carry goes in with: a weak one gives way where the dtypes differ."""
    if before.weak_type and before.dtype != after.dtype:
        dtype = jnp.result_type(_PYTHON_TYPES[before.dtype.kind], after.dtype)
        return jax.ShapeDtypeStruct(before.shape, dtype)
    return before


def _type(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _row_type(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    whole = _type(leaf)
    return jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype, weak_type=whole.weak_type)


def _index_type(lower: Any, upper: Any) -> jax.ShapeDtypeStruct:
    """The common type of the bounds; a Python int has none of its own beside an array."""
    bounds = [_type(as_array(bound)) for bound in (lower, upper)]
    strong = [bound for bound in bounds if not bound.weak_type]
    if len({bound.dtype for bound in strong}) > 1:
        msg = f"the bounds have different types: {bounds}"
        raise TypeError(msg)
    return (strong or bounds)[0]


def _scan_length(xs: Pytree, length: int | None) -> int:
    """The one number of rows that `xs` and `length` agree on."""
    lengths = {leaf.shape[0] for leaf in tree.leaves(xs)}
    if length is not None:
        lengths.add(length)
    if len(lengths) != 1:
        msg = f"xs and length give no single number of steps: {sorted(lengths)}"
        raise ValueError(msg)
    return lengths.pop()


def _stack(rows: tuple[Any, ...], row_type: Any) -> jax.Array:
    """The rows in one array; where there are none, an empty array of the same type."""
    if rows:
        return jnp.stack([as_type(row, row_type) for row in rows])
    empty = jax.lax.full((0, *row_type.shape), 0, row_type.dtype)
    return as_type(empty, row_type)
