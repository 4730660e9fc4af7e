"""The primitive `while`: a body jaxpr run as long as a condition jaxpr says so.

    while[cond_jaxpr cond_nconsts body_jaxpr body_nconsts]
        inputs      [*cond_consts, *body_consts, *init]
        cond_jaxpr  [*cond_consts, *carry] -> [predicate]
        body_jaxpr  [*body_consts, *carry] -> [*carry]
        outputs     [*carry]

The predicate is a boolean scalar, or after batching an array of booleans, one for each lane: then
the loop runs until all of them are False, a lane whose predicate is False keeps its carry, and the
predicate's shape is a prefix of the shape of each part of the carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from loops import _jax
from loops.equal_programs import first_equal_program
from loops.primitives.layout import split_while_inputs

# What is noted in a loop with one predicate that stands for a loop over lanes.
LANES_WRITTEN_OUT = "while over lanes"

while_p = _jax.Primitive("while")
while_p.multiple_results = True


def while_abstract_eval(
    *avals: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> tuple[list[Any], Any]:
    """The types of the final carry, and the effects of condition and body."""
    cond_consts, body_consts, carry = split_while_inputs(avals, cond_nconsts, body_nconsts)
    if len(cond_consts) + len(carry) != len(cond_jaxpr.in_avals):
        raise _jax.JaxprTypeError(
            "while passes its condition another number of inputs than it takes"
        )
    if len(body_consts) + len(carry) != len(body_jaxpr.in_avals):
        raise _jax.JaxprTypeError("while passes its body another number of inputs than it takes")
    effects = while_effects(cond_jaxpr, cond_nconsts, body_jaxpr, body_nconsts)
    return list(body_jaxpr.out_avals), effects


def while_effects(cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int) -> Any:
    """The effects of both jaxprs, with inputs numbered as the primitive takes them."""

    def from_cond(position: int) -> int:
        return position if position < cond_nconsts else position + body_nconsts

    cond_effects = _jax.renumber_effects(_jax.positional_effects(cond_jaxpr), from_cond)
    body_effects = _jax.renumber_effects(
        _jax.positional_effects(body_jaxpr), lambda position: position + cond_nconsts
    )
    return cond_effects | body_effects


def while_of_functions(
    cond: Callable[..., Any], body: Callable[..., Any], init: list[Any], what: str = "while"
) -> list[Any]:
    """Trace two functions of the flat carry and bind them. Their types are taken on trust.

    `what` is noted in the debug info of both jaxprs.
    """
    avals = [jax.typeof(x) for x in init]
    cond_traced = _jax.trace_flat(lambda *c: [cond(*c)], avals, _jax.debug_info(what, cond, *init))
    body_traced = _jax.trace_flat(body, avals, _jax.debug_info(what, body, *init))
    return while_p.bind(
        *cond_traced.consts,
        *body_traced.consts,
        *init,
        cond_jaxpr=cond_traced.jaxpr,
        cond_nconsts=len(cond_traced.consts),
        body_jaxpr=body_traced.jaxpr,
        body_nconsts=len(body_traced.consts),
    )


while_p.def_effectful_abstract_eval(while_abstract_eval)


def while_eagerly(*args: Any, cond_jaxpr: Any, body_jaxpr: Any, **params: Any) -> list[Any]:
    """Compile a while loop on its own and run it; equal loops are compiled once."""
    may_share_ref = cond_jaxpr.effects and body_jaxpr.effects
    apply = _jax.apply_primitive_to_refs if may_share_ref else _jax.apply_primitive
    return apply(
        while_p,
        *args,
        cond_jaxpr=first_equal_program(cond_jaxpr),
        body_jaxpr=first_equal_program(body_jaxpr),
        **params,
    )


while_p.def_impl(while_eagerly)
while_p.skip_canonicalization = True
while_p.is_effectful = lambda params: bool(
    params["cond_jaxpr"].effects or params["body_jaxpr"].effects
)
