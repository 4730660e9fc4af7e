"""Bodies whose carry changes its shape."""

import jax
import jax.numpy as jnp

from tests.messages.broken import broken


@broken(jnp.zeros(1))
def grown(c, x):
    """An array that gets longer at each step."""
    return jnp.concatenate([c, x[None]]), None  # <- here


@broken(jnp.zeros((1, 2)), jnp.ones((3, 2)))
def grown_rows(c, x):
    """A matrix that gets a row at each step."""
    longer = jnp.vstack([c, x])  # <- here
    return longer, None


@broken(jnp.zeros(2))
def appended(c, x):
    """`append`, as in a list."""
    return jnp.append(c, x), None  # <- here


@broken(jnp.ones((3, 1)))
def forgotten_keepdims(c, x):
    """A mean that drops the axis it is taken over."""
    centre = c.mean(axis=1)  # <- here
    return centre, x


@broken(jnp.ones((3, 1)), jnp.ones((4, 3, 2)))
def broadcast_after_a_reduction(c, x):
    """A reduction without keepdims that broadcasts to a square."""
    centre = x.mean(axis=1)  # <- here
    return c + centre, None


@broken(jnp.ones((1, 3)))
def squeezed(c, x):
    """An axis of one is dropped."""
    return jnp.squeeze(c) * x, None  # <- here


@broken(jnp.ones((1, 3)))
def indexed(c, x):
    """A row is taken in place of the matrix of one row."""
    row = c[0]  # <- here
    return row * x, None


@broken(jnp.ones(3))
def new_axis(c, x):
    """An axis more."""
    return c[None] * x, None  # <- here


@broken(jnp.ones((2, 3)))
def transposed(c, x):
    """Rows become columns."""
    return c.T * x, None  # <- here


@broken(jnp.ones((2, 3, 4)))
def swapped_axes(c, x):
    """Two of three axes change places."""
    return jnp.swapaxes(c, 1, 2), x  # <- here


@broken(jnp.ones((2, 3)))
def flattened(c, x):
    """A matrix is laid out flat."""
    flat = c.reshape(-1)  # <- here
    return flat * x, None


@broken(jnp.float32(0), jnp.ones((4, 3)))
def scalar_init_for_a_vector(c, x):
    """A scalar initial value meets vectors."""
    return c + x, None  # <- here


@broken(0.0, jnp.ones((4, 3)))
def literal_init_for_a_vector(c, x):
    """The same with a Python scalar."""
    return c + x, None  # <- here


@broken(jnp.int32(0), jnp.ones((4, 3)))
def scalar_of_another_type(c, x):
    """Shape and dtype differ."""
    return c + x, None  # <- here


@broken(jnp.zeros(()), advice=False)
def stacked(c, x):
    """Each step doubles the array: nobody knows what was meant."""
    return jnp.stack([c, c + x]), None  # <- here


@broken(jnp.zeros(3), advice=False)
def shrunk(c, x):
    """Each step drops an element."""
    return c[1:] * x, None  # <- here


@broken(jax.random.key(0))
def key_split_and_not_unpacked(c, x):
    """Both halves of a split key are returned."""
    return jax.random.split(c), x  # <- here


@broken((jax.random.key(0), jnp.float32(0)))
def key_of_the_wrong_kind(c, x):
    """A raw key in place of a typed one."""
    key, total = c
    raw = jax.random.key_data(key)  # <- here
    return (raw, total + x), None


@broken((jnp.zeros(2), jnp.zeros(3)))
def swapped_components(c, x):
    """Two components change places."""
    return (c[1], c[0]), x  # <- here


@broken(jnp.ones(3))
def row_matrix(c, x):
    """`atleast_2d` puts an axis in front."""
    return jnp.atleast_2d(c) + x, None  # <- here


@broken(jnp.ones(3), advice=False)
def reduced_to_a_scalar(c, x):
    """The mean takes the place of the vector."""
    return jnp.mean(c) + x, None  # <- here


@broken(jnp.ones((3, 3)), advice=False)
def diagonal(c, x):
    """The diagonal takes the place of the matrix, of which no one knows the rest."""
    return jnp.diagonal(c)[:2] + x, None  # <- here


@broken(jnp.ones(3), advice=False)
def differences(c, x):
    """`diff` is one shorter."""
    return jnp.diff(c) * x, None  # <- here


@broken(jnp.ones(5))
def convolved(c, x):
    """A full convolution is longer."""
    smooth = jnp.convolve(c, jnp.ones(3) / 3)  # <- here
    return smooth * x, None


@broken(jnp.ones(3), advice=False)
def outer_product(c, x):
    """A vector becomes a matrix."""
    return jnp.outer(c, c) * x, None  # <- here


@broken(jnp.ones(3))
def padded(c, x):
    """One element is padded at each step."""
    return jnp.pad(c, (0, 1)) * x, None  # <- here


@broken(jnp.ones(2), advice=False)
def repeated(c, x):
    """Each element twice, at each step."""
    return jnp.repeat(c, 2) * x, None  # <- here


@broken(jnp.ones((2, 3)))
def einsum_transposes(c, x):
    """The letters come back in another order."""
    return jnp.einsum("ij->ji", c) * x, None  # <- here


@broken(jnp.ones(3), jnp.ones((4, 3, 5)), advice=False)
def matrix_of_another_width(c, x):
    """A product with a matrix that is not square."""
    return c @ x, None  # <- here


@broken({"h": jnp.zeros((1, 3))}, jnp.ones((4, 3)))
def batch_axis_lost(c, x):
    """A sum over the batch forgets the axis, and broadcasting hides it."""
    h = c["h"] + x
    return {"h": h.sum(0)}, None  # <- here


@broken(jnp.zeros((2, 1)), jnp.ones((4, 2)), advice=False)
def column_and_row(c, x):
    """A column plus a row is a matrix."""
    return c + x, None  # <- here


@broken(jnp.ones((4, 2)), advice=False)
def largest_of_each_row(c, x):
    """The maximum over an axis takes the array's place."""
    best = jnp.max(c, axis=1)  # <- here
    return best * x, None


@broken(jnp.ones((4, 4)), advice=False)
def normalised_wrongly(c, x):
    """Norms without keepdims, of a square matrix, in a smaller carry."""
    norms = jnp.linalg.norm(c, axis=0)  # <- here
    return norms * x, None


@broken((jnp.zeros(2), jnp.zeros(())))
def one_of_two_grows(c, x):
    """A history beside a value."""
    history, value = c
    value = value + x
    return (jnp.append(history, value), value), None  # <- here
