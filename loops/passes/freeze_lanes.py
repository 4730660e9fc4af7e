"""A while loop over lanes, each with its own predicate, as a loop with one predicate.

while any(cond(carry)):
    running = cond(carry)
    carry = select(running, body(carry), carry)
"""

from __future__ import annotations

from typing import Any

from jax import lax

from loops import _jax
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import while_of_functions


def freeze_finished_lanes(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run the loop until no lane's predicate holds; a lane's carry never changes after its end."""
    cond_consts, body_consts, init = split_while_inputs(args, cond_nconsts, body_nconsts)

    def lanes_running(carry: tuple[Any, ...]) -> Any:
        (running,) = _jax.call_jaxpr(cond_jaxpr, *cond_consts, *carry)
        return running

    def cond(*carry: Any) -> Any:
        running = lanes_running(carry)
        return lax.reduce_or(running, tuple(range(running.ndim)))

    def body(*carry: Any) -> list[Any]:
        running = lanes_running(carry)
        stepped = _jax.call_jaxpr(body_jaxpr, *body_consts, *carry)
        return [select_lanes(running, new, old) for new, old in zip(stepped, carry, strict=True)]

    return while_of_functions(cond, body, init)


def select_lanes(running: Any, new: Any, old: Any) -> Any:
    """`new` in the lanes that run and `old` in the others; the lanes are the leading axes."""
    if new is old:
        return old
    mask = lax.broadcast_in_dim(running, new.shape, tuple(range(running.ndim)))
    return lax.select(mask, new, old)
