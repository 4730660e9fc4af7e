"""Random nests of loops with weak and strong inits, to compare ways of tracing them.

They are denser in promotions than the programs of `checks.strategies`: of sixty nests about twenty
leave a loop unfinished, of a hundred and fifty programs two do.
"""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import loops

LITERALS = (*(0, 0.0) * 5, True, 1 + 0j)  # of these, True has no weak type
STRONG = (jnp.int32, jnp.float32, jnp.bfloat16)
DTYPES = (jnp.int32, jnp.float32, jnp.bfloat16, jnp.float16)


def random_nest(seed: int) -> Callable:
    """A function of a float32 scalar: loops in loops, two carry leaves each, at most four deep."""
    choose = random.Random(seed)  # noqa: S311 - any numbers do
    return _loop(choose, choose.randint(1, 4))


def _leaf(choose: random.Random) -> Callable:
    if choose.random() < 0.92:
        literal = choose.choice(LITERALS)
        return lambda x: literal
    dtype = choose.choice(STRONG)
    return lambda x: jnp.zeros((), dtype)


def _operand(choose: random.Random, depth: int) -> Callable:
    """What a body adds to a leaf: an inner loop's result, the argument, a leaf, or a constant."""
    loops_inside = ["loop"] * 3 + ["loop over sum", "loop over leaf", "loops in turn"]
    kind = choose.choice(
        loops_inside * (depth > 1)
        + ["x", "other leaf", "constant", "nothing", "its type", "another type"]
    )
    dtype = choose.choice(DTYPES)
    if kind in loops_inside:
        inner = _loop(choose, depth - 1)
        return {
            "loop": lambda x, other: inner(x),
            "loop over sum": lambda x, other: inner(x + other),
            "loop over leaf": lambda x, other: inner(other),
            "loops in turn": lambda x, other: sum(inner(v) for v in (x, jnp.ones((), dtype))),
        }[kind]
    return {
        "x": lambda x, other: x,
        "other leaf": lambda x, other: other,
        "constant": lambda x, other: jnp.ones((), dtype),
        "nothing": lambda x, other: 0,
        "its type": lambda x, other: jnp.ones((), jnp.result_type(other)),
        "another type": lambda x, other: jnp.ones((), _another_type(other, dtype)),
    }[kind]


def _another_type(other: Any, dtype: Any) -> Any:
    """A type that moves down where the type of a leaf moves up."""
    return dtype if jnp.result_type(other) == jnp.float32 else jnp.float32


def _loop(choose: random.Random, depth: int) -> Callable:
    """A function of x that runs a loop and returns one of its last leaves, or its ys."""
    inits = _leaf(choose), _leaf(choose)
    operands = _operand(choose, depth), _operand(choose, depth)
    kind, result = choose.choice(["scan", "fori", "while"]), choose.randint(0, 2)
    options: dict[str, Any] = choose.choice([{}, {}, {}, {"checkpoints": 1}])

    def run(x):
        def step(carry):
            a, b = carry
            return a + operands[0](x, b), b + operands[1](x, a)

        x = jnp.asarray(x)
        init = tuple(make(x) for make in inits)
        if kind == "scan":
            carry, ys = loops.scan(lambda c, _: (step(c), c[0]), init, None, length=2, **options)
            return [*carry, ys[0]][result]
        if kind == "fori":
            return loops.fori_loop(0, 2, lambda i, c: step(c), init, **options)[result % 2]
        _, carry = loops.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, step(c[1])), (jnp.int32(0), init), **options
        )
        return carry[result % 2]

    return run


def outcome(program: Callable) -> str:
    """The program's jaxpr with its output types, or the error that tracing it raises."""

    def fresh(x: Any) -> Any:  # or JAX would know the trace of an earlier call
        return program(x)

    try:
        with jax.numpy_dtype_promotion("standard"):
            jaxpr, out = jax.make_jaxpr(fresh, return_shape=True)(jnp.float32(1))
    except (TypeError, ValueError) as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "pass 1" in note]
        return f"{type(error).__name__}: {error} {notes}"
    return f"{jaxpr} -> {out}, {[aval.weak_type for aval in jaxpr.out_avals]}"
