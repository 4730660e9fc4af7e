"""The key reuse checker on loops: what it refuses and what it lets pass, beside JAX's loops."""

import jax
import jax.numpy as jnp
import pytest
from jax import random
from jax.errors import KeyReuseError

from tests.helpers.implementations import JAX, OURS, Implementation


def draw_and_split(key, _):
    """A body that hands on a fresh key."""
    key, sub = random.split(key)
    return key, random.uniform(sub)


def walk(loops: Implementation, key):
    """A while loop that carries a key and splits it; it ends when the sum is large."""

    def body(carry):
        key, drawn = draw_and_split(carry[0], None)
        return key, carry[1] + drawn

    return loops.while_loop(lambda carry: carry[1] < 3.0, body, (key, 0.0))


def carry_is_split(loops, key):
    """A carry that is split at each step, and used once after the loop."""
    key, _ = loops.scan(draw_and_split, key, None, length=3)
    return random.uniform(key)


def rows_of_keys(loops, key):
    """A key for each step, in xs."""
    return loops.scan(lambda c, k: (c, random.uniform(k)), 0.0, random.split(key, 3))


def index_folded_in(loops, key):
    """One key, with the index folded in."""
    return loops.fori_loop(
        0, 3, lambda i, c: c + random.uniform(random.fold_in(key, i)), jnp.float32(0.0)
    )


def while_carry_is_split(loops, key):
    """A while loop's carry that is split at each step, and used once after the loop."""
    return random.uniform(walk(loops, key)[0])


def condition_draws(loops, key):
    """A condition that consumes a key, and a body that hands on a fresh one."""
    return loops.while_loop(lambda k: random.uniform(k) < 0.5, lambda k: random.fold_in(k, 1), key)


def nested_splits(loops, key):
    """A loop in a loop, each with its own keys."""

    def body(key, _):
        key, sub = random.split(key)
        return key, carry_is_split(loops, sub)

    return loops.scan(body, key, None, length=2)


def key_passes_through(loops, key):
    """A key that the loop carries and does not consume, used once afterwards."""
    _, key = loops.fori_loop(0, 3, lambda i, c: (c[0] + 1.0, c[1]), (0.0, key))
    return random.uniform(key)


def constant_is_consumed(loops, key):
    """The same key at each step, from outside."""
    return loops.scan(lambda c, _: (c, random.uniform(key)), 0.0, None, length=3)


def constant_is_consumed_two_loops_deep(loops, key):
    """The same key at each step of the outer loop and of the inner one."""
    inner = lambda i, c: c + random.uniform(key)
    outer = lambda c, _: (loops.fori_loop(0, 2, inner, c), None)
    return loops.scan(outer, jnp.float32(0.0), None, length=3)


def carry_is_not_replaced(loops, key):
    """The same key at each step, through the carry."""
    return loops.scan(
        lambda c, _: ((c[0], c[1] + random.uniform(c[0])), None), (key, 0.0), None, length=3
    )


def carry_is_not_fresh(loops, key):
    """Two keys that change places after one of them is consumed."""
    swap = lambda c, _: ((c[1], c[0]), random.uniform(c[0]))
    return loops.scan(swap, tuple(random.split(key)), None, length=3)


def consumed_twice_in_a_step(loops, key):
    """A body that draws with the key that it splits."""
    return loops.scan(lambda k, _: (random.split(k)[0], random.uniform(k)), key, None, length=3)


def while_constant(loops, key):
    """A while loop's body that consumes the same key at each step."""
    return loops.while_loop(lambda c: c < 3.0, lambda c: c + random.uniform(key), 0.0)


def condition_constant(loops, key):
    """A condition that consumes the same key at each step."""
    return loops.while_loop(lambda c: random.uniform(key) < c, lambda c: c - 0.1, 1.0)


def condition_of_a_kept_key(loops, key):
    """A condition that consumes a key that the body hands on."""
    return loops.while_loop(
        lambda c: random.uniform(c[0]) < 0.5, lambda c: (c[0], c[1] + 1), (key, 0)
    )


def condition_and_body(loops, key):
    """A condition and a body that consume the same key."""
    return loops.while_loop(
        lambda k: random.uniform(k) < 0.5, lambda k: draw_and_split(k, None)[0], key
    )


def used_after_a_scan(loops, key):
    """A key that a scan has consumed."""
    return carry_is_split(loops, key), random.uniform(key)


def used_after_a_while(loops, key):
    """A key that a while loop has consumed."""
    return walk(loops, key), random.uniform(key)


def rows_used_after_a_scan(loops, key):
    """Keys that a scan has consumed row by row."""
    keys = random.split(key, 3)
    ys = loops.map(random.uniform, keys)
    return ys, jax.vmap(random.uniform)(keys)


def result_used_twice(loops, key):
    """A fresh key from a loop, consumed twice."""
    key, _ = walk(loops, key)
    return random.uniform(key) + random.uniform(key)


SCAN, BODY = "scan body function leads", "while_loop body function leads"
COND, BOTH = "while_loop cond function leads", "cond and body functions both use the same key"
GOOD = [
    carry_is_split,
    rows_of_keys,
    index_folded_in,
    while_carry_is_split,
    condition_draws,
    nested_splits,
    key_passes_through,
]
BAD = {
    constant_is_consumed: SCAN,
    constant_is_consumed_two_loops_deep: SCAN,
    carry_is_not_replaced: SCAN,
    carry_is_not_fresh: SCAN,
    consumed_twice_in_a_step: "is already consumed",
    while_constant: BODY,
    condition_constant: COND,
    condition_of_a_kept_key: COND,
    condition_and_body: BOTH,
    used_after_a_scan: "is already consumed",
    used_after_a_while: "is already consumed",
    rows_used_after_a_scan: "is already consumed",
    result_used_twice: "is already consumed",
}
both_implementations = pytest.mark.parametrize("loops", [OURS, JAX], ids=str)


def check(fun, loops: Implementation) -> None:
    """Traces and compiles the function with the checker on; raises if a key is reused."""
    with jax.debug_key_reuse(True):
        jax.jit(lambda key: fun(loops, key)).lower(random.key(0))


@both_implementations
@pytest.mark.parametrize("fun", GOOD, ids=lambda fun: fun.__name__)
def test_passes(fun, loops: Implementation):
    """A program that consumes each key once passes."""
    check(fun, loops)


@both_implementations
@pytest.mark.parametrize(
    ("fun", "message"), BAD.items(), ids=lambda part: getattr(part, "__name__", "message")
)
def test_refused(fun, message, loops: Implementation):
    """A program that consumes a key twice is refused, with words that say in which function."""
    with pytest.raises(KeyReuseError, match=message):
        check(fun, loops)


def test_eager_loops():
    """Called without jit, a loop refuses a key that was consumed before, and consumes its own."""
    with jax.debug_key_reuse(True):
        key = random.key(0)
        OURS.scan(draw_and_split, key, None, length=3)
        with pytest.raises(KeyReuseError, match="Previously-consumed key passed to scan"):
            OURS.scan(draw_and_split, key, None, length=3)
        with pytest.raises(KeyReuseError, match=SCAN):
            constant_is_consumed(OURS, random.key(1))


def used_after_a_while_with_condition_constants(loops, key):
    """A consumed key where the condition has a constant, so that the key stands further behind."""
    limit = jnp.sin(jnp.float32(1.0))

    def body(carry):
        key, drawn = draw_and_split(carry[0], None)
        return key, carry[1] + drawn

    return loops.while_loop(lambda c: c[1] < limit, body, (key, 0.0)), random.uniform(key)


def last_condition_consumes(loops, key):
    """A final key that the condition has consumed when it ended the loop."""
    return random.uniform(condition_draws(loops, key))


def handed_on_and_used_beside(loops, key):
    """A key that a loop reads and hands on, consumed together with what the loop returns."""
    limit = jnp.sin(jnp.float32(1.0))
    cond = lambda c: random.key_data(c[0])[0].astype(jnp.float32) + c[1] < limit
    same, _ = loops.while_loop(cond, lambda c: (c[0], c[1] + 1.0), (key, 0.0))
    return random.uniform(same), random.uniform(key)


@pytest.mark.parametrize(
    "fun",
    [
        used_after_a_while_with_condition_constants,
        last_condition_consumes,
        handed_on_and_used_beside,
    ],
)
def test_reuse_that_jax_does_not_see(fun):
    """Reuses are found that the signature of JAX's while loop hides."""
    with pytest.raises(KeyReuseError, match="is already consumed"):
        check(fun, OURS)


def test_the_message_says_what_to_do():
    """The message for a constant names the ways to have a key for each step."""
    with pytest.raises(KeyReuseError, match=r"input 0 of its jaxpr.*[\s\S]*fold the index"):
        check(constant_is_consumed, OURS)
