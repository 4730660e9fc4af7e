"""Loops with few checkpoints that read and write rows of a large buffer: no slot holds the buffer.

What the steps read of it is kept instead, where that is less than the buffer in every slot.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.equations import equations
from tests.helpers.implementations import JAX, OURS, Implementation
from tests.helpers.in_place import (
    SIZE,
    STEPS,
    VARIANTS,
    Step,
    Variant,
    arguments,
    copies_in_loops,
    gradient,
    gradient_of_gradient,
    loss,
    multiply_row,
    read_in_inner_loop,
    set_row,
    tangent_of_gradient,
    window,
)

SLOTS = 3


def while_as_scan(body: Callable[..., Any], init: Any, xs: Any) -> Any:
    """A scan written with `while_loop`, its ys in a buffer of the carry."""
    length = len(jax.tree.leaves(xs)[0])
    _, y = jax.eval_shape(body, init, jax.tree.map(lambda x: x[0], xs))
    ys = jnp.zeros((length, *y.shape), y.dtype)

    def step(state: Any) -> Any:
        i, carry, ys = state
        carry, y = body(carry, jax.tree.map(lambda x: x[i], xs))
        return i + 1, carry, ys.at[i].set(y)

    start = (jnp.int32(0), init, ys)
    ended = loops.while_loop(
        lambda s: s[0] < length, step, start, max_steps=length + 2, checkpoints=SLOTS
    )
    return ended[1:]


def implementation(name: str, scan: Callable[..., Any]) -> Implementation:
    """Our loops with another scan."""
    return Implementation(name, scan, OURS.while_loop, OURS.fori_loop, OURS.map)


FEW = implementation("few checkpoints", functools.partial(loops.scan, checkpoints=SLOTS))
ENDING = implementation(
    "until", functools.partial(loops.scan, checkpoints=SLOTS, until=lambda b: b[0, 0] > 1e9)
)
WHILE = implementation("while", while_as_scan)

variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
others = pytest.mark.parametrize("few", [ENDING, WHILE], ids=repr)
some_steps = pytest.mark.parametrize("step", [set_row, multiply_row, window, read_in_inner_loop])


def large_and_stored(fun: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """The shapes of what is stored for a way back and is larger than a buffer."""
    loops_that_store = [
        eqn
        for eqn in equations(fun, *args, name="checkpointed_loop")
        if eqn.params["recorded"] is not None
    ]
    avals = [var.aval for eqn in loops_that_store for var in eqn.outvars]
    return [aval.shape for aval in avals if aval.size > SIZE]


@variants
def test_gradient_is_that_of_jax(variant: Variant, x64: None):
    """Whatever way rows are read and written."""
    assert_gradient_is_that_of_jax(variant.step, FEW)


@others
@some_steps
def test_gradient_of_loops_that_end_by_a_condition(step: Step, few: Implementation, x64: None):
    """The same where nobody knows the number of steps."""
    assert_gradient_is_that_of_jax(step, few)


def assert_gradient_is_that_of_jax(step: Step, few: Implementation) -> None:
    """The gradient of few checkpoints beside that of JAX's scan."""
    args = arguments(jnp.float64)
    got, want = (jax.jit(gradient(impl, step))(*args) for impl in (few, JAX))
    assert_same(got, want, rtol=1e-12)


@pytest.mark.parametrize("few", [FEW, ENDING, WHILE], ids=repr)
@variants
def test_no_slot_holds_the_buffer(variant: Variant, few: Implementation):
    """What is kept for the way back is less than two buffers."""
    assert large_and_stored(gradient(few, variant.step), *arguments()) == []


@variants
def test_compiled_gradient_copies_no_buffer(variant: Variant):
    """XLA writes the rows in place there and back, as far as it does without a gradient."""
    args = arguments()
    without = copies_in_loops(loss(FEW, variant.step), *args)
    assert len(copies_in_loops(gradient(FEW, variant.step), *args)) <= len(without)


def gradient_of_lanes(implementation: Implementation, step: Step) -> Callable[..., Any]:
    """The gradient of a vmap over the factors."""

    def summed(first: Any, factors: Any, positions: Any) -> Any:
        lanes = jnp.stack([factors, 0.5 * factors])
        return jnp.sum(
            jax.vmap(loss(implementation, step), (None, 0, None))(first, lanes, positions)
        )

    return jax.grad(summed, (0, 1))


def gradients_of_lanes(implementation: Implementation, step: Step) -> Callable[..., Any]:
    """vmap of the gradient, over the positions."""

    def fun(first: Any, factors: Any, positions: Any) -> Any:
        lanes = jnp.stack([positions, positions[::-1]])
        return jax.vmap(gradient(implementation, step), (None, None, 0))(first, factors, lanes)

    return fun


@pytest.mark.parametrize("few", [FEW, WHILE], ids=repr)
@pytest.mark.parametrize(
    "transformed",
    [gradient_of_gradient, tangent_of_gradient, gradient_of_lanes, gradients_of_lanes],
)
@pytest.mark.parametrize("step", [multiply_row, read_in_inner_loop])
def test_transformed_gradient_is_that_of_jax(
    step: Step, transformed: Callable[..., Any], few: Implementation, x64: None
):
    """Second derivatives, and vmap inside and outside."""
    args = arguments(jnp.float64)
    got = jax.jit(transformed(few, step))(*args)
    want = jax.jit(transformed(JAX, step))(*args)
    assert_same(got, want, rtol=1e-10)


def march(x: Any, read: Callable[..., Any], steps: int = STEPS, **options: Any) -> Any:
    """A while loop over an index, a row, and the buffer that all its rows go to."""

    def step(state: Any) -> Any:
        i, row, b = state
        row = jnp.sin(row) + 0.1 * x * read(b, i)
        return i + 1, row, b.at[i].set(row)

    buffer = jnp.zeros((SIZE // 8, 8), jnp.float32)
    start = (jnp.int32(1), x * jnp.ones(8, jnp.float32), buffer)
    ended = loops.while_loop(lambda s: s[0] <= steps, step, start, checkpoints=SLOTS, **options)
    return jnp.sum(ended[2] * ended[1][None])


def last_row(b: Any, i: Any) -> Any:
    """The row before."""
    return b[i - 1]


def all_rows(b: Any, _: Any) -> Any:
    """Each number of the buffer, as in attention over what came before."""
    return jnp.sum(b * b, axis=0)


def whole_buffer_back(b: Any, i: Any) -> Any:
    """A sum of squares whose derivative needs the whole buffer."""
    return jnp.cumsum(b * b, axis=0)[i - 1]


def python_gradient(read: Callable[..., Any]) -> Any:
    """The gradient of `march` by a Python loop."""

    def fun(x: Any) -> Any:
        row, b = x * jnp.ones(8, jnp.float32), jnp.zeros((SIZE // 8, 8), jnp.float32)
        for i in range(1, STEPS + 1):
            row = jnp.sin(row) + 0.1 * x * read(b, i)
            b = b.at[i].set(row)
        return jnp.sum(b * row[None])

    return jax.grad(fun)(jnp.float32(0.7))


@pytest.mark.parametrize("read", [last_row, all_rows, whole_buffer_back])
@pytest.mark.parametrize("options", [{}, {"max_steps": 20}], ids=["unbounded", "bounded"])
def test_whatever_is_read(read: Callable[..., Any], options: dict[str, Any]):
    """Little or all of the buffer, by a loop with a bound of its steps or without."""
    got = jax.grad(lambda x: march(x, read, **options))(jnp.float32(0.7))
    np.testing.assert_allclose(got, python_gradient(read), rtol=2e-5)


@pytest.mark.parametrize(
    ("read", "options", "is_stored"),
    [
        (last_row, {"max_steps": 20}, False),
        (all_rows, {"max_steps": 20}, True),  # its derivative needs the buffer at each step
        (last_row, {}, True),  # nobody knows how many rows will be read
        (last_row, {"max_steps": 10_000}, True),  # so many rows are more than three buffers
    ],
)
def test_when_the_buffer_is_stored(
    read: Callable[..., Any], options: dict[str, Any], is_stored: bool
):
    """Where what may be read in all is more than the slots hold, or a derivative needs it all."""
    gradient = jax.grad(lambda x: march(x, read, **options))
    expected = [(SLOTS, SIZE // 8, 8)] if is_stored else []
    assert large_and_stored(gradient, jnp.float32(0.7)) == expected


@pytest.mark.parametrize("read", [last_row, lambda b, i: jnp.sin(b[0])], ids=["read", "unread"])
@pytest.mark.parametrize("order", [1, 2])
def test_memory_does_not_grow_with_the_slots(read: Callable[..., Any], order: int):
    """Whatever the order of the derivative, a compiled program has room for a few buffers only."""
    slots = 40

    def fun(x: Any) -> Any:
        def step(state: Any, i: Any) -> Any:
            row, b = state
            row = jnp.sin(row) + 0.1 * x * read(b, i)
            return (row, b.at[i].set(row)), None

        start = (x * jnp.ones(8, jnp.float32), jnp.zeros((2000, 8), jnp.float32))
        (row, b), _ = loops.scan(step, start, jnp.arange(1, 61), checkpoints=slots)
        return jnp.sum(b * row[None])

    for _ in range(order):
        fun = jax.grad(fun)
    memory = jax.jit(fun).lower(jnp.float32(0.7)).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 6 * 2000 * 8 * 4


def test_two_buffers_of_which_one_is_needed_whole():
    """The one that is read row by row is not stored, the other one is."""

    def fun(x: Any) -> Any:
        def body(state: Any, i: Any) -> Any:
            a, b = state
            a = a.at[i].set(x * a[i - 1] + jnp.sum(b * b))
            return (a, b.at[i].set(a[i - 1])), None

        ones = jnp.ones(SIZE, jnp.float32)
        start = (ones, ones * 0.01)
        (a, b), _ = loops.scan(body, start, jnp.arange(1, 6), checkpoints=SLOTS)
        return jnp.sum(a) + jnp.sum(b)

    shapes = large_and_stored(jax.grad(fun), jnp.float32(0.5))
    assert shapes == [(SLOTS, SIZE)]


def test_lanes_that_end_apart():
    """Each lane has the gradient that it has alone."""

    def fun(x: Any, steps: Any) -> Any:
        return march(x, last_row, steps, max_steps=20)

    xs, steps = jnp.linspace(0.3, 0.9, 4, dtype=jnp.float32), jnp.array([0, 3, 12, 7])
    alone = [jax.grad(fun)(x, n) for x, n in zip(xs, steps, strict=True)]
    for lanes in (
        jax.vmap(jax.grad(fun)),
        jax.grad(lambda xs, steps: jnp.sum(jax.vmap(fun)(xs, steps))),
    ):
        np.testing.assert_allclose(jax.jit(lanes)(xs, steps), jnp.stack(alone), rtol=2e-5)


def test_prints_once_a_step(capsys: pytest.CaptureFixture[str]):
    """What a step prints is printed on the way there alone."""

    def read(b: Any, i: Any) -> Any:
        jax.debug.print("step {}", i)
        return b[i - 1]

    jax.jit(jax.grad(lambda x: march(x, read, max_steps=20)))(jnp.float32(0.7))
    jax.effects_barrier()
    assert capsys.readouterr().out.split() == [
        w for i in range(1, STEPS + 1) for w in ("step", str(i))
    ]
