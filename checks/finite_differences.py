"""The derivative of one step of a body, against finite differences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checks.body_steps import Step
from checks.transformations import cotangents_of, of_floats, tangents_of


def check_gradient(step: Callable[..., Any], one: Step, rtol: float) -> None:
    """Forward mode against differences to either side, and reverse against forward mode."""
    fun, floats = _of_wide_floats(step, one)
    if not floats:
        return
    tangents = tangents_of(floats)
    out, pushed = jax.jvp(fun, floats, tangents)
    size = 1e-2 if any(x.dtype == np.float32 for x in floats) else 1e-5
    sides = [_difference_quotient(fun, floats, tangents, out, h) for h in (size, -size)]
    for got, left, right in zip(pushed, *sides, strict=True):
        low, high = jnp.minimum(left, right), jnp.maximum(left, right)
        slack = max(rtol, size) * (1 + jnp.abs(got))
        if not bool(jnp.all((low - slack <= got) & (got <= high + slack))):
            raise AssertionError(
                f"the body's derivative is {got}, but differences of {size} to either side "
                f"give {left} and {right}"
            )
    _, pull = jax.vjp(fun, *floats)
    cotangents = cotangents_of(out)
    forward, backward = _inner(cotangents, pushed), _inner(pull(cotangents), tangents)
    if not np.allclose(forward, backward, rtol=max(rtol, 1e-3), atol=1e-3):
        raise AssertionError(
            f"the body's derivative is {forward} forward but {backward} in reverse, "
            "along the same direction"
        )


def _of_wide_floats(step: Callable[..., Any], one: Step) -> tuple[Callable[..., Any], Any]:
    """The step as a function of its real floats that finite differences can tell apart."""
    inner, floats = of_floats(step, (one.index, one.carry, one.x))
    is_wide = [x.dtype in (np.float32, np.float64) for x in floats]

    def fun(*wide: Any) -> list[Any]:
        rest = iter(wide)
        filled = [next(rest) if w else x for x, w in zip(floats, is_wide, strict=True)]
        leaves = jax.tree.leaves(inner(*filled))
        return [leaf for leaf in leaves if leaf.dtype in (np.float32, np.float64)]

    return fun, tuple(x for x, w in zip(floats, is_wide, strict=True) if w)


def _difference_quotient(fun: Any, floats: Any, tangents: Any, out: Any, size: float) -> list[Any]:
    moved = fun(*(x + jnp.asarray(size, x.dtype) * t for x, t in zip(floats, tangents)))
    return [(there - here) / jnp.asarray(size, here.dtype) for there, here in zip(moved, out)]


def _inner(left: Any, right: Any) -> float:
    return sum(float(jnp.vdot(a, b)) for a, b in zip(left, right, strict=True))
