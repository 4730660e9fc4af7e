"""The gradient of a loop that writes rows of a carried buffer costs the rows, not the buffer.

Cost is counted in operations as large as the buffer, in the jaxpr and in the compiled program.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, Implementation
from tests.helpers.in_place import (
    ROWS,
    SIZE,
    VARIANTS,
    WIDTH,
    Step,
    Variant,
    arguments,
    copies_in_loops,
    gradient,
    gradient_of_gradient,
    loss,
    multiply_row,
    positions,
    set_row,
    swap,
    tangent_of_gradient,
    whole_buffer_work,
    window,
)

LANES = 3

SOME = ("set_row", "multiply_row", "window", "several_rows", "read_in_inner_loop")

variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)

some_variants = pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if v.name in SOME], ids=lambda variant: variant.name
)


def gradients_of_lanes(loops: Implementation, step: Step) -> Callable[..., Any]:
    """vmap of the gradient; each lane has its positions."""
    return jax.vmap(gradient(loops, step))


def gradient_of_lanes(loops: Implementation, step: Step) -> Callable[..., Any]:
    """The gradient of a vmap; the lanes share positions."""

    def summed(first: Any, factors: Any, positions: Any) -> Any:
        return jnp.sum(jax.vmap(loss(loops, step), (0, 0, None))(first, factors, positions[0]))

    return jax.grad(summed, (0, 1))


def gradient_of_lanes_apart(loops: Implementation, step: Step) -> Callable[..., Any]:
    """The gradient of a vmap; each lane has its positions."""
    return jax.grad(lambda *args: jnp.sum(jax.vmap(loss(loops, step))(*args)), (0, 1))


ALONE = [gradient, gradient_of_gradient, tangent_of_gradient]
IN_LANES = [gradients_of_lanes, gradient_of_lanes, gradient_of_lanes_apart]


def arguments_for(transformed: Callable[..., Any], dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Arguments for a program alone or in lanes."""
    first, factors, steps = arguments(dtype)
    if transformed in ALONE:
        return first, factors, steps
    scales = jnp.linspace(0.8, 1.1, LANES, dtype=dtype)
    lanes = jnp.arange(LANES)[:, None]
    return (
        scales[:, None, None] * first[None],
        scales[:, None] * factors[None],
        positions((LANES, len(steps))) + lanes,
    )


@variants
def test_gradient_is_that_of_jax(variant: Variant, x64: None):
    """Whatever way rows are read and written, also repeated, negative and out of bounds."""
    args = arguments(jnp.float64)
    got = jax.jit(gradient(OURS, variant.step))(*args)
    want = jax.jit(gradient(JAX, variant.step))(*args)
    assert_same(got, want, rtol=1e-12)


@pytest.mark.parametrize("transformed", [*ALONE[1:], *IN_LANES])
@some_variants
def test_transformed_gradient_is_that_of_jax(
    variant: Variant, transformed: Callable[..., Any], x64: None
):
    """Second derivatives, and vmap inside and outside."""
    args = arguments_for(transformed, jnp.float64)
    got = jax.jit(transformed(OURS, variant.step))(*args)
    want = jax.jit(transformed(JAX, variant.step))(*args)
    assert_same(got, want, rtol=1e-10)


@pytest.mark.parametrize(("step", "order"), [(set_row, 2), (multiply_row, 1), (window, 1)])
def test_derivatives_are_finite_differences(step: Step, order: int, x64: None):
    """In both modes."""
    first, factors, steps = arguments(jnp.float64)
    fun = jax.jit(lambda *args: loss(OURS, step)(*args, steps))
    check_grads(fun, (first, factors), order=order, rtol=1e-4)


@variants
def test_no_step_works_on_the_whole_buffer(variant: Variant):
    """Neither forwards nor backwards is anything computed that is as large as the buffer."""
    args = arguments()
    assert whole_buffer_work(gradient(OURS, variant.step), *args) == []


def test_steps_of_jax_work_on_the_whole_buffer():
    """The count sees what JAX does for each row read: zeros as large as the buffer, and a sum."""
    found = whole_buffer_work(gradient(JAX, set_row), *arguments())
    assert found == ["broadcast_in_dim", "add_any"] * 3


@pytest.mark.parametrize("transformed", [*ALONE[1:], *IN_LANES])
@some_variants
def test_no_transformed_step_works_on_the_whole_buffer(
    variant: Variant, transformed: Callable[..., Any]
):
    """The same for second derivatives and lanes."""
    assert whole_buffer_work(transformed(OURS, variant.step), *arguments_for(transformed)) == []


@variants
def test_compiled_gradient_copies_no_buffer(variant: Variant):
    """XLA writes the rows in place in both loops."""
    assert copies_in_loops(gradient(OURS, variant.step), *arguments()) == []


@pytest.mark.parametrize("transformed", [*ALONE[1:], *IN_LANES])
def test_compiled_transformed_gradient_copies_no_buffer(transformed: Callable[..., Any]):
    """The same for second derivatives and lanes."""
    args = arguments_for(transformed)
    assert copies_in_loops(transformed(OURS, set_row), *args) == []


def test_compiled_swap_copies_no_buffer():
    """Two rows change places in a loop that is not differentiated: JAX's copies the buffer."""
    assert copies_in_loops(loss(OURS, swap), *arguments()) == []


def test_buffer_of_integers_beside_it():
    """A buffer of integers beside it is written in place and has no gradient."""

    def fun(loops: Implementation, row: Any, steps: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            counts, values = carry
            counts = counts.at[k].add(counts[k - 1] + 1)
            values = values.at[k].set(values[k - 1] * counts[k].astype(values.dtype))
            return (counts, values), counts[k - 2]

        counts = jnp.zeros(SIZE, jnp.int32)
        values = jnp.ones((ROWS, WIDTH), row.dtype).at[1].set(row)
        (counts, values), ys = loops.scan(body, (counts, values), steps)
        return jnp.sum(jnp.sin(values)), (counts, ys)

    row, steps = jnp.linspace(0.1, 1.0, WIDTH, dtype=jnp.float32), positions()
    got, want = (
        jax.grad(lambda row, loops=loops: fun(loops, row, steps), has_aux=True)(row)
        for loops in (OURS, JAX)
    )
    assert_same(got, want)


def test_row_that_is_dropped_makes_no_nan():
    """A row that is multiplied out of bounds has a gradient of zero, whatever is read there."""

    def fun(factor: Any) -> Any:
        body = lambda b, k: (b.at[k].multiply(factor), None)
        b, _ = OURS.scan(body, jnp.ones((ROWS, WIDTH), jnp.float32), jnp.array([ROWS + 1]))
        return jnp.sum(b)

    np.testing.assert_array_equal(jax.grad(fun)(jnp.full(WIDTH, 2.0, jnp.float32)), 0.0)


def test_sharded_buffer():
    """A buffer that lies on several devices has the same gradient."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
    first, factors, steps = arguments()
    sharded = jax.device_put(first, sharding)
    got = jax.jit(gradient(OURS, set_row))(sharded, factors, steps)
    assert_same(jax.device_get(got), jax.device_get(gradient(JAX, set_row)(first, factors, steps)))
