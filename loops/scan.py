"""`scan`: a function run over the leading axis of its xs, carrying state along."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from checks.passes import BodyOut
from checks.tracing import LoopBody
from loops import _jax, observers
from loops.body import (
    TracedBody,
    trace_scan_body,
    trace_to_fixpoint,
)
from loops.checkpointed import (
    NO_EARLY_END,
    Checkpoints,
    EarlyEnd,
    FlatLoop,
    bind_checkpointed,
    check_checkpoints,
    slots_for,
    trace_until,
)
from loops.effects import refuse_forbidden_effects, refuse_to_run_again
from loops.learning import unfinished_loop
from loops.lengths import infer_length
from loops.primitives.checkpointed_loop import MAX_STEPS
from loops.primitives.layout import merge, partition, split_scan_outputs
from loops.primitives.scan import scan_p
from loops.shortcuts import scan_shortcuts
from loops.step_by_step import scan_step_by_step
from loops.varying import vary_with_steps, varying
from loops.wrappers import finished_body

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


@_jax.api_boundary
def scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoints: int | Checkpoints | None = None,
    until: Callable[[Carry], Any] | None = None,
) -> tuple[Carry, Y]:
    """Run `f` over the leading axis of `xs`, carrying state along and stacking what it returns.

    It computes what this Python function does, compiled as one loop::

        def scan(f, init, xs, length=None):
            carry, ys = init, []
            for x in xs if xs is not None else [None] * length:
                carry, y = f(carry, x)
                ys.append(y)
            return carry, stack(ys)

    `init`, `xs` and what `f` returns may be any pytrees; stacking and slicing go leaf by leaf. `f`
    is traced once, against the types of `init`, so the carry that it returns must have exactly
    the structure, shapes and dtypes that went in. A Python scalar in `init` is weakly typed: where
    the body returns another dtype for it, it is converted and `f` is traced again. So is an init
    that varies over fewer axes of `jax.shard_map` than what the body returns for it.

    Args:
      f: the body, `(carry, x) -> (carry, y)`.
      init: the initial carry.
      xs: arrays of shape `(length, ...)`, or None for a loop that only counts.
      length: the number of steps; needed where `xs` has no leaf, else checked against it.
      reverse: run from the last row to the first. The ys keep the order of the xs.
      unroll: how many steps one turn of the compiled loop runs; True or 0 for all of them.
      _split_transpose: accepted so that calls written for `jax.lax` run; it changes nothing.
      checkpoints: keep at most this many carries for reverse-mode differentiation, and compute the
        others again; None keeps what each step needs of itself, as JAX does. With the square root
        of twice the number of steps, no step is computed more than once again.
      until: `carry -> bool`, asked before each step. Once it says True the loop ends: the carry
        stays as it is, and the ys of the steps not run are zeros. The gradient follows the steps
        that ran. Without `checkpoints` it keeps as many carries as the longest loop would need.

    Returns:
      The final carry, and the ys with a new leading axis of size `length`.

    Raises:
      checks.CarryTypeError: the carry that comes out of `f` differs in type from the one going in.
      checks.CarryStructureError: it differs in pytree structure.
      TypeError: `f` is not callable or returns no pair, `length` or `unroll` is no integer, or
        `until` returns no boolean scalar.
      ValueError: the leading axes of `xs` disagree, nothing says how many steps to run, or
        `checkpoints` is not positive.
      NotImplementedError: with `checkpoints` or `until`, the body has effects other than those of
        `jax.debug`, or the length is symbolic.

    Example:
      >>> import jax.numpy as jnp
      >>> total, partial_sums = scan(lambda c, x: (c + x, c + x), 0, jnp.arange(1, 5))
      >>> print(total, partial_sums)
      10 [ 1  3  6 10]
      >>> doubled, before = scan(lambda c, _: (2 * c, c), 1, length=6, until=lambda c: c > 10)
      >>> print(doubled, before)
      16 [1 2 4 8 0 0]
    """
    del _split_transpose
    if not callable(f):
        raise TypeError(f"lax.scan: f must be callable, got {type(f).__name__}.")
    if until is not None and not callable(until):
        raise TypeError(f"scan: until must be callable, got {type(until).__name__}.")
    early = EarlyEnd(check_checkpoints("scan", checkpoints), until)
    debug = _jax.debug_info("scan", f, init, xs)
    return scan_named(f, init, xs, length, operator.truth(reverse), unroll, debug, early=early)


def scan_named(
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    unroll: Any,
    debug: Any,
    num_settled: int = 0,
    early: EarlyEnd = NO_EARLY_END,
    written: Callable[[], LoopBody] | None = None,
) -> Any:
    """`scan` with the names that error messages give to the body.

    The first `num_settled` leaves of the carry are known to keep their types. `written()` is
    the body as the user wrote it, where that is not `f`.
    """
    carry, xs_flat = _jax.flatten_tree(init), _jax.flatten_tree(xs)
    args = [*carry, *xs_flat]
    xs_avals = xs_flat.map(jax.typeof)
    _jax.check_mutable_arguments(debug, args)
    if early.limit is None:
        length = infer_length(xs, list(xs_avals), length)
    unroll = steps_per_turn(unroll, length)
    x_avals = xs_avals.map(lambda aval: _jax.mapped_leading_aval(length, aval))
    written = written or (lambda: LoopBody(f, (), (x_avals.unflatten(),), True, steps=length))
    if _jax.disable_jit() and length != 0 and early.limit is None:
        return scan_step_by_step(f, carry, xs_flat, length, reverse, written, early.until)

    def trace(carry: Any, avals: list[Any], finish: bool) -> tuple[TracedBody, BodyOut]:
        carry_avals = carry.update(avals)
        body, out = trace_scan_body(finished_body(f) if finish else f, carry_avals, x_avals, debug)
        _jax.check_closed_over_refs(debug, body.consts, args)
        return _vary_with_steps(body, out, early, carry_avals)

    watch = observers.watch(debug, length)
    if watch:
        trace = watch.watching(trace)
    made_of = f, early, tuple(x_avals)
    settled = trace_to_fixpoint("scan body", f, carry, trace, num_settled, written, made_of)
    body = settled.traced
    if watch and not settled.is_unfinished:
        watch.settled(carry, settled.carry_avals, body.jaxpr)
    refuse_forbidden_effects("scan", body.jaxpr)
    if settled.is_unfinished:
        ys_avals = split_scan_outputs(body.jaxpr.out_avals, len(carry)).ys
        stacked = [_jax.unmapped_leading_aval(length, aval) for aval in ys_avals]
        outputs = unfinished_loop([*settled.carry_avals, *stacked])
    elif early == NO_EARLY_END or (isinstance(length, int) and length == 0):
        outputs = bind_scan(body, list(settled.init), list(xs_flat), length, reverse, unroll)
    else:
        steps = ScanSteps(length, reverse, unroll)
        outputs = _bind_checkpointed_scan(body, settled.init, list(xs_flat), steps, early)
    carry_out, ys = split_scan_outputs(outputs, len(carry))
    return body.carry_tree.unflatten(carry_out), body.ys_tree.unflatten(ys)


def _vary_with_steps(
    body: TracedBody, out: BodyOut, early: EarlyEnd, carry_avals: Any
) -> tuple[TracedBody, BodyOut]:
    """Let what a body returns vary over the mesh axes over which the number of steps does."""
    axes = set() if early.limit is None else {*varying(jax.typeof(early.limit))}
    if early.until is not None:
        axes |= varying(trace_until(early.until, carry_avals).out_avals[0])
    num_carry = len(out.avals)
    jaxpr = vary_with_steps(body.jaxpr, len(body.consts), num_carry, axes)
    return body._replace(jaxpr=jaxpr), out._replace(avals=list(jaxpr.out_avals[:num_carry]))


class ScanSteps(NamedTuple):
    """How a scan goes through its rows."""

    length: Any
    reverse: bool
    unroll: int


def _bind_checkpointed_scan(
    body: TracedBody, init: Any, xs: list[Any], steps: ScanSteps, early: EarlyEnd
) -> list[Any]:
    """Bind a scan that keeps few carries or may end early."""
    loop = "fori_loop" if _jax.traced_for(body.jaxpr) == "fori_loop" else "scan"
    if early.limit is None and not isinstance(steps.length, int):
        raise NotImplementedError(
            f"{loop}: `checkpoints` and `until` need a length that is known while tracing, not the "
            f"symbolic {steps.length}."
        )
    refuse_to_run_again(loop, body.jaxpr)
    goes_on = None
    if early.until is not None:
        goes_on = trace_until(early.until, init.update(map(jax.typeof, init)))
        refuse_to_run_again("scan", goes_on.jaxpr)
    length = steps.length if early.limit is None else early.most_steps
    carry, ys = bind_checkpointed(
        FlatLoop(
            goes_on and goes_on.jaxpr,
            goes_on.consts if goes_on else [],
            body.jaxpr,
            body.consts,
            list(init),
            xs,
        ),
        np.int32(steps.length) if early.limit is None else early.limit,
        **slots_for(early.checkpoints, length or MAX_STEPS)._asdict(),
        is_counted=goes_on is None and early.limit is None,
        **steps._replace(length=length)._asdict(),
    )
    return [*carry, *ys]


def steps_per_turn(unroll: Any, length: Any) -> int:
    """`unroll` as an integer: 0 stands for all steps, and so does True."""
    unroll = _jax.concrete_int(
        unroll, "The `unroll` argument to `scan` expects a concrete `int` or `bool` value."
    )
    if isinstance(unroll, (bool, np.bool_)):
        return (max(length, 1) if isinstance(length, int) else 0) if unroll else 1
    try:
        unroll = operator.index(unroll)
    except TypeError:
        raise TypeError(f"`unroll` must be a `bool` or an `int`, got {unroll!r}.") from None
    if unroll < 0:
        raise ValueError(f"`unroll` must be a `bool` or a non-negative `int`, got {unroll}.")
    return unroll


def bind_scan(
    body: TracedBody, carry: list[Any], xs: list[Any], length: Any, reverse: bool, unroll: int
) -> list[Any]:
    """Bind the primitive for a traced body, leaving out what need not go through the loop."""
    num_consts, num_carry = len(body.consts), len(carry)
    short = scan_shortcuts(body.jaxpr, num_consts, num_carry)
    params = {"length": length, "reverse": reverse, "unroll": unroll}
    if short.jaxpr is None:
        counts = {"num_consts": num_consts, "num_carry": num_carry}
        return scan_p.bind(*body.consts, *carry, *xs, jaxpr=body.jaxpr, **counts, **params)

    changing, constant = partition(short.is_read_only, carry)
    new_outputs = scan_p.bind(
        *body.consts,
        *constant,
        *changing,
        *xs,
        jaxpr=short.jaxpr,
        num_consts=num_consts + len(constant),
        num_carry=len(changing),
        **params,
    )
    new_carry, new_ys = split_scan_outputs(new_outputs, len(changing))
    is_copied = [row is not None for row in short.row_of]
    copied = [_jax.as_array(xs[row]) for row in short.row_of if row is not None]
    constant = [_jax.as_array(x) for x in constant]
    return [*merge(short.is_read_only, new_carry, constant), *merge(is_copied, new_ys, copied)]
