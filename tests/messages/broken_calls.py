"""Bodies that call others: methods, lambdas, vmap, custom rules, branches, loops inside."""

from collections import OrderedDict, defaultdict

import jax
import jax.numpy as jnp

import loops
from tests.messages.broken import broken


class Model:
    """A model with a method that the body calls."""

    def __init__(self, scale):
        self.scale = scale

    def forward(self, h):
        """Scale in the model's own dtype."""
        return jnp.tanh(h) * self.scale  # <- here (method_of_an_object)


MODEL = Model(jnp.float32(2))


@broken(jnp.ones(2, jnp.bfloat16))
def method_of_an_object(h, x):
    """A method widens."""
    return MODEL.forward(h), x


@broken(jnp.bfloat16(1), given=(jnp.float32(0.1),))
def partial_with_a_rate(rate, c, x):
    """The body has an argument that is filled in already."""
    return c - rate * x, None  # <- here


@broken(jnp.ones((2, 3)), jnp.ones((4, 3)), advice=False)
def vmapped_product(c, x):
    """Each row becomes a number."""
    return jax.vmap(lambda row: jnp.dot(row, x))(c), None  # <- here


@broken(jnp.ones((2, 3), jnp.int32), jnp.ones((4, 3)), advice="jnp.asarray(init, jnp.float32)")
def vmapped_widening(c, x):
    """Each row becomes one of floats."""

    def one(row):
        return row * x  # <- here

    return jax.vmap(one)(c), None


@broken(jnp.ones((2, 3)), jnp.ones((4, 3)))
def vmapped_to_another_axis(c, x):
    """The lanes come out along another axis."""
    return jax.vmap(lambda row: row * x, out_axes=1)(c), None  # <- here


@jax.custom_vjp
def rounded(x):
    """Whole numbers with the derivative of the identity."""
    return jnp.round(x).astype(jnp.int32)  # <- here (quantised)


rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))


@broken(jnp.ones(3))
def quantised(c, x):
    """A rule of its own gives integers."""
    return rounded(c), x


@broken(jnp.float32(0), advice=False)
def both_branches_stack(c, x):
    """Both branches of a cond return a vector."""

    def yes(c):
        return jnp.stack([c, c])  # <- here

    def no(c):
        return jnp.zeros(2)

    return jax.lax.cond(x > 2, yes, no, c), None


@broken(jnp.int32(0), advice=False)
def index_of_a_switch(c, x):
    """The integer chooses a branch, so it cannot start as a float."""
    branches = [lambda c: c * 1.0, lambda c: c + 0.5]  # <- here
    return jax.lax.switch(c, branches, c), x


@broken(jnp.int32(4), jnp.arange(8.0).reshape(2, 4), advice="c // 2")
def index_that_is_halved(c, x):
    """The integer is an index, so it is the division that has to change."""
    half = c / 2  # <- here
    return half, x[c]


@broken(jnp.float32(0), jnp.ones((3, 4)), advice=False)
def history_for_the_total(c, row):
    """The ys of an inner scan in the place of its carry."""
    _, history = jax.lax.scan(lambda c, x: (c + x, c), c, row)  # <- here
    return history, None


@broken((jnp.float32(0), jnp.int32(0)), advice="jnp.asarray(init[1], jnp.float32)")
def inner_counter_in_floats(c, x):
    """An inner loop counts from 0.0."""
    total, n = c
    init = (x, 0.0)
    v, k = loops.while_loop(lambda s: s[0] > 0.1, lambda s: (s[0] * 0.5, s[1] + 1), init)
    return (total + v, n + k), None  # <- here


@broken(jnp.zeros(3), advice="jnp.stack(out)")
def list_in_the_place_of_an_array(c, x):
    """A Python loop makes a list of rows."""
    out = []  # <- here
    for i in range(3):
        out.append(c[i] * x)  # noqa: PERF401
    return out, None


@broken([jnp.zeros(2), jnp.zeros(2)])
def array_in_the_place_of_a_list(s, x):
    """The elements are stacked, which is undone with none of them lost."""
    return jnp.stack([v * x for v in s]), None  # <- here


@broken(jnp.zeros((2, 2)), advice="jnp.stack((a, b * x))")
def rows_that_are_not_stacked(s, x):
    """An array is unpacked and comes back as a pair."""
    a, b = s
    return (a, b * x), None  # <- here


@broken({"h": jnp.zeros(2), "c": jnp.zeros(2)}, advice="dict(new)")
def dictionary_with_defaults(s, x):
    """A dictionary of another class."""
    new = defaultdict(float)  # <- here
    new["h"] = s["h"] * x
    new["c"] = s["c"]
    return new, None


@broken(
    {"a": jnp.zeros(2), "b": jnp.zeros(2)},
    advice='dict(OrderedDict(b=s["b"], a=s["a"] * x))',
)
def order_of_another_class(s, x):
    """The leaves of an OrderedDict come in its own order: only the keys tell them apart."""
    return OrderedDict(b=s["b"], a=s["a"] * x), None  # <- here


@broken(OrderedDict(b=jnp.zeros(2), a=jnp.zeros(2)), advice=False)
def order_that_changes(s, x):
    """Two orders of the same keys are two structures."""
    return OrderedDict(a=s["a"] * x, b=s["b"]), None  # <- here


@broken({"a": jnp.zeros(2), "b": jnp.zeros(2), "c": jnp.zeros(2)})
def key_that_is_filtered_out(s, x):
    """A comprehension leaves a key out."""
    return {k: v * x for k, v in s.items() if k != "b"}, None  # <- here


@broken({1: jnp.zeros(2), 2: jnp.zeros(2)}, advice=False)
def keys_that_move(s, x):
    """One key is lost and one gained, and not by a name that stands there."""
    return {k + 1: v * x for k, v in s.items()}, None  # <- here


@broken((), advice="jnp.roll(c, -1, 0).at[-1].set(x)")
def tuple_that_grows(c, x):
    """A tuple that is added to at each step has no type that stays; its rows in an array have."""
    return (*c, x), None  # <- here


@broken(jnp.ones(3), advice=False)
def value_and_index(c, x):
    """Two results of which neither is the carry."""
    return (jnp.max(c), jnp.argmax(c)), None  # <- here


@broken((jnp.float32(0), jnp.int32(0)), advice="(jnp.maximum(best, x), index + 1)")
def exchanged_components(c, x):
    """Two components change places: no cast would be right for them."""
    best, index = c
    return (index + 1, jnp.maximum(best, x)), None  # <- here


@broken(jnp.bool_(False), advice="jnp.asarray(init, jnp.int32)")
def flags_that_are_counted(c, x):
    """A flag becomes a number of flags."""
    return c * (x > 0) * 2, None  # <- here


@broken(jnp.zeros(3), advice="jnp.hstack([x, c])[:-1]")
def newest_first(c, x):
    """A delay line gets longer in front: not the newest row may be dropped."""
    return jnp.hstack([x, c]), None  # <- here


@broken(jnp.zeros((2, 3)), advice=False)
def window_that_overlaps(c, x):
    """Parts of the window are joined again: no buffer does the same."""
    return jnp.concatenate([c[1:], c[:1] * x, c[:1]]), None  # <- here


@broken(jnp.zeros(1), advice="jnp.append(c, c[-1] + x)[1:]")
def walk_that_is_kept(c, x):
    """Each step reads the newest row, which in a buffer is at its end."""
    return jnp.append(c, c[-1] + x), None  # <- here


@broken(jnp.zeros((0, 2)), jnp.ones((4, 2)))
def rows_from_nothing(c, x):
    """An empty array that gets rows."""
    return jnp.concatenate([c, x[None]], axis=0), None  # <- here


@broken(jnp.zeros(3, jnp.int32), bounds=(0, 3), advice="jnp.asarray(init, jnp.float32)")
def index_divided(i, c):
    """The index of a fori_loop is divided."""
    return c.at[i].set(i) + i / 2  # <- here


@broken(lambda: jnp.int32(0), bounds=lambda: (jnp.int64(0), jnp.int64(3)), x64=True)
def wide_bounds(i, c):
    """The index has the type of the bounds."""
    return c + i  # <- here


@broken(jnp.float32(0), bounds=(0, 3), advice="c + 1")
def index_returned(i, c):
    """The index is returned with the carry."""
    return i, c + 1  # <- here


@broken((jnp.float32(0), jnp.int32(0)), bounds=(0, 3), advice=False)
def counter_forgotten(i, state):
    """Only one of two components comes back, without its tuple."""
    total, _ = state
    return total + i  # <- here


@broken(jnp.zeros(4), bounds=(1, jnp.int32(4)), advice="c.at[i + 3].set(i * 1.0)")
def appended_from_one(i, c):
    """The index counts from one, and says where the row goes."""
    return jnp.append(c, i * 1.0)  # <- here


@broken(jnp.zeros(1), bounds=(0, 3), advice="jnp.append(c, c[-1] + 1)[1:]")
def walk_with_an_index(i, c):
    """A row at the index would leave the end of the buffer, which is read, empty."""
    return jnp.append(c, c[-1] + 1)  # <- here


@broken((jnp.int32(10), jnp.float32(0)), cond=lambda s: s[0] > 0, advice="n // 2", in_python=False)
def halved_until_nothing_is_left(s):
    """The condition counts on an integer: a float would be halved much longer."""
    n, x = s
    return n / 2, x + n  # <- here


@broken(jnp.ones(3), cond=lambda x: jnp.any(x > 0.1), advice=False)
def error_for_the_value(x):
    """The norm is returned in the value's place."""
    return jnp.linalg.norm(x) * 0.5  # <- here


@broken((jnp.ones(3), jnp.inf), cond=lambda s: s[1] > 0.1, advice=False)
def error_of_each_component(s):
    """The condition wants one number, and gets one for each component."""
    x, _ = s
    new = 0.5 * x  # <- here
    return new, jnp.abs(new - x)


@broken((0, jnp.bool_(False)), cond=lambda s: ~s[1], in_python=False)
def flag_from_a_where(s):
    """`where` with 1 and 0 for a flag that the condition negates."""
    i, _ = s
    return i + 1, jnp.where(i > 3, 1, 0)  # <- here


@broken({"x": jnp.float32(1), "it": 0}, cond=lambda s: s["it"] < 3)
def residual_added(s):
    """A key more, in a while loop."""
    residual = s["x"] ** 2
    return {"x": s["x"] / 2, "it": s["it"] + 1, "residual": residual}  # <- here


@broken((jnp.float32(1), None), cond=lambda s: s[0] > 0.1)
def last_value_remembered(s):
    """None where the last value will be."""
    x, _ = s
    return x / 2, x  # <- here


@broken((jnp.zeros(1), 0), cond=lambda s: s[1] < 3, advice=False)
def history_of_unknown_length(s):
    """Nothing says how long a buffer would have to be."""
    trace, n = s
    return jnp.append(trace, n * 1.0), n + 1  # <- here
