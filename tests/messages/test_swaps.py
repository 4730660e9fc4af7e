"""Advice where the carry and the y are returned in each other's place, or one for both."""

import jax
import jax.numpy as jnp
import pytest

import loops
from tests.messages.refused import code, refusal

XS = jnp.arange(3.0)


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Bodies here promote as users' do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_carry_and_y_exchanged():
    """Where only the y is computed from the carry, the two stand in the wrong order."""

    def body(c, x):
        new = c * x
        return x, new

    assert "(new, x)" == code(lambda: loops.scan(body, jnp.ones(3), XS))


def test_the_y_has_all_parts_of_the_carry():
    """Both are computed from the carry, and only one of them has both its parts."""

    def body(state, x):
        h, c = state
        c = jax.nn.sigmoid(x) * c
        h = jnp.tanh(c) + h
        return h, (h, c)

    assert "((h, c), h)" == code(lambda: loops.scan(body, (jnp.ones(3), jnp.ones(3)), XS))


def test_the_carry_without_a_y():
    """The two parts of the carry are taken for the pair of carry and y."""

    def body(state, x):
        w, key = state
        key, sub = jax.random.split(key)
        return w + jax.random.normal(sub, (3,)) * x, key

    suggestion = (
        refusal(lambda: loops.scan(body, (jnp.ones(3), jax.random.key(0)), XS))
        .mismatches[0]
        .suggestion
    )
    assert "((w + jax.random.normal(sub, (3,)) * x, key), None)" == suggestion.code


def test_a_y_that_is_the_carry_as_it_came():
    """The value before is a usual y, and no sign that the two are in each other's place."""

    def body(c, x):
        return x.astype(jnp.int32), c

    assert "x.astype(jnp.float32)" == code(lambda: loops.scan(body, jnp.float32(1), XS))
