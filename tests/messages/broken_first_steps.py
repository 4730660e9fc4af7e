"""Bodies that make part of their carry in the first step, and find it there in the others.

Zeros are right advice where the first step does the same with them, and wrong where it does not.
"""

import jax
import jax.numpy as jnp

from tests.messages.broken import broken

WEIGHTS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}


@broken((WEIGHTS, None), jnp.ones((4, 5, 3)))
def gradients_that_add_up(state, x):
    """A sum may start from zeros."""
    params, total = state
    grads = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
    total = grads if total is None else jax.tree.map(jnp.add, total, grads)  # <- here
    return (params, total), None


@broken((jnp.float32(0), None), advice=False)
def average_that_starts_with_the_first(state, x):
    """A moving average that starts from zeros is another one."""
    t, mean = state
    mean = x if mean is None else 0.9 * mean + 0.1 * x  # <- here
    return (t + 1, mean), None


@broken({"t": jnp.float32(0)}, -jnp.ones(4), advice=False)
def largest_by_get(s, x):
    """The largest of negative numbers is not zero; nor may the next step find no key."""
    best = jnp.maximum(s.get("best", -jnp.inf), x)
    return {"t": s["t"] + 1, "best": best}, None  # <- here


@broken({"t": jnp.float32(0)}, advice="{**init, 'total': jnp.zeros((), jnp.float32)}")
def total_by_get(s, x):
    """A sum under a key with a default."""
    total = s.get("total", 0.0) + x
    return {"t": s["t"] + 1, "total": total}, None  # <- here


@broken({"w": jnp.ones(3)}, jnp.ones((4, 3)), advice="{**init, 'v': jnp.zeros((3,), jnp.float32)}")
def velocity_unless_there(s, g):
    """Momentum that is the gradient at first: with zeros it is as well."""
    v = 0.9 * s["v"] + g if "v" in s else g
    return {"w": s["w"] - 0.1 * v, "v": v}, None  # <- here


@broken({"w": jnp.ones(3)}, jnp.ones((4, 3)), advice=False)
def product_unless_there(s, g):
    """A product that starts from zeros stays zero."""
    v = s["v"] * g if "v" in s else g
    return {"w": s["w"] - 0.1 * v, "v": v}, None  # <- here


@broken((jnp.zeros(3), None), jnp.ones((4, 3)), advice=False)
def ratio_to_the_previous_gradient(s, g):
    """The first step has no ratio, and with zeros it would have a large one."""
    w, previous = s
    beta = 0.0 if previous is None else (g @ g) / (previous @ previous + 1e-8)
    return (w - g * beta, g), beta  # <- here


@broken((jnp.zeros(3), None), jnp.ones((4, 3)))
def previous_gradient(s, g):
    """What is kept and never read may start as anything."""
    w, _ = s
    return (w - g, g), None  # <- here
