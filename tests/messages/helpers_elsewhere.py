"""Helpers of a user's that stand in another file than the body that calls them."""

import jax
import jax.numpy as jnp
import numpy as np


def layer_norm(x):
    """Normalise in float32."""
    wide = x.astype(jnp.float32)  # <- here (norm_in_another_file)
    mean = wide.mean(-1, keepdims=True)
    return (wide - mean) / jnp.sqrt(wide.var(-1, keepdims=True) + 1e-6)


@jax.jit
def score(logits):
    """A score for each row."""
    return logits.sum(axis=-1)  # <- here (score_in_another_file)


def global_norm(tree):
    """The norm of all leaves together, in float32."""
    leaves = jax.tree.leaves(tree)
    wide = [leaf.astype(jnp.float32) for leaf in leaves]  # <- here (clipped_by_another_file)
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in wide))


def scaled(q):
    """Divide by the square root of the width, as NumPy has it."""
    return q / np.sqrt(q.shape[-1])  # <- here (scaled_in_another_file)
