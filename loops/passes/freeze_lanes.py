"""A while loop over lanes, each with its own predicate, as a loop with one predicate.

running = cond(carry)
while any(running):
    carry = select(running, body(carry), carry)
    running = running and cond(carry)

The condition is computed once before the loop and once a step, as often as before: it may have
effects, and a loop that computed it in its condition and again in its body would take longer.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from loops import _jax
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import while_of_functions
from loops.weak_types import as_weak_as


def freeze_finished_lanes(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run the loop until no lane's predicate holds; a lane's carry never changes after its end."""
    cond_consts, body_consts, init = split_while_inputs(args, cond_nconsts, body_nconsts)

    # Equation by equation, and not as calls: then each operation keeps its scopes in its name.
    def holds_in_lanes(where: str, carry: list[Any]) -> Any:
        with jax.named_scope(where):
            (predicate,) = _jax.evaluate_jaxpr(cond_jaxpr, *cond_consts, *carry)
        return predicate

    def any_runs(running: Any, *_: Any) -> Any:
        return lax.reduce_or(running, tuple(range(running.ndim)))

    def step(running: Any, *carry: Any) -> list[Any]:
        stepped = _jax.evaluate_jaxpr(body_jaxpr, *body_consts, *carry)
        new = [select_lanes(running, *each) for each in zip(stepped, carry, strict=True)]
        return [running & holds_in_lanes("body_pred", new), *new]

    runs_at_all = holds_in_lanes("while/cond", init)
    _, *final = while_of_functions(any_runs, step, [runs_at_all, *init])
    return final


def select_lanes(running: Any, new: Any, old: Any) -> Any:
    """`new` in the lanes that run and `old` in the others; the lanes are the leading axes.

    The type is that of `new`: the types of a loop's outputs are those that its body returns.
    """
    if new is old:
        return old
    sharding, axes = jax.typeof(new).sharding, tuple(range(running.ndim))
    out_sharding = None if sharding.mesh.empty else sharding
    with _jax.mesh_of(new):
        mask = lax.broadcast_in_dim(running, new.shape, axes, out_sharding=out_sharding)
        return as_weak_as(lax.select(mask, new, old), jax.typeof(new))
