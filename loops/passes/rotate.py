"""A while loop whose condition has effects, with the condition moved into the body.

predicate = cond(carry)
while predicate:
    carry = body(carry)
    predicate = cond(carry)
"""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import while_of_functions


def move_condition_into_body(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run the condition once before the loop and once after each step, as often as before."""
    cond_consts, body_consts, init = split_while_inputs(args, cond_nconsts, body_nconsts)

    def predicate_of(carry: list[Any]) -> Any:
        (predicate,) = _jax.call_jaxpr(cond_jaxpr, *cond_consts, *carry)
        return predicate

    def body(_: Any, *carry: Any) -> list[Any]:
        new = _jax.call_jaxpr(body_jaxpr, *body_consts, *carry)
        return [predicate_of(new), *new]

    _, *final = while_of_functions(
        lambda predicate, *_: predicate, body, [predicate_of(init), *init]
    )
    return final
