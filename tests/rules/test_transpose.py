"""`jax.linear_transpose` of loops that are linear, against JAX's loops and the matrix itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, PYTHON, Implementation

VECTOR = jnp.float32([1.0, -2.0, 0.5])
MATRIX = jnp.arange(12.0, dtype=jnp.float32).reshape(4, 3) / 10.0


def carry_and_rows(loops: Implementation, init: Any, xs: Any) -> Any:
    """Linear in init and in xs, with ys."""
    return loops.scan(lambda c, x: (0.5 * c + x, c - 2.0 * x), init, xs)


def backwards(loops: Implementation, init: Any, xs: Any) -> Any:
    """The same from the last row to the first."""
    return loops.scan(lambda c, x: (0.5 * c + x, c - 2.0 * x), init, xs, reverse=True, unroll=3)


def constant_used_each_step(loops: Implementation, vector: Any) -> Any:
    """Linear in a constant that the body closes over."""
    step = lambda c, row: (c + row * (row @ vector), row @ vector)
    return loops.scan(step, jnp.zeros(3, jnp.float32), MATRIX)


def residuals_of_two_kinds(loops: Implementation, init: Any) -> Any:
    """The linear map has a matrix that is the same and a row that differs at each step."""
    square = MATRIX[:3]
    return loops.scan(lambda c, row: (square @ c * row, c[0]), init, MATRIX)


def carry_not_linear(loops: Implementation, init: Any) -> Any:
    """A counter runs beside the linear carry and takes part in it."""
    step = lambda c, _: ((c[0] + 1.0, c[1] * c[0]), None)
    return loops.scan(step, (jnp.float32(1.0), init), None, length=3)[0][1]


def unused_input(loops: Implementation, init: Any, xs: Any) -> Any:
    """Nothing depends on the xs."""
    return loops.scan(lambda c, _: (2.0 * c, None), init, xs)[0]


def unused_output(loops: Implementation, init: Any, xs: Any) -> Any:
    """Only the ys are used, the carry is dropped."""
    return loops.scan(lambda c, x: (c + x, 2.0 * c), init, xs)[1]


def fori_over_rows(loops: Implementation, vector: Any) -> Any:
    """A fori_loop that accumulates a normal matrix times the vector."""
    body = lambda i, c: c + MATRIX[i] * (MATRIX[i] @ vector)
    return loops.fori_loop(0, 4, body, jnp.zeros(3, jnp.float32))


def map_over_rows(loops: Implementation, vector: Any) -> Any:
    """A map whose every row is linear in what it closes over."""
    return loops.map(lambda row: row @ vector, MATRIX)


def nested(loops: Implementation, init: Any) -> Any:
    """A linear scan in a linear scan."""
    inner = lambda c, row: (c * row, c.sum())
    return loops.scan(lambda c, _: loops.scan(inner, c, MATRIX), init, None, length=2)


def no_steps(loops: Implementation, init: Any) -> Any:
    """A scan of length zero is the identity."""
    return loops.scan(lambda c, _: (2.0 * c, c), init, None, length=0)


CASES = [
    (carry_and_rows, (VECTOR, MATRIX)),
    (backwards, (VECTOR, MATRIX)),
    (constant_used_each_step, (VECTOR,)),
    (residuals_of_two_kinds, (VECTOR,)),
    (carry_not_linear, (VECTOR,)),
    (unused_input, (VECTOR, MATRIX)),
    (unused_output, (VECTOR, MATRIX)),
    (fori_over_rows, (VECTOR,)),
    (map_over_rows, (VECTOR,)),
    (nested, (VECTOR,)),
    (no_steps, (VECTOR,)),
]
linear_programs = pytest.mark.parametrize(
    ("program", "args"), [pytest.param(*case, id=case[0].__name__) for case in CASES]
)


def over(program: Callable[..., Any], loops: Implementation) -> Callable[..., Any]:
    """The program over one implementation."""
    return lambda *args: program(loops, *args)


@linear_programs
def test_linear_transpose(program, args):
    """The transpose gives values and types of JAX's loops and of the loop unrolled."""
    ours, jax_s, unrolled = (over(program, loops) for loops in (OURS, JAX, PYTHON))
    cotangent = jax.tree.map(jnp.cos, unrolled(*args))
    got = jax.linear_transpose(ours, *args)(cotangent)
    assert_same(got, jax.linear_transpose(jax_s, *args)(cotangent))
    assert_same(got, jax.linear_transpose(unrolled, *args)(cotangent))


@linear_programs
def test_transpose_is_the_transposed_matrix(program, args):
    """The matrix of the transpose, column by column, is the transposed matrix of the loop."""
    fun = over(program, OURS)
    flat, unflatten = ravel_pytree(args)
    vector_fun = lambda v: ravel_pytree(fun(*unflatten(v)))[0]
    matrix = jax.jit(jax.jacfwd(vector_fun))(flat)
    transpose = lambda ct: jax.linear_transpose(vector_fun, flat)(ct)[0]
    columns = jax.jit(jax.vmap(transpose, out_axes=1))(jnp.eye(len(matrix), dtype=jnp.float32))
    assert_same(columns, matrix.T, weak_types=False)


def test_transpose_twice():
    """The transpose of the transpose is the loop again."""
    fun = over(carry_and_rows, OURS)
    transpose = jax.linear_transpose(fun, VECTOR, MATRIX)
    again = jax.linear_transpose(transpose, fun(VECTOR, MATRIX))
    assert_same(again((VECTOR, MATRIX))[0], fun(VECTOR, MATRIX), weak_types=False)


def test_transpose_of_a_batch():
    """Lanes of a linear loop are transposed lane by lane."""
    lanes = jnp.stack([VECTOR, 2.0 * VECTOR])
    fun = over(residuals_of_two_kinds, OURS)
    out = jax.vmap(fun)(lanes)
    got = jax.linear_transpose(jax.vmap(fun), lanes)(out)[0]
    alone = [jax.linear_transpose(fun, lane)(fun(lane))[0] for lane in lanes]
    assert_same(got, jnp.stack(alone))


@pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)
def test_transpose_of_what_is_not_linear_is_refused(loops: Implementation):
    """A loop that multiplies its input with itself is refused as a product outside a loop is."""
    fun = lambda v: loops.scan(lambda c, _: (c * c, None), v, None, length=2)[0]
    with pytest.raises(AssertionError):
        jax.linear_transpose(fun, VECTOR)(VECTOR)


@pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)
def test_transpose_of_a_while_loop_is_refused(loops: Implementation):
    """A loop without a known number of steps has no transpose, linear or not."""
    body = lambda c: (c[0] + 1, 2.0 * c[1])
    fun = lambda v: loops.while_loop(lambda c: c[0] < 3, body, (0, v))[1]
    with pytest.raises(ValueError, match=r"^Reverse-mode differentiation does not work"):
        jax.linear_transpose(fun, VECTOR)(VECTOR)
