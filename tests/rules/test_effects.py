"""Callbacks in a body run as often as the body does, and in its order."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.implementations import Implementation

X = jnp.float32(0.5)


def runs(fun, *args, compile_=jax.jit):
    """What the function's recorder was called with, call by call."""
    seen = []

    def record(value):
        seen.append(value.item())

    compile_(fun(record))(*args)
    jax.effects_barrier()
    return seen


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_body_runs_once_a_step(impl: Implementation, reverse: bool):
    """An ordered callback sees each row once, in the order in which the loop runs."""

    def fun(record):
        def step(c, x):
            jax.debug.callback(record, x, ordered=True)
            return c + x, None

        return lambda xs: impl.scan(step, 0.0, xs, reverse=reverse)

    rows = [1.0, 2.0, 3.0]
    got = runs(fun, jnp.float32(rows))
    assert got == (rows[::-1] if reverse else rows)


@pytest.mark.parametrize("unroll", [2, True])
def test_unrolled_scan_body_runs_once_a_step(impl: Implementation, unroll):
    """Unrolling repeats the body in the program, not its effects."""

    def fun(record):
        def step(c, x):
            jax.debug.callback(record, x, ordered=True)
            return c + x, None

        return lambda xs: impl.scan(step, 0.0, xs, unroll=unroll)

    assert runs(fun, jnp.float32([1.0, 2.0, 3.0])) == [1.0, 2.0, 3.0]


def test_fori_body_runs_once_a_step(impl: Implementation):
    """A fori_loop's callback sees every index once."""

    def fun(record):
        def body(i, c):
            jax.debug.callback(record, i, ordered=True)
            return c * 2.0

        return lambda x: impl.fori_loop(2, 5, body, x)

    assert runs(fun, X) == [2, 3, 4]


def test_while_condition_runs_once_more_than_the_body(impl: Implementation):
    """Condition and body take turns, the condition has the last word."""
    if impl.unrolls:
        pytest.skip("compiled, a Python loop has no concrete condition")

    def fun(record):
        def cond(c):
            jax.debug.callback(record, c, ordered=True)
            return c < 3

        def body(c):
            jax.debug.callback(record, -c, ordered=True)
            return c + 1

        return lambda n: impl.while_loop(cond, body, n)

    assert runs(fun, jnp.int32(1)) == [1, -1, 2, -2, 3]


def test_no_step_no_effect(impl: Implementation):
    """A body that is traced but never run prints nothing."""

    def fun(record):
        def step(c, _):
            jax.debug.callback(record, c)
            return c, None

        return lambda x: impl.scan(step, x, None, length=0)

    assert runs(fun, X) == []


def test_gradient_runs_the_forward_effects_once(impl: Implementation):
    """The backward pass repeats no callback."""

    def fun(record):
        def step(c, x):
            jax.debug.callback(record, x)
            return jnp.sin(c) * x, None

        return jax.grad(lambda c: impl.scan(step, c, jnp.float32([1.0, 2.0, 3.0]))[0])

    assert sorted(runs(fun, X)) == [1.0, 2.0, 3.0]


def test_batch_runs_the_effects_of_each_lane(impl: Implementation):
    """A callback in a batched loop runs for each lane and each step."""

    def fun(record):
        def step(c, _):
            jax.debug.callback(record, c)
            return c + 1.0, None

        return jax.vmap(lambda c: impl.scan(step, c, None, length=2)[0])

    assert sorted(runs(fun, jnp.float32([0.0, 10.0]))) == [0.0, 1.0, 10.0, 11.0]


def test_eager_call_runs_the_effects_too(impl: Implementation):
    """Outside jit a body's callback runs once a step as well."""

    def fun(record):
        def step(c, x):
            jax.debug.callback(record, x, ordered=True)
            return c, None

        return lambda xs: impl.scan(step, 0.0, xs)

    assert runs(fun, jnp.float32([1.0, 2.0]), compile_=lambda fun: fun) == [1.0, 2.0]


def test_debug_print_in_a_body(impl: Implementation, capfd: pytest.CaptureFixture):
    """`jax.debug.print` prints a line each step, in order if asked to."""

    def body(i, c):
        jax.debug.print("step {i}", i=i, ordered=True)
        return c

    jax.jit(lambda x: impl.fori_loop(0, 3, body, x))(X).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["step 0", "step 1", "step 2"]


def test_pure_callback_in_a_body(impl: Implementation):
    """A value that comes from the host takes part in the loop."""
    double = lambda c: jax.pure_callback(lambda v: v * 2, jax.ShapeDtypeStruct((), c.dtype), c)
    fun = lambda x: impl.scan(lambda c, _: (double(c), None), x, None, length=3)[0]
    assert float(jax.jit(fun)(X)) == 4.0
