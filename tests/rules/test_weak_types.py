"""Results are as weakly typed under a transformation as without it, and as JAX's loops give them.

A body may return a weak type for a strong carry; then the loop's output is weak, and so it must be
where a rule of ours writes the loop in another way: as one over lanes, or with checkpoints.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

from tests.helpers.implementations import JAX, OURS

X = jnp.float32(0.3)
LANES = jnp.array([0.1, 0.3, 0.5], jnp.float32)


def literal_for_a_strong_carry(implementation, x, **options):
    """The fuzzer's find: strong at first, weak from the first step on."""
    goes_on = lambda c: (c[0] < 2) & (c[1] > 0.2)
    return implementation.while_loop(goes_on, lambda c: (c[0] + 1, 0.75), (0, x), **options)


def strong_for_a_weak_carry(implementation, x, **options):
    """A weak integer that becomes another weak one, a float and a strong integer."""
    body = lambda c: (2, c[1] + 1.0, 3)
    init = (0, x, jnp.int32(1))
    return implementation.while_loop(lambda c: c[1] < 5.0 * x, body, init, **options)


def traced_bound(implementation, x, **options):
    """A fori_loop over a traced number of steps with a weak carry."""
    upper = (8.0 * x).astype(jnp.int32)
    body = lambda i, c: (0.5, c[1] + 1)
    return implementation.fori_loop(jnp.int32(0), upper, body, (x, 0), **options)


def early_exit(implementation, x):
    """A scan that ends early, with weak and strong ys."""
    step = lambda c, row: ((0.5, c[1] + 1), (1.0, c[1], row))
    rows = jnp.arange(3.0, dtype=jnp.float32)
    until = lambda c: c[1] > 4.0 * x
    return implementation.scan(step, (x, 0), rows, until=until)


TRANSFORMATIONS = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(LANES),
    "vmap of vmap": lambda f: lambda x: jax.vmap(jax.vmap(f))(jnp.stack([LANES, LANES])),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[0],
    "vmap of jvp": lambda f: lambda x: jax.vmap(lambda a: jax.jvp(f, (a,), (a,))[0])(LANES),
    "jvp of vmap": lambda f: lambda x: jax.jvp(jax.vmap(f), (LANES,), (LANES,))[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[0],
    "checkpoint": jax.checkpoint,
    "checkify": lambda f: lambda x: checkify.checkify(f, checkify.all_checks)(x)[1],
    "checkify of vmap": lambda f: lambda x: checkify.checkify(jax.vmap(f))(LANES)[1],
}
WITH_LAX = [literal_for_a_strong_carry, strong_for_a_weak_carry, traced_bound]
WITH_CHECKPOINTS = [*(partial(program, max_steps=8) for program in WITH_LAX), early_exit]


def weak_types(outputs):
    """Which leaves are weakly typed."""
    return [jax.typeof(x).weak_type for x in jax.tree.leaves(outputs)]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("program", [*WITH_LAX, *WITH_CHECKPOINTS])
def test_as_without_transformation(program, transformation):
    """A transformation changes no output's weak type."""
    fun = lambda x: program(OURS, x)
    assert weak_types(TRANSFORMATIONS[transformation](fun)(X)) == weak_types(fun(X))


@pytest.mark.parametrize("transformation", [t for t in TRANSFORMATIONS if t != "checkify of vmap"])
@pytest.mark.parametrize("program", WITH_LAX)
def test_as_with_jax(program, transformation):
    """The weak types are those of JAX's loops, which cannot check lanes that end apart."""
    ours, theirs = (
        TRANSFORMATIONS[transformation](lambda x, of=of: program(of, x))(X) for of in (OURS, JAX)
    )
    assert weak_types(ours) == weak_types(theirs)
