"""Bodies of those who train and run models: states of optimizers, caches, attention, sampling."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.messages.broken import broken
from tests.messages.helpers_elsewhere import global_norm, scaled


class Moments(NamedTuple):
    """One part of an optimizer's chain."""

    count: Any
    mu: Any


class Empty(NamedTuple):
    """A part that has no state."""


class Trace(NamedTuple):
    """A part with one field."""

    trace: Any


PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
HALF = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
ROWS = jnp.ones((4, 5, 3))
HALF_ROWS = ROWS.astype(jnp.bfloat16)


def loss(params, x):
    """A loss without targets."""
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)


@broken(
    (PARAMS, (Moments(jnp.int32(0), PARAMS), Empty())),
    ROWS,
    advice="(Moments(first.count + 1, mu), *state[1][1:])",
)
def chain_without_its_empty_part(state, x):
    """The part without a state is forgotten."""
    params, (first, _) = state
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, first.mu, jax.grad(loss)(params, x))
    params = jax.tree.map(lambda p, m: p - 1e-2 * m, params, mu)
    return (params, (Moments(first.count + 1, mu),)), None  # <- here


@broken((PARAMS, (Moments(jnp.int32(0), PARAMS), Empty())), ROWS, advice="tuple(new)")
def chain_as_a_list(state, x):
    """The parts of a chain in a list."""
    params, chain = state
    new = []  # <- here
    for part in chain:
        updated = part._replace(count=part.count + 1) if isinstance(part, Moments) else part
        new.append(updated)
    return (params, new), None


@broken((PARAMS, Trace(PARAMS)), ROWS, advice="state[1]._replace(trace=velocity)")
def trace_without_its_class(state, x):
    """The only field of a class in the place of the class."""
    params, opt = state
    grads = jax.grad(loss)(params, x)
    velocity = jax.tree.map(lambda t, g: 0.9 * t + g, opt.trace, grads)  # <- here
    return (jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity), None


@broken((HALF, jnp.int32(0)), HALF_ROWS, advice="(g * scale).astype(g.dtype)")
def clipped_by_another_file(state, x):
    """A norm in float32 widens all gradients."""
    params, step = state
    grads = jax.grad(loss)(params, x)
    scale = jnp.minimum(1.0, 1.0 / (global_norm(grads) + 1e-6))
    grads = jax.tree.map(lambda g: g * scale, grads)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return (params, step + 1), None


@broken((HALF, HALF), HALF_ROWS)
def average_with_a_numpy_decay(state, x):
    """A NumPy float32 is strongly typed."""
    params, average = state
    decay = np.float32(0.99)
    average = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, average, params)  # <- here
    return (params, average), None


@broken((PARAMS, jnp.int32(1024)), ROWS, advice="jnp.asarray(init[1], jnp.float32)")
def integer_loss_scale(state, x):
    """A scale that starts as an integer and is halved."""
    params, scale = state
    is_finite = jnp.isfinite(scale * loss(params, x))
    scale = jnp.where(is_finite, scale * 2, jnp.maximum(scale / 2, 1))  # <- here
    return (params, scale), None


@broken({"m": jnp.zeros((4, 3)), "step": jnp.int32(0)}, jnp.ones((5, 4), bool), advice=False)
def mask_for_each_leaf(state, mask):
    """A mask over the batch makes a batch of the counter."""
    new = {"m": state["m"] + 1.0, "step": state["step"] + 1}
    keep = lambda n, o: jnp.where(mask.reshape((-1,) + (1,) * (n.ndim - 1)), n, o)  # <- here
    return jax.tree.map(keep, new, state), None


@broken((PARAMS, jnp.float32(0)), ROWS, advice=False)
def loss_of_each_example(state, x):
    """The auxiliary output is one for each example."""
    params, total = state

    def losses(p):
        each = ((x @ p["w"] + p["b"]) ** 2).sum(-1)
        return each.mean(), each

    (_, each), grads = jax.value_and_grad(losses, has_aux=True)(params)
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), total + each), None  # <- here


LAST_ROW = "jnp.roll(losses, -1, 0).at[-1].set(loss(params, x))"


@broken((PARAMS, [jnp.float32(0)]), ROWS, advice=LAST_ROW)
def list_of_losses(state, x):
    """A list that is longer at each step, under the name it had."""
    params, losses = state
    losses = losses + [loss(params, x)]  # noqa: RUF005  as users write it  # <- here
    return (params, losses), None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """A layer."""

    w: Any
    b: Any


@broken(lambda: Linear(**PARAMS), ROWS)
def layer_as_its_leaves(layer, x):
    """The gradients of two arguments are a pair."""
    grads = jax.grad(lambda w, b: jnp.mean((x @ w + b) ** 2), argnums=(0, 1))(layer.w, layer.b)
    return jax.tree.map(lambda p, g: p - 0.1 * g, (layer.w, layer.b), grads), None  # <- here


@broken(jnp.zeros((2, 4), jnp.bfloat16), jnp.ones((3, 2, 4), jnp.bfloat16))
def attention_scaled_by_numpy(h, x):
    """A square root of NumPy's is strongly typed."""
    scores = jnp.einsum("bd,cd->bc", h, x)
    scores = scores / np.sqrt(x.shape[-1])  # <- here
    return h + jax.nn.softmax(scores, axis=-1) @ x, None


@broken(jnp.zeros((2, 4), jnp.bfloat16), jnp.ones((3, 2, 4), jnp.bfloat16))
def attention_in_float32(h, x):
    """A softmax in float32 on purpose."""
    scores = jnp.einsum("bd,cd->bc", h, x)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)  # <- here
    out = jnp.einsum("bc,cd->bd", weights, x)
    return h + out, None


@broken(jnp.zeros((2, 4), jnp.bfloat16), jnp.ones((3, 2, 4), jnp.bfloat16))
def scaled_in_another_file(h, x):
    """The same in a helper of another module, which is named; the call is what can change."""
    return h + scaled(x), None


@broken({"k": jnp.zeros((2, 1, 4)), "v": jnp.zeros((2, 1, 4))}, jnp.ones((3, 2, 4)))
def cache_that_grows(cache, x):
    """Keys and values of all that came before."""
    k = jnp.concatenate([cache["k"], x[:, None]], axis=1)  # <- here
    v = jnp.concatenate([cache["v"], x[:, None] * 2], axis=1)
    return {"k": k, "v": v}, None


@broken((jax.random.key(0), jnp.zeros((2, 1), jnp.int32)), jnp.ones((3, 2, 5)))
def sampled_without_an_axis(state, logits):
    """A token for each row, where a column was."""
    key, token = state
    key, sub = jax.random.split(key)
    token = jax.random.categorical(sub, logits + token, axis=-1)  # <- here
    return (key, token), token


@broken(jnp.zeros(3), jnp.ones((4, 5)))
def best_so_far(best, x):
    """`top_k` returns the places as well."""
    return jax.lax.top_k(jnp.concatenate([best, x]), 3), None  # <- here


@broken(jnp.zeros(4), jnp.ones((3, 2, 4)), advice="jnp.broadcast_to(init, (2, 4))")
def hidden_state_without_a_batch(h, x):
    """Products with weights between the data and the state."""
    w = jnp.eye(4)
    return jnp.tanh(x @ w + h @ w), None  # <- here
