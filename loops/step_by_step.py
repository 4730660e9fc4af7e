"""The loops as Python runs them, under `jax.disable_jit`: one step after the other, on real values.

The contract is checked after each step, which is the earliest moment at which a body that branches
on values can be known to break it. A weak init that the first step promotes is promoted here too,
and that step is run again. Each step gets the types of the first one, weak types among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import tree_map

from checks import _check_carry_type
from checks.passes import BodyOut
from checks.tracing import LoopBody
from loops import _jax
from loops.body import trace_to_fixpoint
from loops.cut_off import ask_whether_cut_off
from loops.weak_types import as_weak_as

NO_STEP: Any = object()
Written = Callable[[], LoopBody]  # gives the body as the user wrote it


def scan_step_by_step(
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    length: int,
    reverse: bool,
    written: Written,
    until: Callable[[Any], Any] | None = None,
) -> Any:
    """Run a scan of at least one step in Python; `init` and `xs` are flat trees.

    The first step is run even if `until` ends the loop before it: how else would the ys be known?
    """

    def step(carry: Any, position: int) -> tuple[tuple[Any, Any], BodyOut]:
        x = xs.map(lambda x: _jax.row_of(x, position, length))
        output = f(carry.unflatten(), x.unflatten())
        if not isinstance(output, (tuple, list)) or len(output) != 2:
            raise TypeError(f"scan body output must be a pair, got {output}.")
        return _step_result(output[0], output[1])

    first, *later = reversed(range(length)) if reverse else range(length)
    init = init.map(_jax.as_array)
    settled = trace_to_fixpoint(
        "scan body", f, init, lambda carry, *_: step(carry, first), written=written
    )
    init, (carry, y) = settled.init, settled.traced
    if until is not None and until(init.unflatten()):
        zeros = tree_map(lambda y: _jax.stack_rows(*[jnp.zeros_like(y)] * length), y)
        return init.unflatten(), zeros
    all_ys = [y]
    for position in later:
        if until is not None and until(carry.unflatten()):
            all_ys += [tree_map(jnp.zeros_like, y)] * (length - len(all_ys))
            break
        (carry, y), out = step(_as_weak_as(carry, init), position)
        _check_carry_type("scan body", f, init.unflatten(), out.tree, out.avals)
        all_ys.append(y)
    if reverse:
        all_ys.reverse()
    return carry.unflatten(), tree_map(_jax.stack_rows, *all_ys)


def while_step_by_step(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    written: Written,
    max_steps: int | None = None,
) -> Any:
    """Run a while loop in Python; `init` is a flat tree.

    Returns `NO_STEP` where the condition is false at once: that says nothing of the body.

    Raises:
      jax.errors.ConcretizationTypeError: the condition depends on a traced value.
    """
    name = "while_loop body"

    def step(carry: Any, *_: Any) -> tuple[Any, BodyOut]:
        return _step_result(body_fun(carry.unflatten()), None)

    carry = init = init.map(_jax.as_array)
    if not cond_fun(carry.unflatten()):
        return NO_STEP
    settled = trace_to_fixpoint(name, body_fun, init, step, written=written)
    init, (carry, _) = settled.init, settled.traced
    steps = 1
    while cond_fun(carry.unflatten()):
        if max_steps is not None and steps == max_steps:
            ask_whether_cut_off("while_loop", max_steps, lambda: True)
            break
        steps += 1
        (carry, _), out = step(_as_weak_as(carry, init))
        _check_carry_type(name, body_fun, init.unflatten(), out.tree, out.avals)
    return carry.unflatten()


def _step_result(carry: Any, y: Any) -> tuple[tuple[Any, Any], BodyOut]:
    """A step's outputs as arrays, and the types of its carry."""
    flat = _jax.flatten_tree(carry).map(_jax.as_array)
    return (flat, y), BodyOut(flat.tree, [jax.typeof(x) for x in flat])


def _as_weak_as(carry: Any, init: Any) -> Any:
    """A carry as each step of a compiled loop gets it, weak where the initial one is weak."""
    return carry.update([as_weak_as(x, jax.typeof(like)) for x, like in zip(carry, init)])
