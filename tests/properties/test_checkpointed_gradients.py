"""Gradients through loops that keep few carries, for random bodies, lengths and checkpoints.

The oracles are `jax.lax.scan`, which keeps everything, and finite differences.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

import loops

SIZE, MOST = 3, 7
UNARY = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "reverse": lambda x: x[::-1],
    "square": lambda x: 0.5 * x * x,
    "where": lambda x: jnp.where(x > 0.1, x, 0.3 * x),
    "branch": lambda x: jax.lax.cond(x[0] > 0.2, jnp.sin, lambda x: 0.5 * x, x),
    "set row": lambda x: x.at[1].set(x[0] * x[2]),
    "inner loop": lambda x: loops.fori_loop(0, 2, lambda i, c: 0.5 * jnp.sin(c) + 0.1, x),
}
BINARY = {"add": jnp.add, "mul": jnp.multiply, "maximum": jnp.maximum}

# A body is a list of instructions on a list of registers: the weight, x, and the parts of the
# carry to begin with. The last two registers are the new carry.
unary = st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 3))
binary = st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 3), st.integers(0, 3))
bodies = st.lists(unary | binary, min_size=2, max_size=4).map(tuple)


def run_body(body, w, carry, x):
    """A step of a random body, with a carry that stays small; the y is the register before."""
    registers = [*carry, w, x]
    for name, *places in body:
        args = [registers[place] for place in places]
        fun = UNARY[name] if name in UNARY else BINARY[name]
        registers.append(jnp.tanh(fun(*args)))
    return (registers[-1], registers[-2]), registers[-2] * w


def score(carry, ys):
    """A scalar of all that a loop returns."""
    return sum(jnp.sum(jnp.cos(leaf + 0.5)) for leaf in (*carry, ys))


@functools.cache
def gradients(body, checkpoints):
    """Compiled gradients of our loop, and of JAX's with steps that change nothing at the end."""

    def ours(w, init, xs, steps):
        def counted(carry, x):
            count, *carry = carry
            (a, b), y = run_body(body, w, carry, x)
            return (count + 1, a, b), y

        until = lambda carry: carry[0] >= steps
        (_, *carry), ys = loops.scan(
            counted, (jnp.int32(0), *init), xs, until=until, checkpoints=checkpoints
        )
        return score(carry, ys)

    def reference(w, init, xs, steps):
        def step(carry, row):
            i, x = row
            new, y = run_body(body, w, carry, x)
            new, y = jax.tree.map(
                lambda a, b: jnp.where(i < steps, a, b), (new, y), (carry, jnp.zeros_like(y))
            )
            return new, y

        rows = (jnp.arange(MOST, dtype=jnp.int32), xs)
        return score(*jax.lax.scan(step, init, rows))

    gradient = lambda fun: jax.jit(jax.value_and_grad(fun, (0, 1, 2)))
    return gradient(ours), gradient(reference), jax.jit(ours)


def arguments(seed):
    """A weight, the parts of a carry, and rows."""
    rng = np.random.default_rng(seed)
    w, a, b = rng.uniform(-1, 1, (3, SIZE)).astype(np.float32)
    return w, (a, b), rng.uniform(-1, 1, (MOST, SIZE)).astype(np.float32)


@hypothesis.given(bodies, st.integers(1, 4), st.integers(0, MOST), st.integers(0, 99))
@hypothesis.settings(max_examples=12)
def test_gradients_are_those_of_jax(body, checkpoints, steps, seed):
    """Value and gradients agree with `jax.lax.scan`'s to rounding, whatever the body."""
    ours, reference, _ = gradients(body, checkpoints)
    args = (*arguments(seed), np.int32(steps))
    for a, b in zip(jax.tree.leaves(ours(*args)), jax.tree.leaves(reference(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


SMOOTH = (("sin", 0), ("mul", 4, 2), ("add", 5, 3), ("square", 1), ("add", 6, 7))


@hypothesis.given(st.integers(1, 4), st.integers(0, MOST), st.integers(0, 99))
@hypothesis.settings(max_examples=10)
def test_gradients_are_finite_differences(checkpoints, steps, seed):
    """A small step along a random direction changes the value as the gradient says."""
    ours, _, value = gradients(SMOOTH, checkpoints)
    (w, init, xs), (w_dot, init_dot, xs_dot) = arguments(seed), arguments(seed + 1)
    along = lambda t: value(
        w + t * w_dot,
        tuple(a + t * d for a, d in zip(init, init_dot, strict=True)),
        xs + t * xs_dot,
        np.int32(steps),
    )
    small = np.float32(1e-2)
    difference = (along(small) - along(-small)) / (2 * small)
    _, gradient = ours(w, init, xs, np.int32(steps))
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves((w_dot, init_dot, xs_dot)), strict=True)
    slope = sum(float(np.sum(np.asarray(g) * d)) for g, d in pairs)
    np.testing.assert_allclose(slope, difference, rtol=2e-2, atol=2e-2)
