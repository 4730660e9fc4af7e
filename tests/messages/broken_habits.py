"""Bodies in the ways that Python lets one write them: in place, by comprehension, on one line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import loops
from tests.messages.broken import broken

SIZE, RATE = np.int64(4), np.float32(0.1)


@broken(
    lambda: {"rows": jnp.zeros((4, 2), jnp.float32), "next": jnp.int32(0)},
    lambda: jnp.ones((3, 2), jnp.float32),
    x64=True,
)
def place_in_a_ring(s, x):
    """Under x64 a NumPy integer of the module's is int64."""
    rows = s["rows"].at[s["next"]].set(x)
    return {"rows": rows, "next": (s["next"] + 1) % SIZE}, None  # <- here


@broken(
    {"rows": jnp.zeros((4, 2)), "next": jnp.int32(0)},
    jnp.ones((3, 2)),
    advice="jnp.mod(s['next'] + 1, 4)",
)
def place_by_a_float(s, x):
    """What is needed as an index was divided by a whole float."""
    rows = s["rows"].at[s["next"]].set(x)
    place = jnp.mod(s["next"] + 1, 4.0)  # <- here
    return {"rows": rows, "next": place}, None


@broken({"rows": jnp.zeros((4, 2)), "n": jnp.int32(0)}, jnp.ones((3, 2)))
def rows_added_in_place(s, x):
    """A key is assigned to, another counted up."""
    s["rows"] = jnp.vstack([s["rows"], x[None]])  # <- here
    s["n"] += 1
    return s, None


@broken(jnp.zeros(3), jnp.ones((4, 5)), advice=False)
def queue_that_is_sorted(q, x):
    """All rows are compared: no buffer does the same."""
    q = jnp.sort(jnp.concatenate([q, x]))[::-1]  # <- here
    return q, None


@broken(jnp.zeros(4), jnp.ones((4, 6)), advice="h[0]")
def histogram_with_its_edges(c, x):
    """A pair of counts and edges."""
    h = jnp.histogram(x, bins=4)  # <- here
    return h, c


@broken(lambda: jnp.int32(0), lambda: jax.random.split(jax.random.key(0), 4), x64=True)
def random_walk(c, key):
    """Under x64 whole random numbers are int64."""
    step = jax.random.randint(key, (), -1, 2)
    return c + step, c  # <- here


@broken({"a": jnp.int32(4), "b": jnp.float32(1), "c": jnp.ones(2, jnp.bfloat16)})
def halved_by_comprehension(c, x):
    """One of several leaves changes its type."""
    return {k: v / 2 for k, v in c.items()}, x  # <- here


@broken({"a": jnp.zeros(2), "b": jnp.zeros(2)}, jnp.ones((4, 2)), advice=False)
def keys_that_are_computed(c, x):
    """Every key gets another name."""
    new = {}
    for k, v in c.items():
        new[k + "_new"] = v + x  # <- here
    return new, None


@broken(jnp.int32(1))
def walrus(c, x):
    """A name bound in the middle of an expression."""
    return (new := c * 0.5), new  # <- here


@broken(jnp.int32(1), given=("fast",))
def chain_of_choices(mode, c, x):
    """A rate chosen by several conditions."""
    rate = 0.5 if mode == "fast" else 0.1 if mode == "slow" else 1
    return c * rate if mode != "stop" else c, x  # <- here


@broken({"n": jnp.int32(0), "s": jnp.float32(0)})
def augmented_in_place(c, x):
    """`+=` with a float."""
    c["n"] += 0.5  # <- here
    c["s"] += x
    return c, None


@broken((jnp.int32(1), jnp.ones(2), jnp.zeros(3)))
def star_expression(c, x):
    """The rest is passed on."""
    first, *rest = c
    return (first * 0.5, *rest), x  # <- here


@broken((jnp.ones(2), jnp.zeros(3)), advice=False)
def one_before_the_rest(c, x):
    """One component more, in front of the rest."""
    h, *rest = c
    return (h * x, h, *rest), None  # <- here


@broken(jnp.ones(3, jnp.bfloat16), jnp.ones((4, 3), jnp.bfloat16))
def keyword_only(c, x, *, rate=RATE):
    """A default that is strongly typed."""
    return c - rate * x, None  # <- here


@broken(jnp.ones((1, 3)), jnp.ones((4, 3)))
@functools.partial(jax.jit, static_argnames=("is_summed",))
def jitted_with_a_flag(c, x, is_summed=True):
    """A static argument chooses what is returned."""
    y = (c + x).sum(axis=0)  # <- here
    return y if is_summed else c, None


@broken(jnp.int32(4))
def selected_with_a_float(c, x):
    """The default of `select` decides the type."""
    return jnp.select([c > 2, c > 1], [c - 1, c], default=0.0), x  # <- here


@broken((jnp.int32(0), jnp.float32(0)))
def both_branches_in_floats(s, x):
    """Two components through a cond, of which one widens."""
    n, total = s

    def yes(n, total):
        return n + 1.0, total + x

    def no(n, total):
        return n * 1.0, total  # <- here

    return jax.lax.cond(x > 2, yes, no, n, total), None


@broken((jnp.int32(0), jnp.ones((2, 3))), advice="tuple(out)")
def branches_return_lists(s, x):
    """Both branches return a list for a tuple."""
    n, v = s
    out = jax.lax.cond(x > 2, lambda: [n + 1, v * x], lambda: [n, v])  # <- here
    return out, None


@broken((jnp.ones(3), jnp.ones(3)))
def gradients_of_both(s, x):
    """A comprehension over a tuple makes a list."""
    grads = jax.grad(lambda a, b: (a * b).sum() * x, argnums=(0, 1))(*s)
    return [p - 0.1 * g for p, g in zip(s, grads, strict=True)], None  # <- here


@broken(jnp.ones((2, 3), jnp.bfloat16))
def checkpointed_helper(c, x):
    """A helper that is computed again on the way back."""

    @jax.checkpoint
    def block(h):
        return jnp.tanh(h * x)  # <- here

    return block(c), None


@broken(jnp.float32(0), advice="loops.scan(inner, c, jnp.ones(3) * x)[0]")
def both_results_of_a_scan(c, x):
    """The carry and the ys of a loop inside."""

    def inner(total, y):
        return total + y, total

    return loops.scan(inner, c, jnp.ones(3) * x), None  # <- here


@broken(jnp.int32(1))
def in_a_named_scope(c, x):
    """A block around the line."""
    with jax.named_scope("decay"):
        c = c * 0.9  # <- here
    return c, x


@broken({"w": jnp.ones(2), "opt": {"m": jnp.zeros(2)}}, jnp.ones((4, 2)), advice="{'m': m}")
def value_for_its_dictionary(c, g):
    """The only value of a dictionary in its place."""
    m = 0.9 * c["opt"]["m"] + g  # <- here
    return {"w": c["w"] - 0.1 * m, "opt": m}, None


@broken(jnp.int32(0), bounds=(0, 4), advice="jnp.asarray(init, jnp.float32)")
def time_from_the_index(i, c):
    """The index times a step."""
    t = i * 0.1  # <- here
    return c + t


@broken((jnp.int32(0), jnp.zeros(3)), cond=lambda s: s[0] < 5, advice="(i + 1, v + 1)")
def pair_from_a_while_loop(s):
    """The pair that a scan's body would return."""
    i, v = s
    return (i + 1, v + 1), None  # <- here


@broken((jnp.zeros(3), jnp.float32(0)), bounds=(0, 5), advice="(v + i, t + 1)")
def pair_from_a_counted_loop(i, s):
    """The same in a counted loop."""
    v, t = s
    return (v + i, t + 1), None  # <- here


@broken((jnp.zeros(2), jnp.zeros(3)), advice="(h + x, c * x)")
def carry_beside_a_number(s, x):
    """The carry as a part of what is returned for it."""
    h, c = s
    return ((h + x, c * x), h.sum()), None  # <- here


@broken({"x": jnp.float32(1), "it": jnp.int32(0)}, cond=lambda s: s["it"] < 3, advice=False)
def counter_that_is_lost(s):
    """Kept as it came, the counter would never reach its end."""
    return {"x": s["x"] / 2}  # <- here


@broken((jnp.float32(1), jnp.int32(0)), cond=lambda s: s[0] > 0.1, advice="(s[0] / 2, *s[1:])")
def part_that_no_condition_reads(s):
    """What the condition does not read may be kept as it came."""
    return (s[0] / 2,)  # <- here


@broken(jnp.float32(0.5), jnp.ones((4, 3), jnp.int32), advice=False)
def integers_for_a_fraction(c, x):
    """The initial value is not made an integer."""
    return jnp.maximum(x, 1), None  # <- here
