"""Bodies that go on with what has another shape or type: the end is what has to be changed.

A change where the type was made would change what the rest of the body computes of it.
"""

import jax
import jax.numpy as jnp

from tests.messages.broken import broken

ROWS = jax.random.normal(jax.random.key(0), (3, 4, 5))


@broken(jnp.ones((4, 1)), ROWS, advice="jax.nn.softmax(m).reshape((4, 1))")
def softmax_of_means(c, x):
    """With `keepdims` each mean would be a softmax of its own."""
    m = x.mean(axis=1)  # <- here
    return jax.nn.softmax(m), None


@broken(jnp.ones((4, 1)), ROWS, advice="(jnp.cumsum(m, axis=-1) * 2).reshape((4, 1))")
def sums_of_means(c, x):
    """With `keepdims` nothing would be added up."""
    m = x.mean(axis=1)  # <- here
    return jnp.cumsum(m, axis=-1) * 2, None


@broken(jnp.ones((4, 1)), ROWS, advice="x.mean(axis=1, keepdims=True)")
def scaled_means(c, x):
    """What follows does not notice."""
    m = x.mean(axis=1)  # <- here
    return jnp.tanh(0.1 * m) + 1, None


@broken(jnp.ones(4), jax.random.normal(jax.random.key(0), (3, 4, 4)))
def means_that_are_subtracted_as_well(c, x):
    """Without `keepdims` they would be subtracted from columns."""
    m = x.mean(axis=1, keepdims=True)
    return (0.9 * c[:, None] + 0.1 * m), x - m  # <- here


@broken(jnp.ones((2, 3)), advice="jnp.cumsum(y, axis=0).T", in_python=False)
def sums_of_the_transposed(c, x):
    """The sums run along the axis that the transposition made the first."""
    y = c.T * x  # <- here
    return jnp.cumsum(y, axis=0), None


@broken(jnp.ones((2, 3)), advice="jax.nn.softmax(flat * x).reshape((2, 3))")
def softmax_of_all(c, x):
    """A softmax over all elements."""
    flat = c.reshape(-1)  # <- here
    return jax.nn.softmax(flat * x), None


@broken(jnp.zeros((2, 4)), jnp.ones((3, 2, 4)))
def heads_that_are_not_merged(h, x):
    """The rows of each head are normalised by themselves."""
    heads = x.reshape(2, 2, 2)  # <- here
    return jax.nn.softmax(heads, axis=-1) * heads, None


@broken(jnp.ones((1, 3)), advice="jnp.sort(y, axis=0).reshape((1, 3))")
def squeezed_and_sorted(c, x):
    """Along the axis that squeezing made the first."""
    y = jnp.squeeze(c) * x  # <- here
    return jnp.sort(y, axis=0), None


@broken(jnp.zeros((1, 2, 3)), jnp.ones((3, 2, 3)), advice="c")
def squeezed_with_an_axis(c, x):
    """A squeeze that need not be."""
    c = jax.lax.squeeze(c, (0,))  # <- here
    return jax.nn.relu(c + x), None


@broken(jnp.int32(100), advice="jnp.asarray(init, jnp.float32)")
def rounded_to_cents(c, x):
    """Two decimals are no whole number."""
    return jnp.round(c * 1.05, 2), x  # <- here


@broken(jnp.int32(100), advice="jnp.asarray(init, jnp.float32)")
def rounded_to_cents_by_a_method(c, x):
    """The same as a method."""
    y = (c * 1.05).round(2)  # <- here
    return y, x


@broken(jnp.int32(100), advice="(c * 1.05).round().astype(jnp.int32)")
def rounded_by_a_method(c, x):
    """A whole number."""
    y = (c * 1.05).round()  # <- here
    return y, x


@broken((jnp.float32(0), jnp.int32(0)), advice="is_done.astype(jnp.int32)")
def flags_that_choose(s, x):
    """A flag is cast where it is returned, and not where it chooses."""
    total, _ = s
    is_done = (x > 2) & (total > 0)  # <- here
    return (jnp.where(is_done, total, total + x), is_done), None


@broken(jnp.zeros((3, 3), jnp.int32), jnp.ones((4, 3, 3), jnp.int32))
def game_of_life(board, x):
    """The next board is a board of flags."""
    n = sum(jnp.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - board
    return (n == 3) | ((board == 1) & (n == 2)), None  # <- here


@broken(jnp.float16(0), jnp.full((4, 8), 1e3))
def mean_of_many(c, x):
    """Half precision must not add up what float32 adds up."""
    return c * 0 + jnp.mean(x), None  # <- here
