"""linearize and vjp: the values now, and a program that is linear in the tangents for later.

A scan is linearized body first: one scan computes the values and stacks the residuals, a second
one, linear, runs over the tangents. A while loop runs an unknown number of steps and cannot stack,
so its tangent program runs the values again beside the tangents; it cannot be transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves

from loops import _jax
from loops.passes.single_updates import simplify_single_updates
from loops.primitives.layout import partition, split_scan_inputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.forward_mode import (
    jvp_of_while,
    tangents_in,
    tangents_out,
    while_jvp,
)
from loops.rules.residuals import plan_residuals, residuals_around, run_known


def scan_linearize(
    is_vjp: bool,
    nonzeros: Sequence[bool],
    *primals: Any,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[Any, ...]:
    """Run a scan that also stacks residuals; its tangents are a linear scan over them."""
    jaxpr = simplify_single_updates(jaxpr)
    given = split_scan_inputs(nonzeros, num_consts, num_carry)
    num_outputs = len(jaxpr.out_avals)

    def transform(carry_nonzero: list[bool]) -> tuple[Any, list[bool]]:
        nonzeros_in = [*given.consts, *carry_nonzero, *given.xs]
        instantiate = [*carry_nonzero, *[False] * (num_outputs - num_carry)]
        linearized = _jax.linearize_jaxpr(jaxpr, nonzeros_in, instantiate, is_vjp)
        return linearized, linearized.nonzeros_out[:num_carry]

    carry_nonzero, body = grow_to_fixpoint(given.carry, transform)
    num_structured = len(body.structured or ())
    plan = plan_residuals(body.primal_jaxpr, num_consts, num_carry, num_outputs, num_structured)
    inputs = split_scan_inputs(primals, num_consts, num_carry)
    outputs, residuals = run_known(plan, inputs, params, num_outputs)
    num_plain = len(residuals) - num_structured
    structured = None
    if body.structured:
        structured = body.structured.update(residuals[num_plain:]).unflatten()

    stacked = [source.is_stacked for source in plan.sources]
    tangent_jaxpr = residuals_around(body.tangent_jaxpr, stacked)
    nonzeros_in = [*given.consts, *carry_nonzero, *given.xs]
    num_constant = len(stacked) - sum(stacked)

    def tangent_fun(plain: list[Any], structured: Any, *tangents: Any) -> list[Any]:
        constant, rows = partition(stacked, [*plain, *tree_leaves(structured)])
        dots = tangents_in(nonzeros_in, tangents)
        computed = _jax.tangent_primitive(scan_p, is_vjp).bind(
            *constant,
            *dots,
            *rows,
            jaxpr=tangent_jaxpr,
            num_consts=num_constant + sum(given.consts),
            num_carry=sum(carry_nonzero),
            **params,
        )
        return tangents_out(body.nonzeros_out, computed, outputs)

    return _jax.linearize_result(
        outputs, body.nonzeros_out, residuals[:num_plain], structured, tangent_fun
    )


_jax.primitive_linearizations[scan_p] = scan_linearize


def while_linearize(
    is_vjp: bool, nonzeros: Sequence[bool], *primals: Any, **params: Any
) -> tuple[Any, ...]:
    """Run a while loop; its tangents are a loop over values and tangents from the same init.

    The residuals are the loop's inputs.
    """
    del is_vjp
    outputs = while_p.bind(*primals, **params)
    nonzeros_out = jvp_of_while(nonzeros, **params).carry_nonzero

    def tangent_fun(residuals: list[Any], _: Any, *tangents: Any) -> list[Any]:
        return while_jvp(residuals, tangents, **params)[1]

    return _jax.linearize_result(outputs, nonzeros_out, list(primals), None, tangent_fun)


_jax.primitive_linearizations[while_p] = while_linearize
