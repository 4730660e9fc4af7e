"""Transposition: a linear scan run backwards over cotangents.

    forwards    carry' [t+1], y'[t] = linear(consts', carry'[t], x'[t])
    backwards   carry~ [t],   x~[t] = linear^T(carry~[t+1], y~[t]),  and consts~ add up

A while loop has no transpose: nothing says how many steps to run backwards.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.tree_util import tree_flatten, tree_unflatten

from loops import _jax
from loops.data_flow import depends_on
from loops.passes.accumulate_in_place import accumulate_in_place, changes_in_place
from loops.primitives.layout import ScanInputs, keep, split_scan_inputs, split_scan_outputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.dead_code import live_scan_body
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.partial_evaluation import split_scan


class Accumulation(enum.Enum):
    """What becomes of the cotangent of an input."""

    NONE = enum.auto()  # the input is no tangent: it is read
    DROPPED = enum.auto()  # nobody asks for it
    VALUE = enum.auto()  # summed in the carry (consts) or stacked (xs)
    REF = enum.auto()  # added in place to a Ref, which the loop takes as an input


def accumulation_of(arg: Any, body_aval: Any) -> Accumulation:
    """How the cotangent of one argument of the transposition rule is accumulated."""
    if not isinstance(arg, _jax.GradAccum):
        return Accumulation.NONE
    if isinstance(arg, _jax.NullAccum):
        return Accumulation.DROPPED
    if isinstance(arg, _jax.RefAccum) and _jax.is_ref(body_aval):
        return Accumulation.REF
    return Accumulation.VALUE


class LinearScan(NamedTuple):
    """A linear scan: its arguments (values and accumulators), body and cotangents."""

    args: ScanInputs
    jaxpr: Any
    carry_cotangents: list[Any]
    ys_cotangents: list[Any]


def scan_transpose(
    cotangents: Sequence[Any],
    *args: Any,
    jaxpr: Any,
    length: Any,
    reverse: bool,
    unroll: int,
    num_consts: int,
    num_carry: int,
) -> Any:
    """Pull cotangents back through a linear scan, into the accumulators among `args`."""
    params = {"length": length, "reverse": reverse, "unroll": unroll}
    cts = split_scan_outputs(cotangents, num_carry)
    linear = LinearScan(split_scan_inputs(args, num_consts, num_carry), jaxpr, cts.carry, cts.ys)
    linear = _drop_unneeded(_only_linear_carry(linear, params))
    if not linear.jaxpr.out_avals and not linear.jaxpr.effects:
        return None
    in_types = split_scan_inputs(
        linear.jaxpr.in_avals, len(linear.args.consts), len(linear.args.carry)
    )
    consts_how = tuple(map(accumulation_of, linear.args.consts, in_types.consts))
    xs_how = tuple(map(accumulation_of, linear.args.xs, in_types.xs))
    transposed = transpose_body(linear.jaxpr, consts_how, len(linear.args.carry), xs_how)

    consts = _by_accumulation(linear.args.consts, consts_how)
    xs = _by_accumulation(linear.args.xs, xs_how)
    sums = _first_sums(transposed.jaxpr, consts)
    carry = [_jax.instantiate_zeros(ct) for ct in linear.carry_cotangents]
    outputs = scan_p.bind(
        *consts[Accumulation.NONE],
        *(acc.inst().ref for acc in consts[Accumulation.REF]),
        *sums,
        *carry,
        *(acc.inst().ref for acc in xs[Accumulation.REF]),
        *linear.ys_cotangents,
        *xs[Accumulation.NONE],
        jaxpr=transposed.jaxpr,
        length=length,
        reverse=not reverse,
        unroll=unroll,
        num_consts=len(consts[Accumulation.NONE]) + len(consts[Accumulation.REF]),
        num_carry=len(sums) + len(carry),
    )
    accumulators = [*consts[Accumulation.VALUE], *linear.args.carry, *xs[Accumulation.VALUE]]
    for accumulator, ct in zip(accumulators, outputs, strict=False):
        if isinstance(accumulator, _jax.GradAccum):  # an initial carry may be a plain zero
            accumulator.accum(ct)
    return tree_unflatten(transposed.log_tree, outputs[len(accumulators) :])


_jax.accumulating_transposes[scan_p] = scan_transpose


def _first_sums(transposed: Any, consts: dict[Any, list[Any]]) -> list[Any]:
    """What the cotangents of constants are added to: zeros, or the sum so far.

    A loop that adds few rows in place goes on with the sum so far: a sum of its own would have to
    be made and added, each as large as the buffer, and at each step if the loop is in another one.
    """
    start = len(consts[Accumulation.NONE]) + len(consts[Accumulation.REF])
    return [
        _jax.take_sum(acc)
        if changes_in_place(transposed, start + i, i)
        else _jax.zeros_like_aval(acc.aval)
        for i, acc in enumerate(consts[Accumulation.VALUE])
    ]


def _by_accumulation(args: Sequence[Any], how: Sequence[Accumulation]) -> dict[Any, list[Any]]:
    return {kind: keep([h is kind for h in how], args) for kind in Accumulation}


def _only_linear_carry(scan: LinearScan, params: dict[str, Any]) -> LinearScan:
    """Run what is not linear in a scan (a counter, say), so that all of its carry is linear.

    The usual scan, made by linearization, is linear already: a look at the data flow shows it.
    """
    num_consts, num_carry = len(scan.args.consts), len(scan.args.carry)
    is_linear = [isinstance(x, _jax.GradAccum) for x in scan.args.flat()]
    marks = split_scan_inputs(is_linear, num_consts, num_carry)

    def transform(carry_linear: list[bool]) -> tuple[None, list[bool]]:
        reached = depends_on(scan.jaxpr, [*marks.consts, *carry_linear, *marks.xs])
        return None, reached[:num_carry]

    carry_linear, _ = grow_to_fixpoint(marks.carry, transform)
    if all(carry_linear):
        return scan
    split = split_scan(
        is_linear,
        scan.args.flat(),
        jaxpr=scan.jaxpr,
        num_consts=num_consts,
        num_carry=num_carry,
        **params,
    )
    later = split.unknown_params
    args = [
        *split.constant_residuals,
        *keep(split.unknowns_in, scan.args.flat()),
        *split.stacked_residuals,
    ]
    cts = split_scan_outputs(
        keep(split.unknowns_out, [*scan.carry_cotangents, *scan.ys_cotangents]), later["num_carry"]
    )
    groups = split_scan_inputs(args, later["num_consts"], later["num_carry"])
    return LinearScan(groups, later["jaxpr"], cts.carry, cts.ys)


def _drop_unneeded(scan: LinearScan) -> LinearScan:
    """Leave out what no cotangent reaches.

    A cotangent that is a symbolic zero stays one, so a NaN in a value that the result does not
    depend on is never multiplied by zero.
    """
    num_consts, num_carry = len(scan.args.consts), len(scan.args.carry)
    cotangents = [*scan.carry_cotangents, *scan.ys_cotangents]
    reached = [not _jax.is_zero(ct) for ct in cotangents]
    args = scan.args.flat()
    live, outputs = live_scan_body(scan.jaxpr, num_consts, num_carry, reached, [True] * len(args))
    used = split_scan_inputs(live.used_inputs, num_consts, num_carry)
    kept = split_scan_inputs(keep(live.used_inputs, args), sum(used.consts), sum(used.carry))
    cts = split_scan_outputs(keep(outputs, cotangents), len(kept.carry))
    return LinearScan(kept, live.jaxpr, cts.carry, cts.ys)


class TransposedBody(NamedTuple):
    """A transposed body, and the structure of the log that its equations write at each step."""

    jaxpr: Any
    log_tree: Any


@_jax.cached_by_jaxpr
def transpose_body(
    jaxpr: Any,
    consts_how: tuple[Accumulation, ...],
    num_carry: int,
    xs_how: tuple[Accumulation, ...],
) -> TransposedBody:
    """Transpose a linear body.

    Before: [*consts, *carry', *x] -> [*carry', *y']
    After:  [*read consts, *Refs of consts, *sums of consts~, *carry~, *Refs of xs, *y~, *read x]
            -> [*sums of consts~, *carry~, *x~, *log]
    """
    types = split_scan_inputs(_jax.types_with_boxes(jaxpr), len(consts_how), num_carry)
    out_types = split_scan_outputs(jaxpr.out_avals, num_carry)
    consts = _by_accumulation(types.consts, consts_how)
    xs = _by_accumulation(types.xs, xs_how)

    def cotangent(avals: list[Any]) -> list[Any]:
        return [aval.to_ct_aval() for aval in avals]

    in_avals = [
        *consts[Accumulation.NONE],
        *consts[Accumulation.REF],
        *cotangent(consts[Accumulation.VALUE]),
        *cotangent(out_types.carry),
        *xs[Accumulation.REF],
        *cotangent(out_types.ys),
        *xs[Accumulation.NONE],
    ]
    log_tree = None

    def transposed(*args: Any) -> list[Any]:
        nonlocal log_tree
        values = iter(args)

        def take(group: Sequence[Any]) -> list[Any]:
            return [next(values) for _ in group]

        supply = {
            Accumulation.NONE: take(consts[Accumulation.NONE]),
            Accumulation.REF: take(consts[Accumulation.REF]),
            Accumulation.VALUE: take(consts[Accumulation.VALUE]),
        }
        carry_cts = take(out_types.carry)
        xs_refs = take(xs[Accumulation.REF])
        ys_cts = take(out_types.ys)
        xs_supply = {Accumulation.REF: xs_refs, Accumulation.NONE: take(xs[Accumulation.NONE])}
        primals = ScanInputs(
            _accumulators(types.consts, consts_how, supply),
            [_jax.ValAccum(aval.to_ct_aval()) for aval in types.carry],
            _accumulators(types.xs, xs_how, xs_supply),
        )
        log = _jax.backward_pass(jaxpr, primals.flat(), [*carry_cts, *ys_cts])
        leaves, log_tree = tree_flatten(log)
        sums = [p for p in primals.flat() if isinstance(p, _jax.ValAccum)]
        return [*(_jax.instantiate_zeros(p.freeze()) for p in sums), *leaves]

    jaxpr_transposed = _jax.trace_closed(transposed, in_avals, _jax.without_names(jaxpr))
    return TransposedBody(accumulate_in_place(jaxpr_transposed), log_tree)


def _accumulators(
    avals: Sequence[Any], how: Sequence[Accumulation], supply: dict[Any, list[Any]]
) -> list[Any]:
    """What the backward pass gets for each input: a value to read, or an accumulator."""
    supplies = {kind: iter(values) for kind, values in supply.items()}

    def accumulator(aval: Any, kind: Accumulation) -> Any:
        given = next(supplies[kind]) if kind in supplies else None
        match kind:
            case Accumulation.NONE:
                return given
            case Accumulation.DROPPED:
                return _jax.NullAccum(aval.to_ct_aval())
            case Accumulation.REF:
                return _jax.RefAccum(aval.inner_aval.to_ct_aval(), given)
            case Accumulation.VALUE:
                return _jax.ValAccum(aval.to_ct_aval(), given)

    return [accumulator(aval, kind) for aval, kind in zip(avals, how, strict=True)]


def while_transpose(cotangents: Sequence[Any], *args: Any, body_jaxpr: Any, **_: Any) -> list[None]:
    """Refuse, with the ways out, unless nothing is asked of the loop."""
    if all(_jax.is_zero(ct) for ct in cotangents):
        return [None] * len(args)
    error = ValueError(
        "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with "
        "dynamic start/stop values. Try using lax.scan, or using fori_loop with static start/stop."
    )
    error.add_note(
        f"The loop's body is {_jax.source_of(body_jaxpr)}. With `max_steps=` or `checkpoints=` the "
        "loop has derivatives in reverse mode too, whatever its number of steps."
    )
    raise error


_jax.primitive_transposes[while_p] = while_transpose
