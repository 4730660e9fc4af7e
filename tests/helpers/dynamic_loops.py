"""Loops with `checkpoints`, `max_steps` or `until`, each with a reference that needs none of them.

A reference runs a fixed number of steps with `jax.lax.scan` and keeps the carry from where the loop
ends, so JAX differentiates it in any way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import loops

MOST = 9
STOPS_AT = 6


class DynamicLoop(NamedTuple):
    """A loop of ours and its reference: functions of a weight and a start, to a scalar."""

    ours: Callable[..., Any]
    reference: Callable[..., Any]


def step(weight: jax.Array, value: jax.Array) -> jax.Array:
    """A step that is linear in nothing."""
    return jnp.sin(value * weight) + 0.3 * weight


def score(value: jax.Array) -> jax.Array:
    """A scalar of the final value."""
    return jnp.sum(value * value)


def masked(weight: jax.Array, start: jax.Array, steps: Any) -> jax.Array:
    """The final value after so many steps, all differentiable."""

    def body(value: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        return jnp.where(i < steps, step(weight, value), value), None

    return jax.lax.scan(body, start, jnp.arange(MOST))[0]


def by_scan(weight: jax.Array, start: jax.Array) -> jax.Array:
    """A scan that keeps three carries."""
    return score(
        loops.scan(lambda c, _: (step(weight, c), None), start, None, MOST, checkpoints=3)[0]
    )


def by_static_fori(weight: jax.Array, start: jax.Array) -> jax.Array:
    """A fori_loop with bounds known while tracing."""
    return score(loops.fori_loop(0, MOST, lambda _, c: step(weight, c), start, checkpoints=2))


def by_traced_fori(weight: jax.Array, start: jax.Array, upper: Any = MOST) -> jax.Array:
    """A fori_loop with a bound that is not known while tracing."""
    upper = jax.lax.optimization_barrier(jnp.int32(upper))

    def run(upper: jax.Array) -> jax.Array:
        return loops.fori_loop(0, upper, lambda _, c: step(weight, c), start, checkpoints=3)

    return score(jax.jit(run)(upper))


def by_while(weight: jax.Array, start: jax.Array, steps: Any = STOPS_AT) -> jax.Array:
    """A while loop that counts, and reads a value that the body changes."""

    def goes_on(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < steps) & jnp.all(jnp.abs(state[1]) < 100.0)

    init = (jnp.int32(0), start)
    count_and_step = lambda s: (s[0] + 1, step(weight, s[1]))
    return score(loops.while_loop(goes_on, count_and_step, init, max_steps=MOST)[1])


def by_until(weight: jax.Array, start: jax.Array) -> jax.Array:
    """A scan over xs with ys that ends early."""
    xs = jnp.linspace(0.0, 1.0, MOST, dtype=start.dtype)
    (_, value), ys = loops.scan(
        lambda c, x: ((c[0] + 1, step(weight, c[1]) + x), c[1] * x),
        (jnp.int32(0), start),
        xs,
        until=lambda c: c[0] == STOPS_AT,
    )
    return score(value) + jnp.sum(jnp.cos(ys[:STOPS_AT]))


def until_reference(weight: jax.Array, start: jax.Array) -> jax.Array:
    """The steps that `by_until` runs."""
    xs = jnp.linspace(0.0, 1.0, MOST, dtype=start.dtype)[:STOPS_AT]
    value, ys = jax.lax.scan(lambda c, x: (step(weight, c) + x, c * x), start, xs)
    return score(value) + jnp.sum(jnp.cos(ys))


DYNAMIC_LOOPS = {
    "scan": DynamicLoop(by_scan, lambda w, x: score(masked(w, x, MOST))),
    "static fori": DynamicLoop(by_static_fori, lambda w, x: score(masked(w, x, MOST))),
    "traced fori": DynamicLoop(by_traced_fori, lambda w, x, n=MOST: score(masked(w, x, n))),
    "while": DynamicLoop(by_while, lambda w, x, n=STOPS_AT: score(masked(w, x, n))),
    "until": DynamicLoop(by_until, until_reference),
}
COUNTED = ("traced fori", "while")
"""The loops whose number of steps is an argument."""
