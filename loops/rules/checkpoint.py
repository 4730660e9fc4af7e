"""jax.checkpoint around a loop: what a policy saves is saved, the rest is run again.

There are two kinds of rules, for the two implementations of jax.checkpoint. The older one splits
one equation of a jaxpr in two: one that runs forwards and returns residuals, and one that is run
again on the way back. The newer one (`jax_remat3`) does the same while the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loops import _jax
from loops.primitives.layout import (
    ScanInputs,
    keep,
    partition,
    split_scan_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.partial_evaluation import known_while
from loops.rules.residuals import plan_residuals, residuals_around, run_known


def scan_checkpoint(
    policy: Callable[..., Any], unknowns_in: Sequence[bool], inst_in: Sequence[bool], eqn: Any
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """Split a scan's equation.

    known:  [*known inputs] -> [*known outputs, *new residuals]
    staged: [*constant residuals, *all inputs, *stacked residuals] -> [*all outputs]
    """
    params = dict(eqn.params)
    jaxpr, num_consts, num_carry = (params.pop(k) for k in ("jaxpr", "num_consts", "num_carry"))
    given = split_scan_inputs(unknowns_in, num_consts, num_carry)
    num_ys = len(jaxpr.out_avals) - num_carry

    def transform(carry_unknown: list[bool]) -> tuple[Any, list[bool]]:
        unknowns = [*given.consts, *carry_unknown, *given.xs]
        ensure = [*carry_unknown, *[False] * num_ys]
        split = _jax.split_for_checkpoint(jaxpr, unknowns, ensure, policy)
        return split, split.unknowns_out[:num_carry]

    carry_unknown, split = grow_to_fixpoint(given.carry, transform)
    unknowns = ScanInputs(given.consts, carry_unknown, given.xs)
    invars = split_scan_inputs(eqn.invars, num_consts, num_carry)
    known = ScanInputs(*(partition(u, v)[0] for u, v in zip(unknowns, invars, strict=True)))
    num_outputs = split.unknowns_out.count(False)
    plan = plan_residuals(split.known_jaxpr, len(known.consts), len(known.carry), num_outputs)

    known_jaxpr = _known_function_jaxpr(plan, known, params, num_outputs)
    new_variable = _jax.variable_maker()
    known_outvars = partition(split.unknowns_out, eqn.outvars)[0]
    residuals = [new_variable(aval) for aval in known_jaxpr.out_avals[num_outputs:]]
    known_eqn = _jax.staged_call_equation(
        known_jaxpr, known.flat(), [*known_outvars, *residuals], eqn
    )

    stacked = [source.is_stacked for source in plan.sources]
    constant, rows = partition(stacked, residuals)
    staged_eqn = _jax.new_equation(
        scan_p,
        [*constant, *eqn.invars, *rows],
        eqn.outvars,
        dict(
            params,
            jaxpr=residuals_around(split.staged_jaxpr, stacked),
            num_consts=len(constant) + num_consts,
            num_carry=num_carry,
        ),
        eqn,
    )
    new_inputs = [*not_instantiated(inst_in, eqn), *residuals]
    return known_eqn, staged_eqn, split.unknowns_out, [True] * len(eqn.outvars), new_inputs


_jax.checkpoint_rules[scan_p] = scan_checkpoint


def _known_function_jaxpr(plan: Any, known: ScanInputs, params: dict, num_outputs: int) -> Any:
    """The known half as a jaxpr: [*known inputs] -> [*known outputs, *residuals]."""
    num_consts, num_carry = len(known.consts), len(known.carry)

    def known_half(*args: Any) -> list[Any]:
        run = run_known(plan, split_scan_inputs(args, num_consts, num_carry), params, num_outputs)
        return [*run.outputs, *run.residuals]

    avals = [v.aval for v in known.flat()]
    return _jax.trace_closed(known_half, avals, _jax.without_names(plan.loop_jaxpr))


def not_instantiated(inst_in: Sequence[bool], eqn: Any) -> list[Any]:
    """The inputs that the staged equation needs from the known side."""
    return [
        v
        for v, inst in zip(eqn.invars, inst_in, strict=True)
        if isinstance(v, _jax.Var) and not inst
    ]


def scan_rematerialize(
    split: Callable[[Any], tuple[Any, Any]],
    *args: Any,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any], Callable[..., list[Any]]]:
    """Run a scan that returns what the policy saves, and say how to run it again with that."""
    forwards, again = split(jaxpr)
    num_outputs = len(jaxpr.out_avals)
    plan = plan_residuals(forwards, num_consts, num_carry, num_outputs)
    run = run_known(plan, split_scan_inputs(args, num_consts, num_carry), params, num_outputs)
    stacked = [source.is_stacked for source in plan.sources]
    again_jaxpr = residuals_around(again, stacked)

    def run_again(residuals: list[Any], *args: Any) -> list[Any]:
        constant, rows = partition(stacked, residuals)
        return scan_p.bind(
            *constant,
            *args,
            *rows,
            jaxpr=again_jaxpr,
            num_consts=len(constant) + num_consts,
            num_carry=num_carry,
            **params,
        )

    return run.outputs, run.residuals, run_again


_jax.register_rematerialization(scan_p, scan_rematerialize)


def while_checkpoint(
    policy: Callable[..., Any], unknowns_in: Sequence[bool], inst_in: Sequence[bool], eqn: Any
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """Split a while loop's equation: the known carry now, and the whole loop again later."""
    del policy  # nothing can be saved of a number of steps that is not known in advance
    new_inputs = not_instantiated(inst_in, eqn)
    known = known_while(unknowns_in, **eqn.params)
    all_outputs = [True] * len(eqn.outvars)
    if known is None:
        return None, eqn, all_outputs, all_outputs, new_inputs
    known_outvars = partition(known.carry_unknown, eqn.outvars)[0]
    known_eqn = _jax.new_equation(
        while_p, keep(known.inputs_known, eqn.invars), known_outvars, known.params, eqn
    )
    return known_eqn, eqn, known.carry_unknown, all_outputs, new_inputs


_jax.checkpoint_rules[while_p] = while_checkpoint
