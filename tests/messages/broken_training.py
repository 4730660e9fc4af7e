"""Bodies of those who train models: optimizers, cells, normalisation, decoding."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tests.messages import helpers_elsewhere
from tests.messages.broken import broken
from tests.messages.helpers_elsewhere import layer_norm


class AdamState(NamedTuple):
    """Moments of the gradients, and a counter."""

    count: Any
    mu: Any
    nu: Any


class TrainState(NamedTuple):
    """What a training step takes and returns."""

    params: Any
    opt: Any
    step: Any


HALF = {"kernel": jnp.ones((3, 2), jnp.bfloat16), "bias": jnp.zeros(2, jnp.bfloat16)}
STATE = TrainState({"w": jnp.ones(3)}, (jnp.zeros(3),), jnp.int32(0))


@broken((HALF, AdamState(jnp.int32(0), HALF, HALF)), jnp.ones((4, 3)))
def adam_in_half_precision(state, x):
    """The correction for the first steps is computed in float32."""
    params, opt = state

    def loss(p):
        return jnp.mean((x.astype(jnp.bfloat16) @ p["kernel"] + p["bias"]) ** 2)

    grads = jax.grad(loss)(params)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt.mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, opt.nu, grads)
    count = opt.count + 1
    rate = 1e-3 / (1 - 0.9 ** count.astype(jnp.float32))  # <- here
    params = jax.tree.map(lambda p, m, v: p - rate * m / jnp.sqrt(v + 1e-8), params, mu, nu)
    return (params, AdamState(count, mu, nu)), loss(params)


@broken(
    AdamState(jnp.int32(0), jnp.zeros(3), jnp.zeros(3)),
    jnp.ones((4, 3)),
    advice="jnp.asarray(init.count, jnp.float32)",
)
def counter_divided(opt, g):
    """A counter that is made a share of the steps must start as a float."""
    share = (opt.count + 1) / 100  # <- here
    return AdamState(share, 0.9 * opt.mu + 0.1 * g, opt.nu), None


@broken((jnp.ones(3), ()), jnp.ones((4, 3)), advice=False)
def velocity_of_no_parts(state, g):
    """An empty tuple stands for a state that the first step makes."""
    params, opt = state
    velocity = g if opt == () else 0.9 * opt + g  # <- here
    return (params - 0.1 * velocity, velocity), None


@broken(STATE, jnp.ones((4, 3)), advice="type(state)(**new)")
def train_state_as_a_dictionary(state, g):
    """The fields come back under their names, in a dictionary."""
    params = {"w": state.params["w"] - g}
    new = {"params": params, "opt": state.opt, "step": state.step + 1}  # <- here
    return new, None


@broken(STATE, jnp.ones((4, 3)), advice=False)
def loss_in_the_place_of_the_state(state, g):
    """A number is put where the optimizer's state was."""
    loss = jnp.sum(state.params["w"] * g)  # <- here
    return state._replace(opt=loss), loss


@broken(
    {"params": {"w": jnp.ones((2, 2))}, "stats": {"mean": jnp.zeros(2)}},
    jnp.ones((4, 5, 2)),
    advice="h.mean(axis=0)",
)
def statistics_with_an_axis_too_many(v, x):
    """`keepdims` where the state has none."""
    h = x @ v["params"]["w"]
    mean = h.mean(axis=0, keepdims=True)  # <- here
    stats = {"mean": 0.9 * v["stats"]["mean"] + 0.1 * mean}
    return {"params": v["params"], "stats": stats}, None


@broken(
    {"params": {"w": jnp.ones((2, 2))}},
    jnp.ones((4, 5, 2)),
    advice="{**init, 'stats': {'mean': jnp.zeros((2,), jnp.float32)}}",
)
def collection_that_appears(v, x):
    """A module makes a collection of statistics at its first call."""
    h = x @ v["params"]["w"]
    updates = {"stats": {"mean": h.mean(0)}}  # <- here
    return {**v, **updates}, h.sum()


@broken((jnp.zeros((1, 4)), jnp.zeros((1, 4))), jnp.ones((3, 4)))
def lstm_that_squeezes(state, x):
    """The batch axis of one is squeezed away."""
    h, c = state
    z = x + h[0]
    c = jax.nn.sigmoid(z) * c + jax.nn.sigmoid(z + 1) * jnp.tanh(z)
    h = (jax.nn.sigmoid(z) * jnp.tanh(c)).squeeze()  # <- here
    return (h, c), h


@broken((jnp.zeros(4, jnp.bfloat16), jnp.zeros(4, jnp.bfloat16)), jnp.ones((3, 4), jnp.bfloat16))
def lstm_with_wide_weights(state, x):
    """Weights in float32 on purpose: what is kept is cast, and not they."""
    h, c = state
    w = jnp.eye(4, dtype=jnp.float32)  # <- here
    z = (x + h) @ w
    c = jax.nn.sigmoid(z) * c + jnp.tanh(z)
    return (jnp.tanh(c), c), h


@broken((jnp.zeros(3), jnp.ones(4)), jnp.ones((3, 4)), advice="(h, c)")
def state_in_the_wrong_order(state, x):
    """The two halves of a cell's state are returned in each other's place."""
    h, c = state
    c = 0.5 * c + x
    h = jnp.tanh(h) + c[:3]
    return (c, h), None  # <- here


@broken(jnp.zeros(4, jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16))
def einsum_that_accumulates(h, x):
    """The accumulation type of an einsum stays."""
    w = jnp.ones((4, 4), jnp.bfloat16)
    z = jnp.einsum("i,ij->j", x, w, preferred_element_type=jnp.float32)  # <- here
    return jnp.tanh(z + h), None


@broken(jnp.zeros((2, 4)), jnp.ones((3, 2, 4)), advice=False)
def last_of_the_batch(h, x):
    """One row of the batch takes its place."""
    h = jnp.tanh(h + x)
    return h[-1], h  # <- here


@broken(jnp.zeros(4), jnp.ones((3, 2, 4)), advice="jnp.broadcast_to(init, (2, 4))")
def state_without_a_batch(h, x):
    """The data has a batch axis, and the first state has none."""
    return jnp.tanh(0.5 * h + x), None  # <- here


@broken(jnp.ones(4, jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16))
def norm_in_another_file(c, x):
    """A helper of another module computes in float32; the body's own line is what can change."""
    return c + layer_norm(x), None


@broken(jnp.zeros((2, 1)), jnp.ones((3, 2, 5)))
def score_in_another_file(c, x):
    """A jitted helper of another module drops an axis."""
    return helpers_elsewhere.score(x), None


@broken((jnp.zeros((3, 1), jnp.int32), jnp.zeros(3)), jnp.ones((4, 3, 5)))
def tokens_that_grow(state, logits):
    """A decoder appends the tokens that it found."""
    tokens, scores = state
    best = jnp.argmax(logits + scores[:, None], axis=-1)
    tokens = jnp.concatenate([tokens, best[:, None]], axis=1)  # <- here
    return (tokens, scores + logits.max(-1)), None


@broken((jnp.zeros((3, 1), jnp.int32), jnp.zeros(3)), jnp.ones((4, 3, 5)), advice=False)
def tokens_that_are_all_read(state, logits):
    """A buffer would have tokens in it that are not found yet, and the decoder reads them all."""
    tokens, scores = state
    best = jnp.argmax(logits + scores[:, None], axis=-1) + tokens.sum(axis=1)
    tokens = jnp.concatenate([tokens, best[:, None]], axis=1)  # <- here
    return (tokens, scores + logits.max(-1)), None


@broken((jnp.zeros(3, jnp.int32), jnp.zeros(3)), jnp.ones((4, 3, 5)), advice=False)
def one_beam_more(state, logits):
    """The number of beams that are kept is not the number that came."""
    _, scores = state
    flat = (scores[:, None] + logits).reshape(-1)
    scores, index = jax.lax.top_k(flat, 4)  # <- here
    return (index % 5, scores), None


@broken(lambda: (jnp.int32(0), jnp.float32(0)), lambda: jnp.ones((4, 5), jnp.float32), x64=True)
def greedy_token(state, logits):
    """Under x64 the index of the best token is int64."""
    _, score = state
    token = logits.argmax()  # <- here
    return (token, score + logits[token]), token


@broken({"scale": jnp.float16(4), "good": jnp.int32(0)})
def loss_scale(s, x):
    """A smallest loss scale in float32."""
    finite = jnp.isfinite(x)
    smaller = jnp.maximum(s["scale"] / 2, jnp.float32(1))  # <- here
    return {"scale": jnp.where(finite, s["scale"] * 2, smaller), "good": s["good"] + finite}, None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cell:
    """A cell's state with a static label."""

    h: Any
    c: Any
    label: int = dataclasses.field(metadata={"static": True}, default=0)


@broken(Cell(jnp.zeros(2), jnp.zeros(2)), advice=False)
def static_counter(s, x):
    """A static field that counts: no label is right for every step."""
    return dataclasses.replace(s, h=s.h * x, label=s.label + 1), None  # <- here


@broken(Cell(jnp.zeros(2), jnp.zeros(2)), advice=False)
def static_field_that_is_read(s, x):
    """The first step would compute something else with the label that the others have."""
    h = s.h * x if s.label == 0 else s.h + x
    return Cell(h, s.c, label=1), None  # <- here


@broken(Cell(jnp.zeros(2), None))
def field_filled_at_the_first_step(s, x):
    """A field that is None at first, and is passed on by position."""
    c = s.h * x if s.c is None else s.c + s.h * x  # <- here
    return Cell(s.h, c), None


@broken(Cell(jnp.zeros(2), jnp.zeros(2)))
def dataclass_to_tuple(s, x):
    """The fields without their class."""
    return (s.h * x, s.c), None  # <- here


@broken((jnp.zeros(2), jnp.zeros(2)))
def tuple_to_dataclass(s, x):
    """A class around the components."""
    return Cell(s[0] * x, s[1]), None  # <- here


@broken(Cell(jnp.int32(1), jnp.zeros(2)), advice="jnp.asarray(init.h, jnp.float32)")
def field_changed_in_place(s, x):
    """A field of the carry is assigned to."""
    s.h = s.h * 0.5  # <- here
    return s, x


@broken({"w": jnp.ones((2, 2)), "m": jnp.zeros((2, 2), jnp.bfloat16)}, jnp.ones((4, 3, 2)))
def momentum_in_half_precision(s, x):
    """The gradient has the dtype of the parameters, and the momentum another."""

    def loss(w):
        return ((x @ w) ** 2).sum()

    g = jax.grad(loss)(s["w"])
    m = 0.9 * s["m"] + g  # <- here
    return {"w": s["w"] - 0.1 * m, "m": m}, None


@broken({"loss": jnp.float32(0), "history": jnp.zeros(0)})
def history_of_the_loss(s, x):
    """What is appended is computed from the carry itself."""
    loss = s["loss"] + x
    history = jnp.append(s["history"], loss)  # <- here
    return {"loss": loss, "history": history}, None
