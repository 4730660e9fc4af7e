"""The loops that are measured, each written once against whichever module gives the loops."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


class Loops(Protocol):
    """What `loops` and `jax.lax` have in common."""

    scan: Callable[..., Any]
    while_loop: Callable[..., Any]
    fori_loop: Callable[..., Any]


class Program(NamedTuple):
    """A function that runs a loop, and arguments for it.

    Tracing is cached by the identity of the function, so each call of a builder below makes both
    the function and the loop's body anew.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]


Build = Callable[[Loops], Program]

STEPS = 100
RECURRENCE_STEPS = 200_000


def chain(carry: Array, weight: Array, equations: int) -> Array:
    """`equations` equations from `carry` to a carry of the same type.

    `weight` is a constant of the loop. These are `lax` functions and not operators because they
    trace fastest, and so hide the loop's own cost the least.
    """
    steps = (lambda c: lax.mul(c, weight), lax.sin, lambda c: lax.add(c, weight), lax.tanh)
    for index in range(equations):
        carry = steps[index % len(steps)](carry)
    return carry


def vectors() -> tuple[Array, Array]:
    """A carry and a weight of type float32[8]."""
    return jnp.ones(8, jnp.float32), jnp.full(8, 0.5, jnp.float32)


def scan_of(equations: int) -> Build:
    """A scan over STEPS rows whose body has `equations` equations; the new carry is also y."""

    def build(loops: Loops) -> Program:
        def fun(init: Array, weight: Array, xs: Array) -> Any:
            def body(carry: Array, x: Array) -> tuple[Array, Array]:
                # The first equation brings x in, the rest only transform.
                carry = chain(lax.add(carry, x), weight, equations - 1)
                return carry, carry

            return loops.scan(body, init, xs)

        return Program(fun, (*vectors(), jnp.zeros((STEPS, 8), jnp.float32)))

    return build


def while_of(equations: int) -> Build:
    """A while loop whose body has `equations` equations and whose condition has one."""

    def build(loops: Loops) -> Program:
        def fun(init: Array, weight: Array, bound: Array) -> Any:
            def cond(carry: Array) -> Array:
                return lax.lt(carry, bound)

            def body(carry: Array) -> Array:
                return chain(carry, weight, equations)

            return loops.while_loop(cond, body, init)

        return Program(fun, (jnp.float32(1.0), jnp.float32(0.5), jnp.float32(0.25)))

    return build


def fori_of(equations: int) -> Build:
    """A fori loop with static bounds whose body has `equations` equations and leaves its index."""

    def build(loops: Loops) -> Program:
        def fun(init: Array, weight: Array) -> Any:
            def body(_: Array, carry: Array) -> Array:
                return chain(carry, weight, equations)

            return loops.fori_loop(0, STEPS, body, init)

        return Program(fun, vectors())

    return build


def grad_of_scan(equations: int) -> Build:
    """The gradient of the sum of a scan's final carry, with respect to init and weight."""

    def build(loops: Loops) -> Program:
        fun, args = scan_of(equations)(loops)

        def loss(init: Array, weight: Array, xs: Array) -> Array:
            return jnp.sum(fun(init, weight, xs)[0])

        return Program(jax.grad(loss, argnums=(0, 1)), args)

    return build


def equal_scans(equations: int) -> Build:
    """Eight scans in a row with one body; their ys are not needed."""

    def build(loops: Loops) -> Program:
        def body(carry: Array, x: Array) -> tuple[Array, Array]:
            carry = chain(lax.add(carry, x), x, equations - 1)
            return carry, carry

        def fun(carry: Array, xs: Array) -> Array:
            for _ in range(8):
                carry, _ = loops.scan(body, carry, xs)
            return carry

        return Program(fun, (vectors()[0], jnp.zeros((STEPS, 8), jnp.float32)))

    return build


def grad_of_equal_scans(equations: int) -> Build:
    """The gradient of the sum of what eight equal scans make of their init."""

    def build(loops: Loops) -> Program:
        fun, args = equal_scans(equations)(loops)
        return Program(jax.grad(lambda carry, xs: jnp.sum(fun(carry, xs))), args)

    return build


def recurrence_by_scan(loops: Loops) -> Program:
    """A first-order filter of RECURRENCE_STEPS inputs that keeps every output."""

    def body(carry: Array, x: Array) -> tuple[Array, Array]:
        carry = 0.9 * carry + x
        return carry, carry

    xs = jnp.asarray(np.random.default_rng(0).normal(size=RECURRENCE_STEPS), jnp.float32)
    return Program(lambda init, xs: loops.scan(body, init, xs), (jnp.float32(0.0), xs))


def recurrence_by_fori(loops: Loops) -> Program:
    """RECURRENCE_STEPS steps of c -> 0.9 c + 1."""

    def body(_: Array, carry: Array) -> Array:
        return 0.9 * carry + 1.0

    return Program(
        lambda init: loops.fori_loop(0, RECURRENCE_STEPS, body, init), (jnp.float32(0.0),)
    )


def recurrence_by_while(loops: Loops) -> Program:
    """RECURRENCE_STEPS steps of c -> 0.9 c + 1, counted in the carry up to a traced bound."""

    def cond(carry: tuple[Array, Array, Array]) -> Array:
        return carry[0] < carry[1]

    def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, bound, value = carry
        return step + 1, bound, 0.9 * value + 1.0

    init = (jnp.int32(0), jnp.int32(RECURRENCE_STEPS), jnp.float32(0.0))
    return Program(lambda *init: loops.while_loop(cond, body, init), init)


def rnn_gradient(loops: Loops) -> Program:
    """The gradient of a recurrent network's squared error: 200 steps, batch 8, 32 hidden units."""
    steps, batch, inputs, hidden = 200, 8, 16, 32
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return jnp.asarray(0.1 * rng.normal(size=shape), jnp.float32)

    def loss(params: dict[str, Array], xs: Array, targets: Array) -> Array:
        def body(state: Array, x: Array) -> tuple[Array, Array]:
            state = jnp.tanh(state @ params["recurrent"] + x @ params["input"])
            return state, state @ params["output"]

        _, ys = loops.scan(body, jnp.zeros((batch, hidden), jnp.float32), xs)
        return jnp.mean((ys - targets) ** 2)

    params = {
        "recurrent": normal(hidden, hidden),
        "input": normal(inputs, hidden),
        "output": normal(hidden, 1),
    }
    return Program(jax.grad(loss), (params, normal(steps, batch, inputs), normal(steps, batch, 1)))


def in_place_gradient(loops: Loops) -> Program:
    """The gradient of a recurrence that writes each of 1000 rows of 64 from the two before it."""
    rows, width = 1000, 64

    def loss(first: Array) -> Array:
        def body(buffer: Array, k: Array) -> tuple[Array, None]:
            return buffer.at[k].set(0.6 * buffer[k - 1] + 0.4 * buffer[k - 2]), None

        buffer = jnp.zeros((rows, width), jnp.float32).at[:2].set(first[None])
        return jnp.sum(loops.scan(body, buffer, jnp.arange(2, rows))[0][-1])

    return Program(jax.grad(loss), (jnp.ones(width, jnp.float32),))


def swapped_rows(loops: Loops) -> Program:
    """Rows of a buffer of 1000 by 64 change places, 1000 times."""
    rows, width = 1000, 64

    def body(buffer: Array, pair: Array) -> tuple[Array, None]:
        i, j = pair
        return buffer.at[i].set(buffer[j]).at[j].set(buffer[i]), None

    pairs = jnp.asarray(np.random.default_rng(0).integers(0, rows, (rows, 2)))
    buffer = jnp.ones((rows, width), jnp.float32)
    return Program(lambda buffer, pairs: loops.scan(body, buffer, pairs)[0], (buffer, pairs))


def nested_loops(loops: Loops) -> Program:
    """A scan over 300 rows, each with 100 steps of a static fori loop on a vector of eight."""

    def relax(row: Array) -> Callable[[Array, Array], Array]:
        return lambda _, value: value + 0.1 * (row - value)

    def body(carry: Array, row: Array) -> tuple[Array, Array]:
        carry = loops.fori_loop(0, 100, relax(row), carry)
        return carry, jnp.sum(carry)

    xs = jnp.asarray(np.random.default_rng(0).normal(size=(300, 8)), jnp.float32)
    return Program(lambda init, xs: loops.scan(body, init, xs), (jnp.zeros(8, jnp.float32), xs))


def eager_scan(loops: Loops) -> Program:
    """A scan of STEPS steps, called outside jit with the same body each time."""

    def body(carry: Array, x: Array) -> tuple[Array, Array]:
        carry = 0.9 * carry + x
        return carry, carry

    return Program(
        lambda init, xs: loops.scan(body, init, xs),
        (jnp.float32(0.0), jnp.zeros(STEPS, jnp.float32)),
    )


def eager_while(loops: Loops) -> Program:
    """A while loop of STEPS steps, called outside jit with the same functions each time."""

    def cond(carry: tuple[Array, Array]) -> Array:
        return carry[0] < STEPS

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] + 1, 0.9 * carry[1] + 1.0

    init = (jnp.int32(0), jnp.float32(0.0))
    return Program(lambda *init: loops.while_loop(cond, body, init), init)


def eager_fori(loops: Loops) -> Program:
    """A fori loop of STEPS steps, called outside jit with the same body each time."""

    def body(_: Array, carry: Array) -> Array:
        return 0.9 * carry + 1.0

    return Program(lambda init: loops.fori_loop(0, STEPS, body, init), (jnp.float32(0.0),))


def eager_fresh_scan(loops: Loops) -> Program:
    """A scan of STEPS steps whose body is a lambda written at the call."""
    return Program(
        lambda init, xs: loops.scan(lambda c, x: (0.9 * c + x, c), init, xs),
        (jnp.float32(0.0), jnp.zeros(STEPS, jnp.float32)),
    )


def eager_fresh_while(loops: Loops) -> Program:
    """A while loop of STEPS steps whose functions are lambdas written at the call."""
    return Program(
        lambda *init: loops.while_loop(
            lambda c: c[0] < STEPS, lambda c: (c[0] + 1, 0.9 * c[1] + 1.0), init
        ),
        (jnp.int32(0), jnp.float32(0.0)),
    )
