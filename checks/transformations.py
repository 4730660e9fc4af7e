"""Transformations as data, to compare loops under: of a function, and of a loop that Python runs.

Each takes a function of arrays and gives one of the same arrays. What a transformation is linear
in, tangents and cotangents, is fixed: any two implementations get the same.

A loop that Python runs needs values to know when to stop, so there are transformations that it
cannot be put through. For those a transformation knows what it means: `vmap` is the function run
on one row after the other, `jit` is the function itself.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checks.comparison import is_float
from checks.python_loops import map_by_hand

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Axes = tuple[int | None, ...]


def _as_they_are(args: Arguments) -> Arguments:
    return args


@dataclasses.dataclass(frozen=True)
class Transformation:
    """A way to transform a function.

    Args:
      name: what messages call it.
      apply: the transformation.
      by_hand: what it means, for a function that needs the values of its arguments.
      prepare: what becomes of the arguments first; `vmap` makes lanes of them.
      weak_types: whether weak types of the results are determined, so that any two implementations
        must agree in them, and so must one beside Python's.
    """

    name: str
    apply: Callable[[Function], Function]
    by_hand: Callable[[Function], Function]
    prepare: Callable[[Arguments], Arguments] = _as_they_are
    weak_types: bool = True
    weak_types_by_hand: bool = True

    def __repr__(self) -> str:
        return self.name


def _unchanged(fun: Function) -> Function:
    return fun


def eager() -> Transformation:
    """The function itself.

    Example:
      >>> eager().apply(abs)(-1)
      1
    """
    return Transformation("eager", _unchanged, _unchanged)


def jit() -> Transformation:
    """`jax.jit`: the loop is part of a larger program.

    Example:
      >>> jit().apply(jnp.negative)(1)
      Array(-1, dtype=int32, weak_type=True)
    """
    return Transformation("jit", jax.jit, _unchanged)


def disable_jit() -> Transformation:
    """`jax.disable_jit()`: everything runs step by step, in Python.

    Example:
      >>> print(disable_jit().apply(lambda x: jax.jit(lambda y: 2 if y > 0 else 3)(x))(1))
      2
    """

    def apply(fun: Function) -> Function:
        def step_by_step(*args: Any) -> Any:
            with jax.disable_jit():
                return fun(*args)

        return step_by_step

    return Transformation("disable_jit", apply, _unchanged)


def vmap(in_axes: Axes, *, size: int = 3) -> Transformation:
    """`jax.vmap` over lanes made of the arguments.

    The first lane is the argument itself. The others have smaller numbers, and other keys; booleans
    are the same in all.

    Args:
      in_axes: the axis to batch each argument along, None for an argument that all lanes share;
        not None for all of them.
      size: how many lanes, at least one.

    Raises:
      ValueError: no argument is batched.

    Example:
      >>> lanes = vmap((0, None), size=2)
      >>> lanes.apply(lambda x, y: x + y)(*lanes.prepare((jnp.float32(8), jnp.float32(1))))
      Array([9. , 6.6], dtype=float32)
    """
    if all(axis is None for axis in in_axes):
        raise ValueError(f"vmap needs an argument to batch, got in_axes={in_axes}")

    def prepare(args: Arguments) -> Arguments:
        pairs = zip(args, in_axes, strict=True)
        return tuple(a if axis is None else _lanes(a, axis, size) for a, axis in pairs)

    def by_hand(fun: Function) -> Function:
        return lambda *lanes: _each_lane(fun, lanes, in_axes)

    return Transformation(
        f"vmap(in_axes={in_axes})", lambda fun: jax.vmap(fun, in_axes), by_hand, prepare
    )


def _lanes(arg: Any, axis: int, size: int) -> Any:
    return jax.tree.map(lambda x: jnp.stack([_lane(x, n) for n in range(size)], axis), arg)


def _lane(x: Any, number: int) -> Any:
    x = jnp.asarray(x)
    if number == 0 or x.dtype == bool:
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        folded = [jax.random.fold_in(key, number) for key in x.reshape(-1)]
        return jnp.stack(folded).reshape(x.shape)
    return x * jnp.asarray(0.7**number, x.dtype) if is_float(x) else x // (number + 1)


def _each_lane(fun: Function, lanes: Arguments, in_axes: Axes) -> Any:
    front = [
        jax.tree.map(lambda x, axis=axis: jnp.moveaxis(x, axis, 0), lane)
        for lane, axis in zip(lanes, in_axes, strict=True)
        if axis is not None
    ]

    def one_lane(*rows: Any) -> Any:
        rest = iter(rows)
        pairs = zip(lanes, in_axes, strict=True)
        return fun(*[lane if axis is None else next(rest) for lane, axis in pairs])

    return map_by_hand(one_lane, *front)


def jvp() -> Transformation:
    """`jax.jvp` in all floats that are arguments: the values and the tangents.

    Example:
      >>> print(jvp().apply(lambda x: x * x)(jnp.float32(3)))
      (Array(9., dtype=float32), Array(9., dtype=float32))
    """
    return Transformation("jvp", _jvp, _jvp, weak_types_by_hand=False)


def _jvp(fun: Function) -> Function:
    def push(*args: Any) -> Any:
        inner, floats = of_floats(fun, args)
        return jax.jvp(inner, floats, tangents_of(floats))

    return push


def linearize() -> Transformation:
    """`jax.linearize` in all floats that are arguments: the values and the tangents.

    Example:
      >>> print(linearize().apply(lambda x: x * x)(jnp.float32(3)))
      (Array(9., dtype=float32), Array(9., dtype=float32))
    """

    def apply(fun: Function) -> Function:
        def push(*args: Any) -> Any:
            inner, floats = of_floats(fun, args)
            out, linear = jax.linearize(inner, *floats)
            return out, linear(*tangents_of(floats))

        return push

    return Transformation("linearize", apply, _jvp, weak_types_by_hand=False)


def vjp() -> Transformation:
    """`jax.vjp` in all floats that are arguments: the values and the cotangents.

    Example:
      >>> print(vjp().apply(lambda x: x * x)(jnp.float32(3)))
      (Array(9., dtype=float32), (Array(6., dtype=float32),))
    """

    def apply(fun: Function) -> Function:
        def pull_back(*args: Any) -> Any:
            inner, floats = of_floats(fun, args)
            out, pull = jax.vjp(inner, *floats)
            return out, pull(cotangents_of(out))

        return pull_back

    # A gradient has the type of what it is a gradient for. JAX's own rules do not always keep it.
    return Transformation("vjp", apply, apply, weak_types=False)


def checkpoint(policy: Callable[..., Any] | None = None, name: str = "") -> Transformation:
    """`jax.checkpoint`, which shows in a derivative taken of it.

    Args:
      policy: says what is kept; nothing by default.
      name: of the policy.

    Example:
      >>> print(compose(vjp(), checkpoint()).apply(lambda x: x * x)(jnp.float32(3)))
      (Array(9., dtype=float32), (Array(6., dtype=float32),))
    """
    return Transformation(
        f"checkpoint({name})", lambda fun: jax.checkpoint(fun, policy=policy), _unchanged
    )


def compose(outer: Transformation, inner: Transformation) -> Transformation:
    """One transformation of another.

    Example:
      >>> compose(jit(), jvp())
      jit of jvp
    """
    return Transformation(
        f"{outer} of {inner}",
        lambda fun: outer.apply(inner.apply(fun)),
        lambda fun: outer.by_hand(inner.by_hand(fun)),
        lambda args: outer.prepare(inner.prepare(args)),
        outer.weak_types and inner.weak_types,
        outer.weak_types_by_hand and inner.weak_types_by_hand,
    )


def standard(num_args: int) -> tuple[Transformation, ...]:
    """The transformations that `assert_loops_agree` applies unless told otherwise.

    Example:
      >>> standard(2)
      (eager, jit, vmap(in_axes=(0, 0)), jvp, vjp)
    """
    lanes = (vmap((0,) * num_args),) if num_args else ()
    return (eager(), jit(), *lanes, jvp(), vjp())


def of_floats(fun: Function, args: Arguments) -> tuple[Function, tuple[Any, ...]]:
    """A function of the float leaves of its arguments alone, and these leaves."""
    leaves, treedef = jax.tree.flatten(args)
    floating = [is_float(leaf) for leaf in leaves]

    def inner(*floats: Any) -> Any:
        rest = iter(floats)
        filled = [next(rest) if is_in else x for x, is_in in zip(leaves, floating, strict=True)]
        return jax.tree.map(jnp.asarray, fun(*jax.tree.unflatten(treedef, filled)))

    chosen = (x for x, is_in in zip(leaves, floating, strict=True) if is_in)
    return inner, tuple(map(jnp.asarray, chosen))


def tangents_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """A tangent for each float: numbers between 0.5 and 1.5 of its shape and dtype."""
    return tuple(_wave(x, np.cos) for x in values)


def cotangents_of(out: Any) -> Any:
    """A cotangent for each leaf, float0 for those that have no derivative."""

    def one(leaf: Any) -> Any:
        if not is_float(leaf):
            return np.zeros(leaf.shape, jax.dtypes.float0)
        return _wave(leaf, np.sin)

    return jax.tree.map(one, out)


def _wave(x: Any, wave: Callable[[Any], Any]) -> Any:
    return jnp.asarray(1.0 + 0.5 * wave(np.arange(x.size)).reshape(x.shape), x.dtype)
