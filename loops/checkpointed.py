"""Loops with `checkpoints`, `max_steps` or `until`: from the user's functions to the primitive."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from checks.condition import check_predicate
from loops import _jax
from loops.passes.hoist_casts import hoist_casts
from loops.primitives.checkpointed_loop import MAX_STEPS, Loop, LoopInputs, to_host
from loops.primitives.layout import merge, partition
from loops.reverse.placement import default_checkpoints
from loops.varying import vary, varying


class StepBound(NamedTuple):
    """How many steps a loop may take, and how many carries it keeps for the way back."""

    max_steps: int | None = None
    checkpoints: Checkpoints | None = None


class EarlyEnd(NamedTuple):
    """How many carries a scan keeps for the way back, and when it ends before its xs do.

    `limit` is a number of steps that is known only while running, for a scan without xs and ys;
    `most_steps` is a bound of it, if there is one.
    """

    checkpoints: Checkpoints | None = None
    until: Callable[[Any], Any] | None = None
    limit: Any = None
    most_steps: int | None = None


UNBOUNDED, NO_EARLY_END = StepBound(), EarlyEnd()


def trace_until(until: Callable[[Any], Any], carry_avals: Any) -> Any:
    """Trace the question whether a scan goes on: [*consts, *carry] -> [not until(carry)]."""
    debug = _jax.debug_info("scan_until", until, carry_avals.unflatten())
    traced = _jax.trace_function(until, (carry_avals,), debug)
    check_predicate("until", traced.out_tree, traced.out_avals)
    return traced._replace(jaxpr=_inverted(traced.jaxpr))


@_jax.cached_by_jaxpr
def _inverted(jaxpr: Any) -> Any:
    """A predicate's negation. It is written out, as a cache must not hold its own key."""
    return _jax.trace_flat(
        lambda *args: [jnp.logical_not(*_jax.evaluate_jaxpr(jaxpr, *args))],
        jaxpr.in_avals,
        _jax.without_names(jaxpr),  # values that `until` closes over have none
    ).jaxpr


def check_count(loop: str, name: str, value: Any) -> int | None:
    """A number that is None or a positive integer.

    Raises:
      TypeError: it is no integer.
      ValueError: it is not positive, or does not fit 32 bits.
    """
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{loop}: {name} must be an integer or None, got {value!r}.") from None
    if isinstance(value, bool) or not 1 <= count <= MAX_STEPS:
        raise ValueError(
            f"{loop}: {name} must be a positive integer of 32 bits or None, got {value!r}."
        )
    return count


class Checkpoints(NamedTuple):
    """How many carries a loop keeps for reverse-mode differentiation, and where.

    A plain integer for `checkpoints` keeps them in the device's memory.

    Args:
      number: at most so many carries are kept.
      on_host: keep them in the host's memory, where JAX and the device have memory kinds. On a CPU
        that is the same memory.

    Example:
      >>> import jax, loops
      >>> def power(x):
      ...     keep = loops.Checkpoints(3, on_host=True)
      ...     return loops.fori_loop(0, 8, lambda _, c: c * x, 1.0, checkpoints=keep)
      >>> print(jax.grad(power)(1.0))
      8.0
    """

    number: int
    on_host: bool = False


class Slots(NamedTuple):
    """Parameters of the primitive: how many carries are kept, and where."""

    slots: int
    transfer_jaxpr: Any


def check_checkpoints(loop: str, value: Any) -> Checkpoints | None:
    """`checkpoints` as the caller gave it: None, a positive integer, or a `Checkpoints`.

    Raises:
      TypeError: it is none of these.
      ValueError: the number is not positive.
    """
    number, on_host = value if isinstance(value, Checkpoints) else (value, False)
    count = check_count(loop, "checkpoints", number)
    return None if count is None else Checkpoints(count, bool(on_host))


def slots_for(checkpoints: Checkpoints | None, most_steps: int) -> Slots:
    """How many carries to keep: those asked for, or enough to run no step more than twice."""
    wanted = checkpoints or Checkpoints(default_checkpoints(most_steps))
    return Slots(max(1, min(wanted.number, most_steps)), to_host() if wanted.on_host else None)


class FlatLoop(NamedTuple):
    """A traced loop with flat values, ready to be bound.

    cond_jaxpr: [*cond_consts, *carry] -> [predicate], or None
    body_jaxpr: [*body_consts, *carry, *x] -> [*carry, *y]
    """

    cond_jaxpr: Any
    cond_consts: list[Any]
    body_jaxpr: Any
    body_consts: list[Any]
    carry: list[Any]
    xs: list[Any]


def bind_checkpointed(flat: FlatLoop, limit: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    """Bind a loop: the final carry, and the ys.

    The carry that the body hands on unchanged becomes a constant, which needs no storing.

    forward before: [*body_consts, *carry, *x]                             -> [*carry, *y]
    forward after:  [*cond_consts, *body_consts, *constant, *changing, *x] -> [*changing, *y]
    """
    flat, limit = _vary_with_steps(flat, limit)
    num_cond, num_body, num_carry = map(len, (flat.cond_consts, flat.body_consts, flat.carry))
    sources = _jax.forwarded_inputs(flat.body_jaxpr)[:num_carry]
    is_constant = [source == num_body + i for i, source in enumerate(sources)]
    changing, constant = partition(is_constant, range(num_carry))
    body = _with_leading_inputs(flat.body_jaxpr, [jax.typeof(x) for x in flat.cond_consts])
    first_carry = num_cond + num_body
    order = [first_carry + i for i in (*constant, *changing)]
    num_outputs = len(body.out_avals)
    forward_jaxpr = _jax.permute(
        body,
        [*range(first_carry), *order, *range(first_carry + num_carry, len(body.in_avals))],
        [*changing, *range(num_carry, num_outputs)],
    )
    cond_jaxpr = None
    if flat.cond_jaxpr is not None:
        with_body_consts = _jax.with_unused_inputs(
            flat.cond_jaxpr, [jax.typeof(x) for x in flat.body_consts]
        )
        after = num_cond + num_carry
        cond_jaxpr = _jax.permute(
            with_body_consts,
            [
                *range(num_cond),
                *range(after, after + num_body),
                *(num_cond + i for i in (*constant, *changing)),
            ],
        )
    values, constants = partition(is_constant, flat.carry)
    loop = Loop(
        forward_jaxpr=forward_jaxpr,
        cond_jaxpr=cond_jaxpr,
        num_consts=first_carry + len(constants),
        num_carry=len(values),
        **params,
    )
    consts = [*flat.cond_consts, *flat.body_consts, *constants]
    outputs = loop.bind(LoopInputs(limit, consts, values, [], flat.xs, []))
    constants = [_jax.as_array(x) for x in constants]
    return merge(is_constant, outputs.carry, constants), outputs.ys


def _vary_with_steps(flat: FlatLoop, limit: Any) -> tuple[FlatLoop, Any]:
    """A loop whose limit varies over the mesh axes over which its number of steps does.

    Steps that not all devices take must not wait for each other on the way back: constants are
    cast before the loop, so that what they get from all devices is summed after it.
    """
    axes = varying(jax.typeof(limit))
    if flat.cond_jaxpr is not None:
        axes |= varying(flat.cond_jaxpr.out_avals[0])
    hoisted = hoist_casts(flat.body_jaxpr, len(flat.body_consts)) if axes else None
    if hoisted is not None:
        casts = _jax.call_jaxpr(hoisted.outside, *flat.body_consts)
        flat = flat._replace(body_jaxpr=hoisted.jaxpr, body_consts=[*flat.body_consts, *casts])
    return flat, vary(limit, axes)


def _with_leading_inputs(jaxpr: Any, avals: Sequence[Any]) -> Any:
    """The same jaxpr with inputs before the others that it does not read."""
    widened = _jax.with_unused_inputs(jaxpr, avals)
    count = len(jaxpr.in_avals)
    return _jax.permute(widened, [*range(count, count + len(avals)), *range(count)])
