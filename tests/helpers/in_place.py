"""Loops that read and write single rows of a carried buffer, and what is as large as the buffer."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tests.helpers.equations import equations, open_jaxpr
from tests.helpers.implementations import Implementation

ROWS, WIDTH = 150, 8
STEPS = 12
SIZE = ROWS * WIDTH

# What touches only the rows that it writes.
IN_PLACE = {"dynamic_update_slice", "scatter", "scatter-add"}
# What has jaxprs of its own, which are looked into.
CALLS = {"jit", "cond", "scan", "while"}

Step = Callable[[Implementation, Any, Any, Any], Any]


class Variant(NamedTuple):
    """One way to write rows: `step(loops, buffer, k, x)` returns the new buffer."""

    name: str
    step: Step


VARIANTS: list[Variant] = []


def variant(step: Step) -> Step:
    """Adds the decorated step to the table."""
    VARIANTS.append(Variant(step.__name__, step))
    return step


@variant
def set_row(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """A recurrence of second order, kept whole."""
    return b.at[k].set(0.6 * x * b[k - 1] + 0.4 * b[k - 2])


@variant
def add_row(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """A row added to."""
    return b.at[k].add(x * jnp.sin(b[k - 1]))


@variant
def multiply_row(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """A row multiplied."""
    return b.at[k].multiply(x * jnp.sin(b[k - 1]))


@variant
def smaller_row(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """The smaller of two rows."""
    return b.at[k].min(x * jnp.sin(b[k - 1]))


@variant
def update_slice(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """One row by dynamic_update_slice."""
    return lax.dynamic_update_slice_in_dim(b, x * jnp.sin(b[k - 1])[None], k, 0)


@variant
def update_index(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """One row by the functions that are jitted."""
    row = lax.dynamic_index_in_dim(b, k - 1, keepdims=False)
    return lax.dynamic_update_index_in_dim(b, x * row, k, 0)


@variant
def window(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Three rows read and three written, which overlap."""
    rows = lax.dynamic_slice_in_dim(b, k - 2, 3)
    return lax.dynamic_update_slice_in_dim(b, x * jnp.sin(rows), k, 0)


@variant
def take(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """A row read by jnp.take."""
    return b.at[k].set(x * jnp.take(b, k - 1, axis=0, mode="clip"))


@variant
def several_rows(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Rows read by an array of indices, one of them twice."""
    return b.at[k].set(x * b[k - jnp.array([1, 2, 1])].sum(0))


@variant
def add_several_rows(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Rows added to by an array of indices, one of them twice."""
    return b.at[k + jnp.array([0, 1, 0])].add(x * jnp.sin(b[k - 1]))


@variant
def element(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """A single number, by two indices."""
    return b.at[k, 1].set(x * b[k - 1, 0])


@variant
def array_of_one_index(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """An array of one index, which JAX does not take for unique."""
    return b.at[k[None]].set(x * b[k - 1])


@variant
def clipped(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Indices that are brought into bounds."""
    row = b.at[k + 7].get(mode="clip")
    return b.at[k].set(x * row, mode="clip")


@variant
def filled(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Rows out of bounds read as numbers, and dropped when written."""
    row = b.at[k + 7].get(mode="fill", fill_value=0.5)
    return b.at[k + 3].set(x * row, mode="drop")


@variant
def fixed_rows(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Rows read at positions that are known when traced."""
    return b.at[k].set(x * (b[0] + b[1:3].sum(0)))


@variant
def read_after_write(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """What was just written is read in the same step."""
    c = b.at[k].set(x * b[k - 1])
    return c.at[k].add(0.1 * c[k] + c[k - 2])


@variant
def swap(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Two rows change places."""
    return b.at[k].set(x * b[k - 1]).at[k - 1].set(b[k])


@variant
def branch(_: Implementation, b: Any, k: Any, x: Any) -> Any:
    """Only every other step writes."""
    return lax.cond(k % 2 == 0, lambda b: b.at[k].set(x * b[k - 1]), lambda b: b, b)


@variant
def read_in_inner_loop(loops: Implementation, b: Any, k: Any, x: Any) -> Any:
    """An inner loop reads the buffer of the outer one."""
    row = loops.fori_loop(0, 3, lambda j, row: row + x * b[k - j], jnp.zeros_like(b[0]))
    return b.at[k].set(row)


@variant
def write_in_inner_loop(loops: Implementation, b: Any, k: Any, x: Any) -> Any:
    """An inner loop writes it."""
    return loops.fori_loop(0, 3, lambda j, b: b.at[k, j].set(x * b[k - 1, j]), b)


def positions(shape: tuple[int, ...] = (STEPS,)) -> jax.Array:
    """Indices: neighbours, repeated ones, negative ones and some out of bounds."""
    steps = jnp.array([2, 3, 4, 4, 70, -1, -3, ROWS - 1, ROWS + 2, 5, -ROWS - 4, 6])
    return jnp.broadcast_to(steps, shape)


def loss(loops: Implementation, step: Step) -> Callable[..., Any]:
    """A function of the first rows, factors and positions, with a sum of every row written."""

    def fun(first: Any, factors: Any, positions: Any) -> Any:
        start = jnp.cos(0.1 * jnp.arange(SIZE, dtype=first.dtype)).reshape(ROWS, WIDTH)

        def body(b: Any, kx: Any) -> Any:
            return step(loops, b, *kx), b[kx[0]].sum()

        b, ys = loops.scan(body, start.at[:2].set(first), (positions, factors))
        return jnp.sum(b * jnp.sin(b)) + jnp.sum(jnp.cos(ys))

    return fun


def gradient(loops: Implementation, step: Step) -> Callable[..., Any]:
    """The gradient for the first rows and the factors."""
    return jax.grad(loss(loops, step), (0, 1))


def gradient_of_gradient(loops: Implementation, step: Step) -> Callable[..., Any]:
    """Reverse mode over reverse mode."""

    def summed(first: Any, factors: Any, positions: Any) -> Any:
        parts = gradient(loops, step)(first, factors, positions)
        return sum(jnp.sum(jnp.sin(part)) for part in parts)

    return jax.grad(summed, (0, 1))


def tangent_of_gradient(loops: Implementation, step: Step) -> Callable[..., Any]:
    """Forward mode over reverse mode."""

    def fun(first: Any, factors: Any, positions: Any) -> Any:
        grad = lambda *args: gradient(loops, step)(*args, positions)
        return jax.jvp(grad, (first, factors), (first, factors))

    return fun


def arguments(dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Arguments of a loss."""
    first = jnp.linspace(0.3, 1.1, 2 * WIDTH, dtype=dtype).reshape(2, WIDTH)
    return first, jnp.linspace(0.5, 1.4, STEPS, dtype=dtype), positions()


def whole_buffer_work(fun: Callable[..., Any], *args: Any) -> list[str]:
    """What the loops of a program compute at each step that is as large as the buffer."""
    loops = equations(fun, *args, name="scan")
    return [name for loop in loops for name in _large(open_jaxpr(loop.params["jaxpr"]))]


def _large(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in CALLS:
            for value in eqn.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(inner, "eqns"):
                        yield from _large(open_jaxpr(inner))
        elif name not in IN_PLACE and any(v.aval.size >= SIZE for v in eqn.outvars):
            yield name


def copies_in_loops(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The lines of the compiled program that copy a buffer at each step of a loop."""
    text = jax.jit(fun).lower(*args).compile().as_text() or ""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    found, current = [], None
    for line in text.splitlines():
        if not line.startswith(" "):
            current = line.split("(")[0].strip().lstrip("%")
        copied = re.search(r"= \w+\[([\d,]+)\]\S* copy\(", line)
        if copied and current in bodies and _product(copied.group(1)) >= SIZE:
            found.append(line.strip())
    return found


def _product(sizes: str) -> int:
    product = 1
    for size in sizes.split(","):
        product *= int(size)
    return product
