"""checkify: a loop that also reports its first error.

A step's checks start from nothing, and what they find is kept if no earlier step has failed. So one
rule decides everywhere, in a step and around a loop: what came first stays, whatever its kind. JAX
keeps the first error of each kind and then takes the one whose check stands first in the program,
though another may have failed many steps earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from loops import _jax
from loops.interop.checked_lanes import (
    refuse_lanes_batched_without_checks,
    repeat_last_step_in_finished_lanes,
    with_last_steps,
)
from loops.passes.freeze_lanes import select_lanes
from loops.passes.rotate import move_condition_into_body
from loops.primitives.layout import split_scan_inputs, split_scan_outputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


def scan_checks(
    checks: _jax.Checks,
    error: Any,
    *args: Any,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[Any, list[Any]]:
    """Run a scan that carries its first error behind its carry."""
    checked = _jax.add_checks(jaxpr, checks.enabled)
    consts, carry, xs = split_scan_inputs(args, num_consts, num_carry)
    no_error = _no_error(checked)
    outputs = scan_p.bind(
        *consts,
        *carry,
        *no_error,
        *xs,
        jaxpr=_checked_scan_body(
            jaxpr, checks.enabled, num_consts, num_carry, tuple(map(jax.typeof, no_error))
        ),
        num_consts=num_consts,
        num_carry=num_carry + len(no_error),
        **params,
    )
    end = num_carry + len(no_error)
    error = _add_error(checks, error, checked, outputs[num_carry:end])
    return error, [*outputs[:num_carry], *outputs[end:]]


_jax.register_error_check(scan_p, scan_checks)


@_jax.cached_by_jaxpr
def _checked_scan_body(
    jaxpr: Any, enabled: frozenset, num_consts: int, num_carry: int, error_avals: tuple[Any, ...]
) -> Any:
    """Let a step keep an earlier step's error.

    Before: [*consts, *carry, *x]         -> [*carry, *y]
    After:  [*consts, *carry, *error, *x] -> [*carry, *error, *y]
    """
    checked = _jax.add_checks(jaxpr, enabled)
    num_errors = len(error_avals)

    def body(*flat: Any) -> list[Any]:
        consts, state, xs = split_scan_inputs(flat, num_consts, num_carry + num_errors)
        carry, earlier = state[:num_carry], state[num_carry:]
        outputs = _jax.evaluate_jaxpr(checked.jaxpr, *consts, *carry, *xs)
        kept = _first_leaves(checked, earlier, outputs[:num_errors])
        new_carry, ys = split_scan_outputs(outputs[num_errors:], num_carry)
        return [*new_carry, *kept, *ys]

    given = split_scan_inputs(jaxpr.in_avals, num_consts, num_carry)
    avals = [*given.consts, *given.carry, *error_avals, *given.xs]
    return _jax.trace_closed(body, avals, _jax.without_names(jaxpr))


def while_checks(
    checks: _jax.Checks,
    error: Any,
    *args: Any,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[Any, list[Any]]:
    """Run a while loop that carries its first error behind its carry.

    A condition that may fail moves into the body, where it is computed once a step. A loop over
    lanes that may fail becomes one with one predicate, because its error belongs to all lanes.
    """
    cond = _jax.add_checks(cond_jaxpr, checks.enabled)
    checked = _jax.add_checks(body_jaxpr, checks.enabled)
    num_cond_errors, num_errors = cond.error_tree.num_leaves, checked.error_tree.num_leaves
    has_lanes = bool(cond_jaxpr.out_avals[0].shape)
    if num_cond_errors or num_errors:
        refuse_lanes_batched_without_checks(body_jaxpr)
    if num_cond_errors or (has_lanes and num_errors):
        params = {
            "cond_jaxpr": cond_jaxpr,
            "cond_nconsts": cond_nconsts,
            "body_jaxpr": body_jaxpr,
            "body_nconsts": body_nconsts,
        }
        if has_lanes:
            cond_inputs = (*args[:cond_nconsts], *args[cond_nconsts + body_nconsts :])
            *leaves, running = _jax.evaluate_jaxpr(cond.jaxpr, *cond_inputs)
            error = _add_error(checks, error, cond, leaves)
            args = (running, *with_last_steps(running, args, **params))
        rewritten = _with_predicate_in_carry(cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts)
        return call_checks(checks, error, *args, call_jaxpr=rewritten)
    no_error = _no_error(checked)
    error_avals = tuple(map(jax.typeof, no_error))
    outputs = while_p.bind(
        *args,
        *no_error,
        cond_jaxpr=_jax.with_unused_inputs(cond.jaxpr, error_avals),
        cond_nconsts=cond_nconsts,
        body_jaxpr=_checked_while_body(body_jaxpr, checks.enabled, error_avals),
        body_nconsts=body_nconsts,
    )
    num_carry = len(outputs) - len(no_error)
    return _add_error(checks, error, checked, outputs[num_carry:]), outputs[:num_carry]


_jax.register_error_check(while_p, while_checks)


@_jax.cached_by_jaxpr
def _checked_while_body(jaxpr: Any, enabled: frozenset, error_avals: tuple[Any, ...]) -> Any:
    """Let a step keep an earlier step's error.

    Before: [*consts, *carry]         -> [*carry]
    After:  [*consts, *carry, *error] -> [*carry, *error]
    """
    checked = _jax.add_checks(jaxpr, enabled)
    num_inputs, num_errors = len(jaxpr.in_avals), len(error_avals)

    def body(*flat: Any) -> list[Any]:
        outputs = _jax.evaluate_jaxpr(checked.jaxpr, *flat[:num_inputs])
        kept = _first_leaves(checked, flat[num_inputs:], outputs[:num_errors])
        return [*outputs[num_errors:], *kept]

    return _jax.trace_closed(body, [*jaxpr.in_avals, *error_avals], _jax.without_names(jaxpr))


@_jax.cached_by_jaxpr
def _with_predicate_in_carry(
    cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int
) -> Any:
    """A loop as a jaxpr with another that tests one boolean: [*inputs] -> [*carry].

    One over lanes also takes the first predicates, and a carry for lanes that are done.
    """
    lanes = cond_jaxpr.out_avals[0].shape
    rewrite = repeat_last_step_in_finished_lanes if lanes else move_condition_into_body

    def loop(*args: Any) -> list[Any]:
        return rewrite(
            *args,
            cond_jaxpr=cond_jaxpr,
            cond_nconsts=cond_nconsts,
            body_jaxpr=body_jaxpr,
            body_nconsts=body_nconsts,
        )

    avals = [*cond_jaxpr.in_avals[:cond_nconsts], *body_jaxpr.in_avals]
    if lanes:
        avals = [*cond_jaxpr.out_avals, *avals, *body_jaxpr.out_avals]
    return _jax.trace_closed(loop, avals, _jax.without_names(body_jaxpr))


def call_checks(
    checks: _jax.Checks, error: Any, *args: Any, call_jaxpr: Any, **_: Any
) -> tuple[Any, list[Any]]:
    """Run a jaxpr in place. JAX's own rule for such calls cannot take one with named inputs."""
    checked = _jax.add_checks(call_jaxpr, checks.enabled)
    num_errors = checked.error_tree.num_leaves
    outputs = _jax.evaluate_jaxpr(checked.jaxpr, *args)
    return _add_error(checks, error, checked, outputs[:num_errors]), outputs[num_errors:]


_jax.register_error_check(_jax.staged_call_p, call_checks)


def _no_error(checked: _jax.CheckedJaxpr) -> list[Any]:
    """The leaves of an error that has not happened, for a loop to begin with.

    Whether a later step's error is kept depends on all of an earlier one, so all of it varies over
    the mesh axes that any of it varies over.
    """
    avals = checked.jaxpr.out_avals[: checked.error_tree.num_leaves]
    all_axes = frozenset().union(*(aval.mat.varying for aval in avals))
    return [_zero(aval, all_axes) for aval in avals]


def _zero(aval: Any, varying: frozenset) -> Any:
    if aval.shape or not isinstance(aval.dtype, np.dtype):
        zero, before = _jax.uninitialised((), aval), aval.mat.varying
        zero = lax.full_like(zero, fill_value=False) if aval.dtype == bool else zero
    else:  # a constant, which costs nothing outside jit
        zero, before = np.zeros((), aval.dtype), frozenset()
    missing = tuple(sorted(varying - before, key=str))
    return lax.pcast(zero, missing, to="varying") if missing else zero


def _first_leaves(
    checked: _jax.CheckedJaxpr, earlier: Sequence[Any], later: Sequence[Any]
) -> list[Any]:
    """`_first_error` of the leaves of two errors of one jaxpr."""
    tree = checked.error_tree
    first = _first_error(jax.tree.unflatten(tree, earlier), jax.tree.unflatten(tree, later))
    return jax.tree.leaves(first)


def _add_error(
    checks: _jax.Checks, error: Any, checked: _jax.CheckedJaxpr, leaves: Sequence[Any]
) -> Any:
    """The error of a program after a loop of which `leaves` is the error."""
    loop_error = jax.tree.unflatten(checked.error_tree, leaves)
    return _first_error(error, checks.count(loop_error, checked.num_codes))


def _first_error(earlier: Any, later: Any) -> Any:
    """The earlier of two errors if there is one, else the later; of all kinds that either has.

    A kind of error that never occurs stays a constant for the compiler: what is kept of a kind does
    not depend on other kinds, save whether there is an error of it.
    """
    old, new = _jax.error_entries(earlier), _jax.error_entries(later)
    if not old or not new:
        return _jax.replace_entries(earlier, {**old, **new}, names_of=later)
    shapes = [jnp.shape(entry.failed) for entry in (*old.values(), *new.values())]
    lanes = max(shapes, key=len, default=())
    old, new = ({k: _in_lanes(e, lanes) for k, e in entries.items()} for entries in (old, new))
    failed = reduce(lax.bitwise_or, (_in_any_lane(entry.failed) for entry in old.values()))
    none_before = lax.bitwise_not(failed)

    def after_all(kind: Any, entry: _jax.ErrorEntry) -> _jax.ErrorEntry:
        entry = entry._replace(failed=lax.bitwise_and(entry.failed, none_before))
        if kind not in old:
            return entry
        is_old = old[kind].failed
        select = select_lanes if is_old.ndim else lax.select
        kept = jax.tree.map(lambda a, b: select(is_old, a, b), old[kind], entry)
        return kept._replace(failed=lax.bitwise_or(is_old, entry.failed))

    entries = {**old, **{kind: after_all(kind, entry) for kind, entry in new.items()}}
    return _jax.replace_entries(earlier, entries, names_of=later)


def _in_lanes(entry: _jax.ErrorEntry, lanes: tuple[int, ...]) -> _jax.ErrorEntry:
    """An entry for each device, which is what JAX makes of an error inside `jax.shard_map`."""
    missing = lanes[: len(lanes) - jnp.ndim(entry.failed)]
    return jax.tree.map(lambda x: lax.broadcast(x, missing) if missing else jnp.asarray(x), entry)


def _in_any_lane(failed: Any) -> Any:
    return lax.reduce_or(failed, tuple(range(failed.ndim)))
