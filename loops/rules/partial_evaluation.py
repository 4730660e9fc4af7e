"""Partial evaluation: run what is known now, and stage a loop over what is not.

A part of the carry is unknown if its init is, or if a step makes it depend on something unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.primitives.layout import (
    ScanInputs,
    keep,
    merge,
    partition,
    split_scan_inputs,
    split_scan_outputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.residuals import plan_residuals, residuals_around, run_known


class SplitScan(NamedTuple):
    """A scan whose known part has been run.

    `unknown_params` are those of the scan to run later, on
    [*constant residuals, *unknown consts, *unknown carry, *unknown xs, *stacked residuals].
    """

    known_outputs: list[Any]
    constant_residuals: list[Any]
    stacked_residuals: list[Any]
    unknowns_in: list[bool]
    unknowns_out: list[bool]
    unknown_params: dict[str, Any]


def split_scan(
    unknowns: Sequence[bool],
    inputs: Sequence[Any],
    *,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> SplitScan:
    """Run the part of a scan that depends on known inputs alone; the others are not looked at."""
    given = split_scan_inputs(unknowns, num_consts, num_carry)
    num_ys = len(jaxpr.out_avals) - num_carry

    def transform(carry_unknown: list[bool]) -> tuple[Any, list[bool]]:
        unknowns_in = [*given.consts, *carry_unknown, *given.xs]
        split = _jax.split_known(jaxpr, unknowns_in, [*carry_unknown, *[False] * num_ys])
        return split, split.unknowns_out[:num_carry]

    carry_unknown, split = grow_to_fixpoint(given.carry, transform)
    unknowns_in = ScanInputs(given.consts, carry_unknown, given.xs)
    groups = split_scan_inputs(inputs, num_consts, num_carry)
    known = ScanInputs(*(partition(u, g)[0] for u, g in zip(unknowns_in, groups, strict=True)))
    num_outputs = split.unknowns_out.count(False)
    plan = plan_residuals(split.known_jaxpr, len(known.consts), len(known.carry), num_outputs)
    run = run_known(plan, known, params, num_outputs)
    stacked = [source.is_stacked for source in plan.sources]
    constant_residuals, stacked_residuals = partition(stacked, run.residuals)
    unknown_params = dict(
        params,
        jaxpr=residuals_around(split.unknown_jaxpr, stacked),
        num_consts=len(constant_residuals) + sum(given.consts),
        num_carry=sum(carry_unknown),
    )
    return SplitScan(
        run.outputs,
        constant_residuals,
        stacked_residuals,
        unknowns_in.flat(),
        split.unknowns_out,
        unknown_params,
    )


def scan_partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    """Run the known part of a scan and stage the rest as one scan."""
    unknowns = [not t.pval.is_known() for t in tracers]
    values = [t.pval.get_known() for t in tracers]
    split = split_scan(unknowns, values, **params)
    inputs = [
        *split.constant_residuals,
        *keep(split.unknowns_in, tracers),
        *split.stacked_residuals,
    ]
    carry, ys = split_scan_outputs(
        split.unknown_params["jaxpr"].out_avals, split.unknown_params["num_carry"]
    )
    avals = [*carry, *(_jax.unmapped_leading_aval(params["length"], aval) for aval in ys)]
    unknown = _jax.unknown_outputs(trace, scan_p, inputs, avals, split.unknown_params)
    return merge(split.unknowns_out, split.known_outputs, unknown)


_jax.partial_eval_rules[scan_p] = scan_partial_eval


class KnownWhile(NamedTuple):
    """The part of a while loop that can be run on known inputs: which carry, and its parameters."""

    carry_unknown: list[bool]
    inputs_known: list[bool]
    params: dict[str, Any]


def known_while(
    unknowns: Sequence[bool],
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> KnownWhile | None:
    """The known part of a while loop, or None if its condition or all of its carry is unknown.

    No residual leaves a loop whose number of steps is not known in advance, so what is unknown is
    computed later by the whole loop, run again.
    """
    given = split_while_inputs(unknowns, cond_nconsts, body_nconsts)

    def transform(carry_unknown: list[bool]) -> tuple[Any, list[bool]]:
        split = _jax.split_known(body_jaxpr, [*given.body_consts, *carry_unknown], carry_unknown)
        return split, split.unknowns_out

    carry_unknown, body = grow_to_fixpoint(given.carry, transform)
    cond = _jax.split_known(cond_jaxpr, [*given.cond_consts, *carry_unknown], [False])
    if cond.unknowns_out[0] or all(carry_unknown):
        return None
    num_known = carry_unknown.count(False)
    body_known = _jax.permute(
        body.known_jaxpr, range(len(body.known_jaxpr.in_avals)), range(num_known)
    )
    params = {
        "cond_jaxpr": cond.known_jaxpr,
        "cond_nconsts": given.cond_consts.count(False),
        "body_jaxpr": body_known,
        "body_nconsts": given.body_consts.count(False),
    }
    inputs_known = [not u for u in (*given.cond_consts, *given.body_consts, *carry_unknown)]
    return KnownWhile(carry_unknown, inputs_known, params)


def while_partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    """Run the known carry now, and stage the whole loop for the unknown carry."""
    known = known_while([not t.pval.is_known() for t in tracers], **params)
    if known is None:
        return trace.default_process_primitive(while_p, tracers, params)
    values = [t.pval.get_known() for t in keep(known.inputs_known, tracers)]
    known_outputs = while_p.bind(*values, **known.params)
    if not any(known.carry_unknown):  # an unknown constant that no part of the carry depends on
        return known_outputs
    all_outputs = trace.default_process_primitive(while_p, tracers, params)
    return merge(known.carry_unknown, known_outputs, keep(known.carry_unknown, all_outputs))


_jax.partial_eval_rules[while_p] = while_partial_eval
