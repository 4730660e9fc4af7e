"""Programs that compute the same are told from those that do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.equal_values import ValueNumbers


def are_the_same(first, second, *args) -> bool:
    """Whether two functions get the same numbers."""
    numbers = ValueNumbers()
    outputs = [numbers.of_outputs(jax.make_jaxpr(fun)(*args)) for fun in (first, second)]
    return outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.zeros(3) + x,
        lambda x: 0.9 * jnp.zeros(3) + x,
        lambda x: x - jnp.tanh(jnp.zeros(3)),
        lambda x: x + jnp.zeros(3) / 2.0,
        lambda x: jnp.zeros((3, 3)) @ jnp.ones(3) + x,
        lambda x: jax.jit(jnp.add)(np.zeros(3, np.float32), x),
        lambda x: jnp.asarray(x, jnp.float32).reshape(3),
    ],
)
def test_what_is_added_to_zeros(fun):
    """Zeros, and what is made zero by them, add nothing."""
    assert are_the_same(lambda x: x, fun, jnp.ones(3, jnp.float32))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.maximum(jnp.zeros(3), x),
        lambda x: jnp.maximum(x, jnp.zeros(3)),
        lambda x: jnp.zeros(3) * x,
        lambda x: jnp.exp(jnp.zeros(3)) + x,
        lambda x: jnp.ones(3) + x,
        lambda x: jnp.zeros(3) - x,
        lambda x: jnp.zeros((1, 3)) + x[None],
        lambda x: x.astype(jnp.bfloat16),
    ],
)
def test_what_zeros_change(fun):
    """The largest of zeros and others, a product, another type."""
    assert not are_the_same(lambda x: x, fun, jnp.ones(3, jnp.float32))


def test_equal_expressions_of_the_same_constants():
    """A constant is the same by its value, or by being the same array."""
    table = jnp.arange(3.0)
    same = lambda x: jnp.sin(x * 2.0) + np.array([1.0, 2.0, 3.0], np.float32) + table

    assert are_the_same(same, lambda x: same(x) + jnp.zeros(3), jnp.ones(3))
    assert not are_the_same(same, lambda x: same(x * 1.5), jnp.ones(3))
    assert not are_the_same(lambda x: x * 2.0, lambda x: x * 3.0, jnp.ones(3))
