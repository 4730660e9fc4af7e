"""jvp: the tangents ride through the loop beside the values.

Only what has a tangent gets one: the parts of the carry whose tangent stays zero at every step are
found by a fixpoint and carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.single_updates import simplify_single_updates
from loops.primitives.layout import (
    ScanInputs,
    keep,
    split_scan_inputs,
    split_scan_outputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint


def tangents_in(nonzeros: Sequence[bool], tangents: Sequence[Any]) -> list[Any]:
    """The tangents that a jvp body takes, with symbolic zeros among them made real."""
    return [_jax.instantiate_zeros(t) for t in keep(nonzeros, tangents)]


def tangents_out(
    nonzeros: Sequence[bool], tangents: Sequence[Any], primals: Sequence[Any]
) -> list[Any]:
    """All output tangents: those that the loop computed, and symbolic zeros for the others."""
    computed = iter(tangents)
    return [
        next(computed) if nonzero else _jax.zero_tangent(primal)
        for nonzero, primal in zip(nonzeros, primals, strict=True)
    ]


class JvpOfScan(NamedTuple):
    """A scan's body with tangents.

    jaxpr: [*consts, *consts', *carry, *carry', *x, *x'] -> [*carry, *carry', *y, *y']
    """

    jaxpr: Any
    nonzeros_in: list[bool]
    nonzeros_out: list[bool]


def jvp_of_scan_body(
    jaxpr: Any, nonzeros: Sequence[bool], num_consts: int, num_carry: int
) -> JvpOfScan:
    """Add tangents to a scan's body where the inputs have them, and where the carry gets them.

    Before: [*consts, *carry, *x, *consts', *carry', *x'] -> [*carry, *y, *carry', *y']
    After:  [*consts, *consts', *carry, *carry', *x, *x'] -> [*carry, *carry', *y, *y']
    """
    jaxpr = simplify_single_updates(jaxpr)
    given = split_scan_inputs(nonzeros, num_consts, num_carry)
    num_ys = len(jaxpr.out_avals) - num_carry

    def transform(carry_nonzero: list[bool]) -> tuple[tuple[Any, list[bool]], list[bool]]:
        nonzeros_in = [*given.consts, *carry_nonzero, *given.xs]
        result = _jax.jvp_jaxpr(jaxpr, nonzeros_in, [*carry_nonzero, *[False] * num_ys])
        return result, result[1][:num_carry]

    carry_nonzero, (jvp, nonzeros_out) = grow_to_fixpoint(given.carry, transform)
    nonzeros_in = [*given.consts, *carry_nonzero, *given.xs]
    inputs = beside_tangents(nonzeros_in, [num_consts, num_consts + num_carry])
    outputs = beside_tangents(nonzeros_out, [num_carry])
    return JvpOfScan(_jax.permute(jvp, inputs, outputs), nonzeros_in, list(nonzeros_out))


def beside_tangents(nonzeros: Sequence[bool], ends: Sequence[int]) -> list[int]:
    """Positions that put each group's tangents right after the group.

    The values stand first, in groups that end at `ends`, and the tangents of the nonzero ones after
    all of them.
    """
    order: list[int] = []
    start, next_tangent = 0, len(nonzeros)
    for end in [*ends, len(nonzeros)]:
        count = sum(nonzeros[start:end])
        order += [*range(start, end), *range(next_tangent, next_tangent + count)]
        start, next_tangent = end, next_tangent + count
    return order


def scan_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """Run one scan over values and tangents."""
    nonzeros = [not _jax.is_zero(t) for t in tangents]
    jvp = jvp_of_scan_body(jaxpr, nonzeros, num_consts, num_carry)
    values = split_scan_inputs(primals, num_consts, num_carry)
    marks = split_scan_inputs(jvp.nonzeros_in, num_consts, num_carry)
    groups = split_scan_inputs(tangents, num_consts, num_carry)
    dots = ScanInputs(*map(tangents_in, marks, groups))
    outputs = scan_p.bind(
        *values.consts,
        *dots.consts,
        *values.carry,
        *dots.carry,
        *values.xs,
        *dots.xs,
        jaxpr=jvp.jaxpr,
        num_consts=num_consts + len(dots.consts),
        num_carry=num_carry + len(dots.carry),
        **params,
    )
    carry, ys = split_scan_outputs(outputs, num_carry + len(dots.carry))
    num_ys = len(jaxpr.out_avals) - num_carry
    primals_out = [*carry[:num_carry], *ys[:num_ys]]
    computed = [*carry[num_carry:], *ys[num_ys:]]
    return primals_out, tangents_out(jvp.nonzeros_out, computed, primals_out)


_jax.primitive_jvps[scan_p] = scan_jvp


class JvpOfWhile(NamedTuple):
    """A while loop with tangents.

    cond_jaxpr: [*cond_consts, *carry, *carry'] -> [predicate]
    body_jaxpr: [*body_consts, *body_consts', *carry, *carry'] -> [*carry, *carry']
    """

    cond_jaxpr: Any
    body_jaxpr: Any
    body_consts_nonzero: list[bool]
    carry_nonzero: list[bool]


def jvp_of_while(
    nonzeros: Sequence[bool], cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> JvpOfWhile:
    """Add tangents to a while loop's body, and let its condition take no notice of them."""
    body_jaxpr = simplify_single_updates(body_jaxpr)
    given = split_while_inputs(nonzeros, cond_nconsts, body_nconsts)

    def transform(carry_nonzero: list[bool]) -> tuple[Any, list[bool]]:
        return _jax.jvp_jaxpr(body_jaxpr, [*given.body_consts, *carry_nonzero], carry_nonzero)

    carry_nonzero, jvp = grow_to_fixpoint(given.carry, transform)
    order = beside_tangents([*given.body_consts, *carry_nonzero], [body_nconsts])
    tangent_avals = [a.to_tangent_aval() for a in keep(carry_nonzero, body_jaxpr.out_avals)]
    cond_jaxpr = _jax.with_unused_inputs(cond_jaxpr, tangent_avals)
    return JvpOfWhile(cond_jaxpr, _jax.permute(jvp, order), given.body_consts, carry_nonzero)


def while_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[list[Any], list[Any]]:
    """Run one while loop over values and tangents."""
    nonzeros = [not _jax.is_zero(t) for t in tangents]
    jvp = jvp_of_while(nonzeros, cond_jaxpr, cond_nconsts, body_jaxpr, body_nconsts)
    values = split_while_inputs(primals, cond_nconsts, body_nconsts)
    dots = split_while_inputs(tangents, cond_nconsts, body_nconsts)
    body_dots = tangents_in(jvp.body_consts_nonzero, dots.body_consts)
    carry_dots = tangents_in(jvp.carry_nonzero, dots.carry)
    outputs = while_p.bind(
        *values.cond_consts,
        *values.body_consts,
        *body_dots,
        *values.carry,
        *carry_dots,
        cond_jaxpr=jvp.cond_jaxpr,
        cond_nconsts=cond_nconsts,
        body_jaxpr=jvp.body_jaxpr,
        body_nconsts=body_nconsts + len(body_dots),
    )
    carry, computed = outputs[: len(values.carry)], outputs[len(values.carry) :]
    return carry, tangents_out(jvp.carry_nonzero, computed, carry)


_jax.primitive_jvps[while_p] = while_jvp
