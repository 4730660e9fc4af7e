"""Dead code: a loop without the ys, carry, consts and xs that nothing needs.

A part of the carry is needed if it is used after the loop, or if a step needs it to compute a part
that is needed: a fixpoint. Effects stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loops import _jax
from loops.primitives.layout import keep, split_scan_inputs, split_scan_outputs, split_while_inputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint


def live_scan_body(
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    used_outputs: Sequence[bool],
    live_inputs: Sequence[bool],
) -> tuple[_jax.DeadCodeResult, list[bool]]:
    """A scan's body without what no used output needs, and which outputs it still has."""
    used = split_scan_outputs(used_outputs, num_carry)
    num_xs = len(jaxpr.in_avals) - num_consts - num_carry

    def transform(marked: list[bool]) -> tuple[Any, list[bool]]:
        carry_used, live = marked[:num_carry], marked[num_carry:]
        result = _jax.eliminate_dead_code(
            jaxpr,
            [*carry_used, *used.ys],
            [*[False] * num_consts, *carry_used, *[False] * num_xs],
            live,
        )
        return result, [
            *result.used_inputs[num_consts : num_consts + num_carry],
            *result.used_inputs,
        ]

    marked, result = grow_to_fixpoint([*used.carry, *live_inputs], transform)
    return result, [*marked[:num_carry], *used.ys]


def scan_dead_code(
    used_outputs: Sequence[bool], live_inputs: Sequence[bool], eqn: Any
) -> tuple[list[bool], Any]:
    """Drop from a scan what none of its used outputs needs."""
    if not any(used_outputs) and not _jax.must_keep(eqn, live_inputs):
        return [False] * len(eqn.invars), None
    num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    result, outputs = live_scan_body(
        eqn.params["jaxpr"], num_consts, num_carry, used_outputs, live_inputs
    )
    if result.jaxpr is eqn.params["jaxpr"] and all(result.used_inputs) and all(outputs):
        return result.used_inputs, eqn
    used = split_scan_inputs(result.used_inputs, num_consts, num_carry)
    params = dict(
        eqn.params,
        jaxpr=result.jaxpr,
        num_consts=sum(used.consts),
        num_carry=sum(used.carry),
    )
    invars, outvars = keep(result.used_inputs, eqn.invars), keep(outputs, eqn.outvars)
    return result.used_inputs, _jax.new_equation(eqn.primitive, invars, outvars, params, eqn)


_jax.register_dead_code_rule(scan_p, scan_dead_code)


def while_dead_code(
    used_outputs: Sequence[bool], live_inputs: Sequence[bool], eqn: Any
) -> tuple[list[bool], Any]:
    """Drop the carry that neither the outputs nor the condition needs.

    A Ref that is read anywhere in the loop is live in all of it, because condition and body run
    again; one Ref may be a constant of both.
    """
    if not any(used_outputs) and not _jax.must_keep(eqn, live_inputs):
        return [False] * len(eqn.invars), None
    params, num_carry = eqn.params, len(eqn.outvars)
    cond_nconsts, body_nconsts = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, _ = split_while_inputs(eqn.invars, cond_nconsts, body_nconsts)
    consts = [*cond_consts, *body_consts]

    def transform(marked: list[bool]) -> tuple[Any, list[bool]]:
        carry_used, live = marked[:num_carry], _live_everywhere(marked[num_carry:], consts)
        alive = [True] * num_carry
        cond = _jax.eliminate_dead_code(
            params["cond_jaxpr"],
            [True],
            [*[False] * cond_nconsts, *carry_used],
            [*live[:cond_nconsts], *alive],
        )
        body = _jax.eliminate_dead_code(
            params["body_jaxpr"],
            carry_used,
            [*[False] * body_nconsts, *carry_used],
            [*live[cond_nconsts:], *alive],
        )
        cond_used, body_used = cond.used_inputs, body.used_inputs
        needed = [
            a or b for a, b in zip(cond_used[cond_nconsts:], body_used[body_nconsts:], strict=True)
        ]
        used_consts = [*cond_used[:cond_nconsts], *body_used[:body_nconsts]]
        return (cond, body), [*needed, *(a or b for a, b in zip(used_consts, live, strict=True))]

    start = [*used_outputs, *live_inputs[: len(consts)]]
    marked, (cond, body) = grow_to_fixpoint(start, transform)
    carry_used = marked[:num_carry]
    used_inputs = [
        *cond.used_inputs[:cond_nconsts],
        *body.used_inputs[:body_nconsts],
        *carry_used,
    ]
    unchanged = cond.jaxpr is params["cond_jaxpr"] and body.jaxpr is params["body_jaxpr"]
    if unchanged and all(used_inputs):
        return used_inputs, eqn
    new_params = {
        "cond_jaxpr": cond.jaxpr,
        "cond_nconsts": sum(cond.used_inputs[:cond_nconsts]),
        "body_jaxpr": body.jaxpr,
        "body_nconsts": sum(body.used_inputs[:body_nconsts]),
    }
    invars, outvars = keep(used_inputs, eqn.invars), keep(carry_used, eqn.outvars)
    return used_inputs, _jax.new_equation(eqn.primitive, invars, outvars, new_params, eqn)


def _live_everywhere(live: Sequence[bool], variables: Sequence[Any]) -> list[bool]:
    """Mark all places of a variable that is marked at one of them; literals are marked."""
    marked = {v for v, is_live in zip(variables, live, strict=True) if is_live and _is_variable(v)}
    return [not _is_variable(v) or v in marked for v in variables]


def _is_variable(atom: Any) -> bool:
    return isinstance(atom, _jax.Var)


_jax.register_dead_code_rule(while_p, while_dead_code)
