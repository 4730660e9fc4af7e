from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.dynamic_loops import COUNTED, DYNAMIC_LOOPS, MOST, STOPS_AT

WEIGHT = np.array([1.1, 0.7, -0.3], np.float32)
START = np.array([0.2, 0.3, 0.4], np.float32)
DOTS = (np.array([0.3, -0.2, 0.5], np.float32), np.array([1.0, 0.4, -0.7], np.float32))
LANES = np.stack([START, 2 * START, -START])
both = partial(jax.grad, argnums=(0, 1))


def squares(tree: Any) -> jax.Array:
    """A scalar of everything in a tree, to differentiate once more."""
    return sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def along_dots(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative along fixed tangents."""
    return lambda *args: jax.jvp(fun, args, DOTS)[1]


def of_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar of the gradient."""
    return lambda *args: squares(both(fun)(*args))


def over_starts(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over lanes that share the weight."""
    return lambda w, x: jnp.sum(jax.vmap(fun, (None, 0))(w, jnp.stack([x, 2 * x, -x])))


DERIVATIVES = {
    "jvp": along_dots,
    "linearize": lambda f: lambda *args: jax.linearize(f, *args)[1](*DOTS),
    "grad": both,
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "hessian": lambda f: jax.hessian(f, (0, 1)),
    "grad of grad": lambda f: both(of_gradient(f)),
    "grad of grad of grad": lambda f: both(of_gradient(of_gradient(f))),
    "jvp of grad": lambda f: along_dots(of_gradient(f)),
    "grad of jvp": lambda f: both(along_dots(f)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "jacfwd of jacrev of jit": lambda f: jax.jacfwd(jax.jacrev(jax.jit(f))),
    "grad of checkpoint": lambda f: both(jax.checkpoint(f)),
    "grad of checkpoint of grad": lambda f: both(jax.checkpoint(of_gradient(f))),
    "grad of checkpoint that saves dots": lambda f: both(
        jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)
    ),
    "vmap of grad": lambda f: lambda w, x: jax.vmap(both(f), (None, 0))(w, jnp.stack([x, -x])),
    "grad of vmap": lambda f: both(over_starts(f)),
    "grad of grad of vmap": lambda f: both(of_gradient(over_starts(f))),
    "vmap of hessian": lambda f: lambda w, x: jax.vmap(jax.hessian(f), (None, 0))(w, LANES),
    "linear transpose": lambda f: (
        lambda *args: jax.linear_transpose(jax.linearize(f, *args)[1], *args)(jnp.float32(1))
    ),
}


def agree(actual: Any, expected: Any) -> None:
    """Compare two trees to the rounding of a few derivatives in single precision."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
        assert jax.typeof(a) == jax.typeof(b)


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", DYNAMIC_LOOPS)
def test_derivative(name: str, derivative: str) -> None:
    """Each kind of loop has each derivative that the same steps have under `jax.lax.scan`."""
    loop, transform = DYNAMIC_LOOPS[name], DERIVATIVES[derivative]
    actual = jax.jit(transform(loop.ours))(WEIGHT, START)
    agree(actual, jax.jit(transform(loop.reference))(WEIGHT, START))


@pytest.mark.parametrize("name", DYNAMIC_LOOPS)
def test_outside_of_jit(name: str) -> None:
    """Eager derivatives are those under jit."""
    loop = DYNAMIC_LOOPS[name]
    agree(both(loop.ours)(WEIGHT, START), both(loop.reference)(WEIGHT, START))


STEPS = np.array([0, MOST - 2, 3], np.int32)


def each_its_steps(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over lanes that share the weight and stop at different steps, one of them at once."""
    return lambda w, x: jnp.sum(jax.vmap(fun, (None, 0, 0))(w, x, STEPS))


LANE_DERIVATIVES = {
    "vmap": lambda f: lambda w, x: jax.vmap(f, (None, 0, 0))(w, x, STEPS),
    "vmap of grad": lambda f: lambda w, x: jax.vmap(both(f), (None, 0, 0))(w, x, STEPS),
    "vmap of jvp": lambda f: (
        lambda w, x: jax.vmap(lambda y, n: jax.jvp(lambda z: f(w, z, n), (y,), (y,)))(x, STEPS)
    ),
    "grad of vmap": lambda f: both(each_its_steps(f)),
    "grad of grad of vmap": lambda f: both(of_gradient(each_its_steps(f))),
    "grad to the third of vmap": lambda f: both(of_gradient(of_gradient(each_its_steps(f)))),
    "hessian of vmap": lambda f: jax.hessian(each_its_steps(f)),
    "grad of vmap of grad": lambda f: both(
        lambda w, x: squares(jax.vmap(both(f), (None, 0, 0))(w, x, STEPS))
    ),
    "grad of vmap of vmap": lambda f: both(
        lambda w, x: jnp.sum(
            jax.vmap(jax.vmap(f, (None, 0, 0)), (None, 0, 0))(
                w, jnp.stack([x, -x]), np.stack([STEPS, STEPS[::-1]])
            )
        )
    ),
    "vmap of grad of vmap": lambda f: (
        lambda w, x: jax.vmap(
            lambda ns: both(lambda w, x: jnp.sum(jax.vmap(f, (None, 0, 0))(w, x, ns)))(w, x)
        )(np.stack([STEPS, STEPS[::-1]]))
    ),
}


@pytest.mark.parametrize("derivative", LANE_DERIVATIVES)
@pytest.mark.parametrize("name", COUNTED)
def test_lanes_that_end_apart(name: str, derivative: str) -> None:
    """Each lane stops on its own, in every derivative, and what lanes share adds up."""
    loop, transform = DYNAMIC_LOOPS[name], LANE_DERIVATIVES[derivative]
    actual = jax.jit(transform(loop.ours))(WEIGHT, LANES)
    agree(actual, jax.jit(transform(loop.reference))(WEIGHT, LANES))


@pytest.mark.parametrize("steps", [0, 1, 2, STOPS_AT, MOST])
@pytest.mark.parametrize("name", COUNTED)
def test_any_number_of_steps(name: str, steps: int) -> None:
    """The gradient follows the steps that were taken, none included."""
    loop = DYNAMIC_LOOPS[name]
    gradient = jax.jit(both(loop.ours))(WEIGHT, START, steps)
    agree(gradient, both(loop.reference)(WEIGHT, START, steps))
