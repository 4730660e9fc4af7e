"""Equal loops of one program: how often they are lowered, and what the module looks like."""

import jax
import jax.numpy as jnp
import pytest

import loops
from loops.primitives import scan_lowering


@pytest.fixture
def lowered(monkeypatch):
    """The lengths of the scans that have been lowered since the test began."""
    lengths = []
    plan_steps = scan_lowering.plan_steps

    def noted(length, unroll):
        lengths.append(length)
        return plan_steps(length, unroll)

    monkeypatch.setattr(scan_lowering, "plan_steps", noted)
    return lengths


def body(c, x):
    """A body whose ys a program may not need."""
    c = jnp.sin(c * WEIGHT) + x
    return c, c * x


WEIGHT = jnp.linspace(0.5, 1.0, 3)
INIT, XS = jnp.ones(3), jnp.ones((5, 3))


def four_scans(c, xs):
    """The same scan four times, one after the other."""
    for _ in range(4):
        c, _ = loops.scan(body, c, xs)
    return c


def four_scans_and_ys(c, xs):
    """The same, and all ys are needed."""
    total = jnp.float32(0)
    for _ in range(4):
        c, ys = loops.scan(body, c, xs)
        total = total + ys.sum()
    return c.sum() + total


def four_foris(c, xs):
    """The same `fori_loop` four times."""

    def step(_, c):
        return body(c, xs[0])[0]

    for _ in range(4):
        c = loops.fori_loop(0, 5, step, c)
    return c


@pytest.mark.parametrize("program", [four_scans, four_scans_and_ys, four_foris])
@pytest.mark.parametrize(
    ("transform", "times"),
    [
        (lambda f: f, 1),
        (lambda f: jax.vmap(f, axis_size=2, in_axes=None, out_axes=None), 1),
        (lambda f: lambda c, xs: jax.jvp(lambda c: f(c, xs), (c,), (c,)), 1),
        (lambda f: jax.grad(lambda c, xs: jnp.sum(f(c, xs))), 2),
        (lambda f: jax.grad(jax.checkpoint(lambda c, xs: jnp.sum(f(c, xs)))), 2),
        (jax.jit, 1),
    ],
    ids=["plain", "vmap", "jvp", "grad", "checkpoint", "jit"],
)
def test_equal_loops_with_one_body_are_lowered_once(lowered, program, transform, times):
    """Under each transformation, for each pass over the loops: forwards and backwards."""
    jax.jit(transform(program)).lower(INIT, XS)

    assert times == len(lowered)


def test_loops_in_a_function_that_is_called_again_are_in_the_module_once():
    """A loop in a jitted function is one `while` in StableHLO, however often that is called."""

    @jax.jit
    def step(c, xs):
        return loops.scan(body, c, xs)[0]

    def program(c, xs):
        for _ in range(4):
            c = step(c, xs)
        return c

    text = jax.jit(program).lower(INIT, XS).as_text()

    assert 1 == text.count("stablehlo.while")


@pytest.mark.parametrize("unroll", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length", [1, 2, 8, 9])
def test_the_body_is_in_the_module_no_more_often_than_unroll_asks(length, unroll):
    """A turn's steps and those left over; JAX calls a function for the body where it can."""

    def program(c, xs):
        return loops.scan(lambda c, x: (jnp.arctan2(c, x), None), c, xs, unroll=unroll)[0]

    text = jax.jit(program).lower(INIT, jnp.ones((length, 3))).as_text()

    one_turn = length <= unroll
    assert text.count("stablehlo.atan2") <= (length if one_turn else unroll + length % unroll)
    assert text.count("stablehlo.while") == (0 if one_turn else 1)
