"""How often a running program evaluates the body of a loop: counted by a callback in the body.

The gradient of a loop of n steps evaluates its body n times on the way there, n times to go back
through each step, and in between as often as carries that were not kept are computed again. Those
last ones are what a schedule is about, and what is counted here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import loops

# The least possible numbers of steps to compute again, by steps and checkpoints, where the way
# there is run once anyway and the number of steps is known when it begins.
LEAST = {
    (1000, 2): 27864,
    (1000, 3): 11172,
    (1000, 5): 5292,
    (1000, 16): 1864,
    (1000, 31): 1442,
    (100, 2): 758,
    (100, 3): 397,
    (100, 12): 98,
}
# The same where nobody knows when the loop will end, with a way back that makes the best of it.
ONLINE = {
    (1000, 2): 28776,
    (1000, 3): 11736,
    (1000, 5): 5627,
    (1000, 16): 1978,
    (1000, 31): 1465,
    (100, 2): 832,
    (100, 3): 427,
    (100, 12): 143,
}
START = np.float32(0.5)


class Counter:
    """Counts how often a value passes, while its program runs."""

    def __init__(self) -> None:
        self.count = 0

        @jax.custom_jvp
        def passed(x: jax.Array) -> jax.Array:
            return jax.pure_callback(self._see, jax.ShapeDtypeStruct((), jnp.float32), x)

        passed.defjvp(lambda primals, tangents: (passed(*primals), tangents[0]))
        self.passed = passed

    def _see(self, x: Any) -> np.ndarray:
        self.count += 1
        return np.asarray(x)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Begin at zero, and end when all that was dispatched has run."""
        jax.effects_barrier()
        self.count = 0
        yield
        jax.effects_barrier()

    def step(self, x: jax.Array) -> jax.Array:
        """A step whose derivative needs its input, which passes."""
        return jnp.sin(self.passed(x))


def scanned(step: Callable[..., Any], x: Any, steps: Any, checkpoints: int) -> Any:
    """So many steps by a scan."""
    return loops.scan(lambda c, _: (step(c), None), x, None, int(steps), checkpoints=checkpoints)[0]


def counted(step: Callable[..., Any], x: Any, steps: Any, checkpoints: int) -> Any:
    """So many steps by a fori_loop; `steps` may be traced."""
    return loops.fori_loop(0, steps, lambda _, c: step(c), x, checkpoints=checkpoints)


def repeated(step: Callable[..., Any], x: Any, steps: Any, checkpoints: int) -> Any:
    """So many steps by a while loop; `steps` may be traced."""
    init = (jnp.int32(0), x)
    goes_on = lambda s: s[0] < steps
    run = lambda s: (s[0] + 1, step(s[1]))
    return loops.while_loop(goes_on, run, init, checkpoints=checkpoints)[1]


class Kind(NamedTuple):
    """A kind of loop, and whether its number of steps is traced."""

    run: Callable[..., Any]
    is_traced: bool


KINDS = {
    "scan": Kind(scanned, is_traced=False),
    "static fori": Kind(counted, is_traced=False),
    "traced fori": Kind(counted, is_traced=True),
    "while": Kind(repeated, is_traced=True),
}


def computed_again(name: str, steps: int, checkpoints: int) -> int:
    """How many steps a running gradient computes again, beside one there and one back for each."""
    kind, counter = KINDS[name], Counter()
    traced = (np.int32(steps),) if kind.is_traced else ()

    def run(x: jax.Array, *traced: jax.Array) -> jax.Array:
        return kind.run(counter.step, x, traced[0] if traced else steps, checkpoints)

    gradient = jax.jit(jax.grad(run))
    with counter.counting():
        jax.block_until_ready(gradient(START, *traced))
    return counter.count - 2 * steps
