"""Loops that keep few carries, in every place where a loop may stand: other loops, branches, rules.

Each place is written for a function that runs a few steps; the reference runs them in Python.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops

W, X = np.float32(0.9), np.float32(0.5)
STEPS = 3


def step(w, x):
    """A step that is linear in nothing."""
    return jnp.sin(x * w) + 0.3 * w


def by_python(w, x):
    """The steps, written out."""
    for _ in range(STEPS):
        x = step(w, x)
    return x


def by_while(w, x):
    """The steps by a while loop."""
    init = (jnp.int32(0), x)
    body = lambda s: (s[0] + 1, step(w, s[1]))
    return loops.while_loop(lambda s: s[0] < STEPS, body, init, checkpoints=2)[1]


def by_scan(w, x):
    """The steps by a scan."""
    return loops.scan(lambda c, _: (step(w, c), None), x, None, STEPS, checkpoints=2)[0]


def by_until(w, x):
    """The steps by a scan that ends early."""
    body = lambda c, _: ((c[0] + 1, step(w, c[1])), None)
    init = (jnp.int32(0), x)
    return loops.scan(body, init, None, STEPS + 2, until=lambda c: c[0] == STEPS)[0][1]


def in_plain_scan(run, w, x):
    """In the body of a scan, whose constants and carry it uses."""
    return loops.scan(lambda c, y: (run(w, c) + y, None), x, jnp.array([0.1, 0.2], np.float32))[0]


def in_jax_scan(run, w, x):
    """In the body of JAX's scan."""
    return jax.lax.scan(lambda c, y: (run(w, c) + y, None), x, jnp.array([0.1, 0.2], np.float32))[0]


def in_checkpointed_scan(run, w, x):
    """In the body of a scan that keeps few carries too."""
    body = lambda c, y: (run(w, c) + y, c)
    c, ys = loops.scan(body, x, jnp.array([0.1, 0.2, 0.3], np.float32), checkpoints=2)
    return c + jnp.sum(ys)


def in_checkpointed_while(run, w, x):
    """In the body of a while loop that can be differentiated in reverse."""
    body = lambda s: (s[0] + 1, run(w, s[1]))
    return loops.while_loop(lambda s: s[0] < 3, body, (jnp.int32(0), x), max_steps=4)[1]


def in_condition(run, w, x):
    """In the condition of a while loop, where it sees the carry."""
    goes_on = lambda s: (s[0] < 3) & (run(w, s[1]) < 100.0)
    body = lambda s: (s[0] + 1, step(w, s[1]))
    return loops.while_loop(goes_on, body, (jnp.int32(0), x), checkpoints=2)[1]


def with_plain_inside(run, w, x):
    """Around a plain scan: the place is the other way round."""
    inner = lambda c: loops.scan(lambda d, _: (step(w, d), None), c, None, 2)[0]
    body = lambda s: (s[0] + 1, inner(run(w, s[1])))
    return loops.while_loop(lambda s: s[0] < 2, body, (jnp.int32(0), x), checkpoints=1)[1]


def in_branch(run, w, x):
    """In a branch of a cond."""
    return jax.lax.cond(x < 1.0, run, lambda w, x: w * x, w, x)


def with_branch_inside(run, w, x):
    """Around a cond that sees the carry, beside a loop of its own."""
    body = lambda _, c: jax.lax.cond(c < 0.6, run, lambda w, c: w * c * c, w, c)
    return loops.fori_loop(0, 2, body, x, checkpoints=1)


def in_custom_jvp(run, w, x):
    """In the rule of a custom_jvp."""

    @jax.custom_jvp
    def fun(w, x):
        return run(w, x)

    fun.defjvp(lambda primals, tangents: jax.jvp(run, primals, tangents))
    return fun(w, x)


def in_custom_vjp(run, w, x):
    """In both rules of a custom_vjp."""

    @jax.custom_vjp
    def fun(w, x):
        return run(w, x)

    fun.defvjp(lambda w, x: jax.vjp(run, w, x), lambda pull, ct: pull(ct))
    return fun(w, x)


def with_custom_vjp_inside(run, w, x):
    """Around a step with a custom_vjp."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, ct: (ct * cos,))
    return loops.fori_loop(0, 2, lambda _, c: sine(run(w, c)), x, checkpoints=1)


def with_checkpoint_inside(run, w, x):
    """Around a step with a jax.checkpoint."""
    again = jax.checkpoint(run)
    return loops.fori_loop(0, 2, lambda _, c: again(w, c), x, checkpoints=1)


def in_vmap(run, w, x):
    """In lanes that share the weight."""
    return jnp.sum(jax.vmap(run, (None, 0))(w, jnp.stack([x, 2 * x])))


def with_vmap_inside(run, w, x):
    """Around lanes of such a loop."""
    lanes = lambda c: jnp.sum(jax.vmap(run, (None, 0))(w, jnp.stack([c, 2 * c])))
    return loops.fori_loop(0, 2, lambda _, c: lanes(c), x, checkpoints=1)


def with_gradient_inside(run, w, x):
    """Around a step of gradient descent on such a loop."""
    body = lambda _, c: c - 0.1 * jax.grad(run, 1)(w, c)
    return loops.fori_loop(0, 2, body, x, checkpoints=1)


PLACES = [
    in_plain_scan,
    in_jax_scan,
    in_checkpointed_scan,
    in_checkpointed_while,
    in_condition,
    with_plain_inside,
    in_branch,
    with_branch_inside,
    in_custom_jvp,
    in_custom_vjp,
    with_custom_vjp_inside,
    with_checkpoint_inside,
    in_vmap,
    with_vmap_inside,
    with_gradient_inside,
]
RUNS = {"while": by_while, "scan": by_scan, "until": by_until}


def written_out(place: Callable[..., Any], w: Any, x: Any) -> Any:
    """The same place around steps in Python; its own loops are then JAX's or Python's."""
    plain = PYTHON_PLACES.get(place)
    return plain(w, x) if plain else place(by_python, w, x)


def python_loop(count: int, body: Callable[[Any], Any], x: Any) -> Any:
    """A carry after so many steps."""
    for _ in range(count):
        x = body(x)
    return x


def _checkpointed_scan(w, x):
    total = jnp.float32(0)
    for y in np.array([0.1, 0.2, 0.3], np.float32):
        total, x = total + x, by_python(w, x) + y
    return x + total


def _branches(w, x):
    branch = lambda c: jnp.where(c < 0.6, by_python(w, c), w * c * c)
    return python_loop(2, branch, x)


def _lanes(w, x):
    return python_loop(2, lambda c: by_python(w, c) + by_python(w, 2 * c), x)


def _descent(w, x):
    return python_loop(2, lambda c: c - 0.1 * jax.grad(by_python, 1)(w, c), x)


PYTHON_PLACES = {
    in_checkpointed_scan: _checkpointed_scan,
    in_checkpointed_while: lambda w, x: python_loop(3, lambda c: by_python(w, c), x),
    in_condition: by_python,
    with_plain_inside: lambda w, x: python_loop(
        2, lambda c: python_loop(2, lambda d: step(w, d), by_python(w, c)), x
    ),
    with_branch_inside: _branches,
    with_custom_vjp_inside: lambda w, x: python_loop(2, lambda c: jnp.sin(by_python(w, c)), x),
    with_checkpoint_inside: lambda w, x: python_loop(2, lambda c: by_python(w, c), x),
    with_vmap_inside: _lanes,
    with_gradient_inside: _descent,
}


def derivatives(fun: Callable[..., Any]) -> list[Any]:
    """The value, the gradient, and its derivative along a direction in either mode."""
    gradient = jax.grad(fun, (0, 1))
    along = lambda w, x: sum(gradient(w, x))
    return [
        fun(W, X),
        gradient(W, X),
        jax.grad(along, (0, 1))(W, X),
        jax.jvp(along, (W, X), (W, X))[1],
    ]


SOME_PLACES = [in_plain_scan, in_checkpointed_scan, with_branch_inside, in_vmap]
CASES = [(place, "while") for place in PLACES] + [
    (place, run) for place in SOME_PLACES for run in ("scan", "until")
]


@pytest.mark.parametrize(
    ("place", "run"), CASES, ids=[f"{place.__name__}-{run}" for place, run in CASES]
)
def test_place(place, run):
    """A loop has its derivatives wherever it stands."""
    ours = jax.jit(lambda: derivatives(lambda w, x: place(RUNS[run], w, x)))()
    plain = jax.jit(lambda: derivatives(lambda w, x: written_out(place, w, x)))()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_gradient_of_gradients_of_branches_in_lanes():
    """A branch that each lane takes on its own is differentiated twice, with a gradient inside."""

    def of_gradients(loop):
        body = lambda w, c: jax.lax.cond(c < 0.6, step, lambda w, c: w * c * c, w, c)
        gradient = jax.grad(lambda w, x: loop(lambda c: body(w, c), x), (0, 1))
        lanes = jax.vmap(gradient, (None, 0))
        return jax.jit(jax.grad(lambda w, xs: sum(jnp.sum(g * g) for g in lanes(w, xs)), (0, 1)))

    xs = np.array([0.2, 0.5, 0.9], np.float32)
    ours = of_gradients(
        lambda body, x: loops.fori_loop(0, 3, lambda _, c: body(c), x, checkpoints=2)
    )
    plain = of_gradients(lambda body, x: python_loop(3, body, x))
    for a, b in zip(ours(W, xs), plain(W, xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


CLIPPED = {
    "clip": lambda cos, ct: (jnp.clip(ct * cos, -0.2, 0.2),),
    "square": lambda cos, ct: (ct * ct * cos,),
    "sine": lambda cos, ct: (jnp.sin(ct) * cos,),
}


@pytest.mark.parametrize("rule", CLIPPED)
def test_backward_rule_that_is_not_linear(rule):
    """It is followed in a gradient and forwards over it; a second gradient is refused by name."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), CLIPPED[rule])
    ours = jax.grad(lambda x: loops.fori_loop(0, 3, lambda _, c: sine(c) * x, x, checkpoints=1))
    plain = jax.grad(lambda x: python_loop(3, lambda c: sine(c) * x, x))

    np.testing.assert_allclose(ours(X), plain(X), rtol=1e-5)
    slopes = [jax.jvp(fun, (X,), (X,))[1] for fun in (ours, plain)]
    np.testing.assert_allclose(*slopes, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="not linear in its cotangent"):
        jax.grad(ours)(X)
