"""`while_loop`: a function run again and again as long as a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from checks.condition import check_predicate
from checks.passes import BodyOut
from checks.tracing import LoopBody
from loops import _jax, observers
from loops.body import trace_to_fixpoint
from loops.checkpointed import (
    UNBOUNDED,
    Checkpoints,
    FlatLoop,
    StepBound,
    bind_checkpointed,
    check_checkpoints,
    check_count,
    slots_for,
)
from loops.cut_off import ask_whether_cut_off
from loops.effects import refuse_forbidden_effects, refuse_to_run_again
from loops.learning import tracing_a_condition, unfinished_loop
from loops.primitives.checkpointed_loop import MAX_STEPS
from loops.primitives.layout import merge, partition
from loops.primitives.while_loop import while_p
from loops.shortcuts import while_shortcuts
from loops.step_by_step import NO_STEP, while_step_by_step
from loops.varying import vary_with_predicate
from loops.wrappers import finished_body

Carry = TypeVar("Carry")


@_jax.api_boundary
def while_loop(
    cond_fun: Callable[[Carry], Any],
    body_fun: Callable[[Carry], Carry],
    init_val: Carry,
    *,
    max_steps: int | None = None,
    checkpoints: int | Checkpoints | None = None,
) -> Carry:
    """Run `body_fun` as long as `cond_fun` says so.

    It computes what this Python function does, compiled as one loop::

        def while_loop(cond_fun, body_fun, init_val):
            val = init_val
            while cond_fun(val):
                val = body_fun(val)
            return val

    Both functions are traced against the types of `init_val`, so what `body_fun` returns must have
    exactly the structure, shapes and dtypes that it got. A Python scalar in `init_val` is weakly
    typed: where the body returns another dtype for it, it is converted and traced again. So is an
    init that varies over fewer axes of `jax.shard_map` than what the body returns for it, or, where
    the body changes it, than the predicate.

    Forward-mode differentiation works. Reverse mode needs to know how many carries it may keep:
    give `checkpoints` or `max_steps`. Then derivatives of any order and mode work, and their cost
    follows the steps taken.

    Args:
      cond_fun: `carry -> bool`, a boolean scalar.
      body_fun: `carry -> carry`.
      init_val: the initial carry, any pytree.
      max_steps: stop after this many steps. If the condition still holds then, the result is right
        as far as the loop ran, and a `MaxStepsWarning` says so: at the call, or, where only the
        running program knows, from it. A warnings filter that ignores it keeps the question out of
        programs that are traced under it. Without `checkpoints` it chooses their number, so that
        no step is computed more than once again if the loop runs that long.
      checkpoints: keep at most this many carries for reverse-mode differentiation, however many
        steps there are, and compute the others again.

    Returns:
      The carry for which `cond_fun` first returned False.

    Raises:
      checks.CarryTypeError: what `body_fun` returns differs in type from what it got.
      checks.CarryStructureError: it differs in pytree structure.
      TypeError: a function is not callable, `cond_fun` returns no boolean scalar, or `max_steps`
        or `checkpoints` is no integer.
      ValueError: `max_steps` or `checkpoints` is not positive.
      NotImplementedError: with `max_steps` or `checkpoints`, condition or body have effects other
        than those of `jax.debug`.

    Example:
      >>> print(while_loop(lambda x: x < 100, lambda x: 2 * x, 3))
      192
      >>> def power(x):
      ...     return while_loop(lambda v: v < 100, lambda v: v * x, x, max_steps=20)
      >>> print(jax.grad(power)(3.0))  # the loop multiplies until it has x**5
      405.0
    """
    for name, fun in (("cond_fun", cond_fun), ("body_fun", body_fun)):
        if not callable(fun):
            raise TypeError(f"lax.while_loop: {name} must be callable, got {type(fun).__name__}.")
    cond_debug = _jax.debug_info("while_cond", cond_fun, init_val)
    body_debug = _jax.debug_info("while_body", body_fun, init_val)
    bound = StepBound(
        check_count("while_loop", "max_steps", max_steps),
        check_checkpoints("while_loop", checkpoints),
    )
    return while_loop_named(cond_fun, body_fun, init_val, cond_debug, body_debug, bound)


class TracedWhile(NamedTuple):
    """Condition and body traced.

    cond_jaxpr: [*consts, *carry] -> [predicate]
    body_jaxpr: [*consts, *carry] -> [*carry]
    """

    cond_jaxpr: Any
    cond_consts: list[Any]
    body_jaxpr: Any
    body_consts: list[Any]
    carry_tree: Any


def while_loop_named(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: Any,
    cond_debug: Any,
    body_debug: Any,
    bound: StepBound = UNBOUNDED,
    written: Callable[[], LoopBody] | None = None,
) -> Any:
    """`while_loop` with the names that error messages give to the two functions.

    `written()` is the body as the user wrote it, where that is not `body_fun`.
    """
    written = written or (lambda: LoopBody(body_fun, condition=cond_fun))
    init = _jax.flatten_tree(init_val)
    _jax.check_mutable_arguments(body_debug, list(init))
    functions = _Functions(cond_fun, body_fun, cond_debug, body_debug, written)
    if not _jax.disable_jit():
        return _traced_while(functions, init, bound)
    try:
        out = while_step_by_step(cond_fun, body_fun, init, written, bound.max_steps)
    except jax.errors.ConcretizationTypeError:
        # The condition is traced, for instance by vmap: only the primitive can run it.
        return _traced_while(functions, init, bound)
    if out is not NO_STEP:
        return out
    try:  # the contract holds for a body that is not run, and promotes
        return _traced_while(functions, init, bound)
    except jax.errors.ConcretizationTypeError:
        return init.unflatten()  # the body asks for values, and there are none


class _Functions(NamedTuple):
    """What the user gave a loop, with the names that error messages give to it."""

    cond_fun: Callable[..., Any]
    body_fun: Callable[..., Any]
    cond_debug: Any
    body_debug: Any
    written: Callable[[], LoopBody]


def _traced_while(functions: _Functions, init: Any, bound: StepBound) -> Any:
    """Trace a while loop and bind it; `init` is a flat tree."""
    cond_fun, body_fun, cond_debug, body_debug, written = functions

    def trace(carry: Any, avals: list[Any], finish: bool) -> tuple[TracedWhile, BodyOut]:
        carry_avals = carry.update(avals)
        with tracing_a_condition():
            cond = _jax.trace_function(cond_fun, (carry_avals,), cond_debug)
        check_predicate("cond_fun", cond.out_tree, cond.out_avals)
        body_to_trace = finished_body(body_fun) if finish else body_fun
        body = _jax.trace_function(body_to_trace, (carry_avals,), body_debug)
        body = vary_with_predicate(body, cond.out_avals[0])
        traced = TracedWhile(cond.jaxpr, cond.consts, body.jaxpr, body.consts, body.out_tree)
        return traced, BodyOut(body.out_tree, body.out_avals, body.jaxpr, len(body.consts))

    watch = observers.watch(body_debug)
    if watch:
        trace = watch.watching(trace)
    made_of = cond_fun, body_fun
    settled = trace_to_fixpoint(
        "while_loop body", body_fun, init, trace, written=written, made_of=made_of
    )
    traced = settled.traced
    if watch and not settled.is_unfinished:
        watch.settled(init, settled.carry_avals, traced.body_jaxpr)
    refuse_forbidden_effects("while", traced.cond_jaxpr, traced.body_jaxpr)
    if settled.is_unfinished:
        return traced.carry_tree.unflatten(unfinished_loop(settled.carry_avals))
    bind = bind_while if bound == UNBOUNDED else partial(_bind_checkpointed_while, bound)
    return traced.carry_tree.unflatten(bind(traced, list(settled.init)))


def _bind_checkpointed_while(bound: StepBound, traced: TracedWhile, init: list[Any]) -> list[Any]:
    """Bind a while loop that keeps few carries for the way back or stops at a number of steps."""
    refuse_to_run_again("while_loop", traced.cond_jaxpr, traced.body_jaxpr)
    most_steps = bound.max_steps or MAX_STEPS
    carry, _ = bind_checkpointed(
        FlatLoop(
            traced.cond_jaxpr, traced.cond_consts, traced.body_jaxpr, traced.body_consts, init, []
        ),
        np.int32(most_steps),
        length=bound.max_steps,
        **slots_for(bound.checkpoints, most_steps)._asdict(),
    )

    def still_holds() -> Any:
        return _jax.call_jaxpr(traced.cond_jaxpr, *traced.cond_consts, *carry)[0]

    if bound.max_steps is not None:
        ask_whether_cut_off("while_loop", bound.max_steps, still_holds)
    return carry


def bind_while(traced: TracedWhile, init: list[Any]) -> list[Any]:
    """Bind the primitive, leaving out what need not go through the loop."""
    num_cond, num_body = len(traced.cond_consts), len(traced.body_consts)
    short = while_shortcuts(traced.body_jaxpr, num_body, traced.cond_jaxpr, num_cond)
    kept, constants = partition(short.is_constant, init)
    is_shorter = short.body_jaxpr is not None
    outputs = while_p.bind(
        *traced.cond_consts,
        *traced.body_consts,
        *constants,
        *kept,
        cond_jaxpr=short.cond_jaxpr if is_shorter else traced.cond_jaxpr,
        cond_nconsts=num_cond,
        body_jaxpr=short.body_jaxpr if is_shorter else traced.body_jaxpr,
        body_nconsts=num_body + len(constants),
    )
    return merge(short.is_constant, outputs, [_jax.as_array(x) for x in constants])
