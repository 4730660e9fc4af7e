"""Helpers of a user's that stand in another file than the body that calls them."""

import jax
import jax.numpy as jnp


def layer_norm(x):
    """Normalise in float32."""
    wide = x.astype(jnp.float32)  # <- here (norm_in_another_file)
    mean = wide.mean(-1, keepdims=True)
    return (wide - mean) / jnp.sqrt(wide.var(-1, keepdims=True) + 1e-6)


@jax.jit
def score(logits):
    """A score for each row."""
    return logits.sum(axis=-1)  # <- here (score_in_another_file)
