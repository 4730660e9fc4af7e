"""Effects run in the right number and order where `jax.lax`'s loops drop or repeat some."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import loops


def logged(run):
    """What `run(log)` appends to a list through callbacks, once all of them are done."""
    log = []
    jax.block_until_ready(run(log.append))
    jax.effects_barrier()
    return log


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_effect_of_constants_is_not_moved_out_of_the_loop(wrap, ordered):
    """A callback on a value that is the same at each step runs at each step under grad."""

    def run(append):
        def body(c, x):
            jax.debug.callback(lambda v: append(float(v)), jnp.float32(7), ordered=ordered)
            return c * x, None

        return wrap(jax.grad(lambda c: loops.scan(body, c, jnp.arange(1.0, 4.0))[0]))(1.0)

    assert [7.0] * 3 == logged(run)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_condition_runs_its_effects_each_time(wrap, ordered):
    """A callback in a condition runs once more than the body, in order if asked."""

    def run(append):
        def cond(i):
            jax.debug.callback(lambda v: append(int(v)), i, ordered=ordered)
            return i < 3

        return wrap(lambda n: loops.while_loop(cond, lambda i: i + 1, n))(0)

    assert [0, 1, 2, 3] == logged(run)


def test_condition_and_body_take_turns():
    """Ordered effects of condition and body come out as Python runs them."""

    def run(append):
        def say(word, i):
            jax.debug.callback(lambda v: append((word, int(v))), i, ordered=True)

        def cond(i):
            say("cond", i)
            return i < 2

        def body(i):
            say("body", i)
            return i + 1

        return jax.jit(lambda n: loops.while_loop(cond, body, n))(0)

    assert [("cond", 0), ("body", 0), ("cond", 1), ("body", 1), ("cond", 2)] == logged(run)


@pytest.mark.parametrize("ordered", [False, True])
def test_io_callbacks_run_under_grad(ordered):
    """A gradient runs the io_callbacks of the forward pass, once each."""

    def run(append):
        def body(c, x):
            io_callback(lambda v: append(float(v)), None, x, ordered=ordered)
            return c * x, None

        return jax.grad(lambda c: loops.scan(body, c, jnp.arange(1.0, 4.0))[0])(1.0)

    assert [1.0, 2.0, 3.0] == logged(run)


def test_an_io_callback_that_lanes_would_repeat_is_refused_by_name():
    """Where lanes end at different steps an io_callback would run for lanes that are done."""

    def count_to(n):
        def body(i):
            io_callback(lambda v: None, None, i)
            return i + 1

        return loops.while_loop(lambda i: i < n, body, 0)

    with pytest.raises(
        NotImplementedError, match=r"^IOEffect not supported in .*Make the predicate"
    ):
        jax.vmap(count_to)(jnp.array([1, 3]))


def test_an_io_callback_in_a_loop_that_lanes_share_runs():
    """Where all lanes run the same number of steps, the callback runs once a step."""

    def run(append):
        def body(s):
            io_callback(lambda v: append(int(v)), None, s[0], ordered=True)
            return s[0] + 1, s[1] * 2

        return jax.vmap(lambda x: loops.while_loop(lambda s: s[0] < 2, body, (0, x)))(jnp.ones(2))

    assert [0, 1] == logged(run)
