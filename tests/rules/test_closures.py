"""Bodies that close over values which a transformation is working on.

The catalogue's programs close over plain arguments; here the closed-over value belongs to another
transformation than the carry, or to several at once.
"""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import Implementation

X, Y = jnp.float32(0.7), jnp.float32(1.3)
LANES = jnp.float32([0.5, 1.0, 1.5])
ROWS = jnp.float32([0.2, 0.4, 0.6])


def polynomial(loops: Implementation, w, c):
    """Three steps of c -> c * w + x, whose closed form is known."""
    return loops.scan(lambda c, x: (c * w + x, None), c, ROWS)[0]


def closed_form(w, c):
    """The same without a loop."""
    return ((c * w + ROWS[0]) * w + ROWS[1]) * w + ROWS[2]


def test_gradient_of_a_closed_over_value(impl: Implementation):
    """The cotangents of every step's use of a constant add up."""
    got = jax.grad(lambda w: polynomial(impl, w, X))(Y)
    assert_same(got, jax.grad(closed_form)(Y, X))


def test_batched_value_closed_over_by_an_unbatched_loop(impl: Implementation):
    """A loop whose operands are shared is batched through what its body closes over."""
    got = jax.vmap(lambda w: polynomial(impl, w, X))(LANES)
    assert_same(got, closed_form(LANES, X))


def test_each_of_three_transformations_owns_a_value(impl: Implementation):
    """One value is batched, one differentiated forwards, one in reverse."""

    def inner(w, c, offset):
        return impl.scan(lambda c, x: (c * w + x * offset, None), c, ROWS)[0]

    def plain(w, c, offset):
        return ((c * w + ROWS[0] * offset) * w + ROWS[1] * offset) * w + ROWS[2] * offset

    def nested(fun):
        grad_w = jax.grad(fun)
        tangent = lambda lane: jax.jvp(lambda c: grad_w(Y, c, lane), (X,), (jnp.float32(2.0),))
        return jax.jit(jax.vmap(tangent))(LANES)

    assert_same(nested(inner), nested(plain))


def test_gradients_of_two_levels_meet_in_one_body(impl: Implementation):
    """The derivative of a derivative, each for a value that the body closes over."""

    def tower(fun):
        return jax.grad(lambda w: jax.grad(lambda c: fun(w, c))(X))(Y)

    assert_same(tower(lambda w, c: polynomial(impl, w, c)), tower(closed_form))


def test_jit_inside_a_differentiated_body(impl: Implementation):
    """A compiled function in the body may close over the value too."""

    def fun(w):
        scaled = jax.jit(lambda c: c * w)
        return impl.fori_loop(0, 3, lambda i, c: scaled(c) + ROWS[i], X)

    assert_same(jax.grad(fun)(Y), jax.grad(closed_form)(Y, X))


def test_loop_in_a_body_closes_over_the_outer_carry(impl: Implementation):
    """An inner loop reads the outer loop's carry and its row."""

    def fun(c):
        def outer(c, x):
            inner = lambda i, t: t * c + x
            return impl.fori_loop(0, 2, inner, c), None

        return impl.scan(outer, c, ROWS)[0]

    def plain(c):
        for x in ROWS:
            start = c
            for _ in range(2):
                c = c * start + x
        return c

    assert_same(jax.value_and_grad(fun)(X), jax.value_and_grad(plain)(X))


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_while_closes_over_lanes(impl: Implementation, in_axes):
    """Condition and body of a while loop close over values that are batched or shared."""
    if impl.unrolls:
        pytest.skip("a Python loop cannot ask lanes for their truth")

    def fun(limit, rate):
        return impl.while_loop(lambda c: c < limit, lambda c: c * rate, X)

    limits, rates = jnp.float32([1.0, 2.0, 0.1]), jnp.float32([1.5, 3.0, 2.0])
    args = [a if axis == 0 else a[0] for a, axis in zip((limits, rates), in_axes, strict=True)]
    got = jax.vmap(fun, in_axes)(*args)

    def plain(limit, rate):
        c = X
        while c < limit:
            c = c * rate
        return c

    lane = lambda a, axis, i: a[i] if axis == 0 else a
    want = [plain(lane(args[0], in_axes[0], i), lane(args[1], in_axes[1], i)) for i in range(3)]
    assert_same(got, jnp.stack(want))
