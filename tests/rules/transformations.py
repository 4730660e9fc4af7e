"""The transformations under which a loop has to behave as its oracle does.

Each entry takes a function of float arrays and its arguments and returns a tree to compare: values
and, where the transformation is linear in something, that linear map applied to fixed vectors.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers.comparison import is_float

Function = Callable[..., Any]
Arguments = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Transformation:
    """A way to call a function, and what it asks of the loops inside."""

    name: str
    apply: Callable[[Function, Arguments], Any]
    # Transposes, so every loop inside needs a trip count known in advance.
    reverse: bool = False
    # Hides values from Python, so a Python loop that asks for one can't run.
    abstract: bool = False


def tangents_of(args: Arguments) -> Arguments:
    """A tangent for each argument: numbers between 0.5 and 1.5 of its shape and dtype."""

    def one(arg: Any) -> Any:
        wave = 1.0 + 0.5 * np.cos(np.arange(arg.size)).reshape(arg.shape)
        return jnp.asarray(wave, arg.dtype)

    return tuple(map(one, args))


def cotangents_of(out: Any) -> Any:
    """A cotangent for each output leaf, float0 for those that have no derivative."""

    def one(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return np.zeros(leaf.shape, jax.dtypes.float0)
        wave = 1.0 + 0.5 * np.sin(np.arange(leaf.size)).reshape(leaf.shape)
        return jnp.asarray(wave, leaf.dtype)

    return jax.tree.map(one, out)


def scalar_loss(fun: Function) -> Function:
    """The function followed by a smooth real scalar that depends on every float it returns."""

    def loss(*args: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(fun(*args)) if is_float(leaf)]
        return sum((_smooth_sum(leaf) for leaf in leaves), start=jnp.float32(0.0))

    return loss


def _smooth_sum(leaf: Any) -> Any:
    if jnp.iscomplexobj(leaf):
        return _smooth_sum(leaf.real) + 2.0 * _smooth_sum(leaf.imag)
    return jnp.sin(jnp.asarray(leaf).astype(jnp.float32)).sum()


def batched(args: Arguments, in_axes: tuple[int | None, ...]) -> Arguments:
    """Three lanes of each argument that `in_axes` batches, stacked along the axis named there."""

    def one(arg: Any, axis: int | None) -> Any:
        if axis is None:
            return arg
        return jnp.stack([arg, 0.8 * arg, 1.3 * arg], axis)

    return tuple(map(one, args, in_axes))


def all_argnums(args: Arguments) -> tuple[int, ...]:
    """Every position, so that each argument is differentiated."""
    return tuple(range(len(args)))


def every_axis(args: Arguments, axis: int | None) -> tuple[int | None, ...]:
    """The same axis for all arguments."""
    return (axis,) * len(args)


def only_axis(args: Arguments, which: int) -> tuple[int | None, ...]:
    """Only the argument at `which` (from the end if negative) is batched."""
    axes: list[int | None] = [None] * len(args)
    axes[which] = 0
    return tuple(axes)


def run_eager(fun: Function, args: Arguments) -> Any:
    """The call itself."""
    return fun(*args)


def run_jit(fun: Function, args: Arguments) -> Any:
    """Compiled as part of a larger function."""
    return jax.jit(fun)(*args)


def run_make_jaxpr(fun: Function, args: Arguments) -> Any:
    """Types only, from the jaxpr."""
    return [(a.shape, a.dtype, a.weak_type) for a in jax.make_jaxpr(fun)(*args).out_avals]


def run_eval_shape(fun: Function, args: Arguments) -> Any:
    """Types only, as a tree."""
    return jax.tree.map(lambda s: (s.shape, s.dtype, s.weak_type), jax.eval_shape(fun, *args))


def run_vmap(axes_of: Callable[[Arguments], tuple[int | None, ...]]) -> Any:
    """Three lanes, with the arguments batched as `axes_of` says."""

    def run(fun: Function, args: Arguments) -> Any:
        in_axes = axes_of(args)
        return jax.vmap(fun, in_axes)(*batched(args, in_axes))

    return run


def run_vmap_out_axis(fun: Function, args: Arguments) -> Any:
    """Three lanes, the mapped axis last in what comes out."""
    in_axes = every_axis(args, 0)
    lanes = lambda *a: [leaf for leaf in jax.tree.leaves(fun(*a)) if is_float(leaf)]
    return jax.vmap(lanes, in_axes, out_axes=-1)(*batched(args, in_axes))


def run_jvp(fun: Function, args: Arguments) -> Any:
    """Value and tangent, every argument perturbed."""
    return jax.jvp(fun, args, tangents_of(args))


def run_jvp_of_first(fun: Function, args: Arguments) -> Any:
    """Value and tangent, only the first argument perturbed."""
    first = lambda x: fun(x, *args[1:])
    return jax.jvp(first, args[:1], tangents_of(args)[:1])


def run_linearize(fun: Function, args: Arguments) -> Any:
    """Value, and the linear map applied twice."""
    out, linear = jax.linearize(fun, *args)
    tangents = tangents_of(args)
    return out, linear(*tangents), linear(*[2.0 * t for t in tangents])


def run_vjp(fun: Function, args: Arguments) -> Any:
    """Value and cotangents of every argument."""
    out, pull = jax.vjp(fun, *args)
    return out, pull(cotangents_of(out))


def run_value_and_grad(fun: Function, args: Arguments) -> Any:
    """A scalar and its gradient."""
    return jax.value_and_grad(scalar_loss(fun), all_argnums(args))(*args)


def run_grad_of_last(fun: Function, args: Arguments) -> Any:
    """The gradient for the last argument only."""
    return jax.grad(scalar_loss(fun), len(args) - 1)(*args)


def floats_only(fun: Function) -> Function:
    """The float leaves of what the function returns: Jacobians know no others."""
    return lambda *args: [leaf for leaf in jax.tree.leaves(fun(*args)) if is_float(leaf)]


def run_jacfwd(fun: Function, args: Arguments) -> Any:
    """The Jacobian, column by column."""
    return jax.jit(jax.jacfwd(floats_only(fun), all_argnums(args)))(*args)


def run_jacrev(fun: Function, args: Arguments) -> Any:
    """The Jacobian, row by row."""
    return jax.jit(jax.jacrev(scalar_pair(fun), all_argnums(args)))(*args)


def scalar_pair(fun: Function) -> Function:
    """A vector of two smooth scalars, so that a reverse Jacobian has rows and stays real."""
    loss = scalar_loss(fun)

    def pair(*args: Any) -> Any:
        value = loss(*args)
        return jnp.stack([value, value * value])

    return pair


def run_hessian(fun: Function, args: Arguments) -> Any:
    """Second derivatives of a scalar, forward over reverse."""
    return jax.jit(jax.hessian(scalar_loss(fun), all_argnums(args)))(*args)


def run_forward_hessian(fun: Function, args: Arguments) -> Any:
    """Second derivatives of a scalar for the first argument, forward over forward."""
    loss = scalar_loss(fun)
    first = lambda x: loss(x, *args[1:])
    return jax.jit(jax.jacfwd(jax.jacfwd(first)))(args[0])


def run_vmap_grad(fun: Function, args: Arguments) -> Any:
    """A gradient for each lane."""
    in_axes = every_axis(args, 0)
    gradient = jax.grad(scalar_loss(fun), all_argnums(args))
    return jax.jit(jax.vmap(gradient, in_axes))(*batched(args, in_axes))


def run_grad_vmap(fun: Function, args: Arguments) -> Any:
    """The gradient of a sum over lanes, the first argument shared by them."""
    in_axes = (None, *every_axis(args[1:], 0)) if len(args) > 1 else (0,)
    loss = lambda *a: jax.vmap(scalar_loss(fun), in_axes)(*a).sum()
    return jax.jit(jax.grad(loss, all_argnums(args)))(*batched(args, in_axes))


def run_jit_jvp_vmap(fun: Function, args: Arguments) -> Any:
    """Tangents of lanes, compiled."""
    lanes = batched(args, every_axis(args, 0))
    push = lambda a, t: jax.jvp(jax.vmap(fun), a, t)
    return jax.jit(push)(lanes, tangents_of(lanes))


def run_vmap_vmap(fun: Function, args: Arguments) -> Any:
    """Lanes of lanes, along different arguments where there are two."""
    inner, outer = only_axis(args, 0), only_axis(args, -1)
    lanes = batched(batched(args, inner), outer)
    return jax.vmap(jax.vmap(fun, inner), outer)(*lanes)


def run_jvp_grad(fun: Function, args: Arguments) -> Any:
    """The tangent of a gradient."""
    gradient = jax.grad(scalar_loss(fun), all_argnums(args))
    return jax.jit(partial(jax.jvp, gradient))(args, tangents_of(args))


def run_grad_jvp(fun: Function, args: Arguments) -> Any:
    """The gradient of a tangent."""
    loss = scalar_loss(fun)
    tangent = lambda *a: jax.jvp(loss, a, tangents_of(args))[1]
    return jax.jit(jax.grad(tangent, all_argnums(args)))(*args)


def run_grad_grad(fun: Function, args: Arguments) -> Any:
    """The gradient of a gradient's product with fixed vectors."""
    gradient = jax.grad(scalar_loss(fun), all_argnums(args))

    def product(*a: Any) -> Any:
        pairs = zip(gradient(*a), tangents_of(args), strict=True)
        return sum(((g * t).sum() for g, t in pairs), start=jnp.float32(0.0))

    return jax.jit(jax.grad(product, all_argnums(args)))(*args)


def run_checkpointed(fun: Function, args: Arguments) -> Any:
    """The gradient with the whole loop recomputed in the backward pass."""
    loss = scalar_loss(jax.checkpoint(fun))
    return jax.jit(jax.grad(loss, all_argnums(args)))(*args)


FIRST = [
    Transformation("eager", run_eager),
    Transformation("jit", run_jit, abstract=True),
    Transformation("vmap", run_vmap(partial(every_axis, axis=0)), abstract=True),
    Transformation("jvp", run_jvp),
    Transformation("value_and_grad", run_value_and_grad, reverse=True),
]

REST = [
    Transformation("make_jaxpr", run_make_jaxpr, abstract=True),
    Transformation("eval_shape", run_eval_shape, abstract=True),
    Transformation("vmap_last_axis", run_vmap(partial(every_axis, axis=-1)), abstract=True),
    Transformation("vmap_first_only", run_vmap(partial(only_axis, which=0)), abstract=True),
    Transformation("vmap_last_only", run_vmap(partial(only_axis, which=-1)), abstract=True),
    Transformation("vmap_out_axis", run_vmap_out_axis, abstract=True),
    Transformation("jvp_of_first", run_jvp_of_first),
    Transformation("linearize", run_linearize, abstract=True),
    Transformation("vjp", run_vjp, reverse=True),
    Transformation("grad_of_last", run_grad_of_last, reverse=True),
    Transformation("jacfwd", run_jacfwd, abstract=True),
    Transformation("jacrev", run_jacrev, reverse=True, abstract=True),
    Transformation("hessian", run_hessian, reverse=True, abstract=True),
    Transformation("forward_hessian", run_forward_hessian, abstract=True),
]

PAIRS = [
    Transformation("vmap_of_grad", run_vmap_grad, reverse=True, abstract=True),
    Transformation("grad_of_vmap", run_grad_vmap, reverse=True, abstract=True),
    Transformation("jit_of_jvp_of_vmap", run_jit_jvp_vmap, abstract=True),
    Transformation("vmap_of_vmap", run_vmap_vmap, abstract=True),
    Transformation("jvp_of_grad", run_jvp_grad, reverse=True, abstract=True),
    Transformation("grad_of_jvp", run_grad_jvp, reverse=True, abstract=True),
    Transformation("grad_of_grad", run_grad_grad, reverse=True, abstract=True),
    Transformation("grad_of_checkpoint", run_checkpointed, reverse=True, abstract=True),
]
