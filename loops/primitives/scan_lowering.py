"""A scan written as a while loop that indexes its xs and writes its ys in place.

    carry, ys = init, uninitialised buffers
    for block in blocks of `unroll` steps:          one while loop, whatever the unrolling
        carry, ys[block] = run the body `unroll` times on xs[block]
    run the steps that fill no block                no loop

The ys have their final shape from the start, so blocks and left-over steps write into one buffer
and nothing is concatenated or reshaped afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from loops import _jax
from loops.primitives.layout import split_scan_inputs, split_scan_outputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_of_functions


class StepPlan(NamedTuple):
    """How many steps a turn of the loop runs, how many turns there are, and what is left over."""

    block: int
    turns: Any
    rest: int


def plan_steps(length: Any, unroll: int) -> StepPlan:
    """Divide `length` steps into turns of a loop; a single turn is not worth a loop.

    A symbolic length can be neither compared nor divided, so it is looped over step by step.
    """
    if not isinstance(length, int):
        return StepPlan(block=1, turns=length, rest=0)
    if unroll == 0 or length <= unroll:
        return StepPlan(block=max(length, 1), turns=0, rest=length)
    return StepPlan(unroll, *divmod(length, unroll))


def run_scan(
    *args: Any,
    jaxpr: Any,
    length: Any,
    num_consts: int,
    num_carry: int,
    reverse: bool,
    unroll: int,
) -> list[Any]:
    """Run a scan with JAX operations and at most one `while`."""
    consts, carry, xs = split_scan_inputs(args, num_consts, num_carry)
    ys_avals = split_scan_outputs(jaxpr.out_avals, num_carry).ys
    plan = plan_steps(length, unroll)

    def run_steps(carry: list[Any], steps: list[list[Any]]) -> tuple[list[Any], list[list[Any]]]:
        return _run_steps(
            lambda c, x: _jax.call_jaxpr(jaxpr, *consts, *c, *x), carry, steps, reverse
        )

    if isinstance(plan.turns, int) and plan.turns == 0:
        carry, all_ys = run_steps(carry, [_take(xs, i) for i in range(length)])
        ys = _stack_all(all_ys) if all_ys else [_jax.uninitialised((0,), a) for a in ys_avals]
        return [_keep_unreduced(x) for x in [*carry, *ys]]

    def turn(turn_number: Any, *state: Any) -> list[Any]:
        carry, buffers = split_scan_outputs(state, num_carry)
        start = _first_position(turn_number, plan, length, reverse)
        carry, all_ys = run_steps(carry, _read_block(xs, start, plan.block))
        return [turn_number + 1, *carry, *_write_block(buffers, all_ys, start)]

    num_rows = _jax.at_least_one(length)
    xs = xs if num_rows is length else [_with_room(x, length, num_rows) for x in xs]
    buffers = [_jax.uninitialised((num_rows,), aval) for aval in ys_avals]
    _, *state = while_of_functions(
        lambda turn_number, *_: turn_number < plan.turns, turn, [0, *carry, *buffers]
    )
    carry, buffers = split_scan_outputs(state, num_carry)
    if plan.rest:
        start = 0 if reverse else plan.turns * plan.block
        carry, all_ys = run_steps(carry, [_take(xs, start + i) for i in range(plan.rest)])
        buffers = _write_block(buffers, all_ys, start)
    if num_rows is not length:
        buffers = [lax.slice_in_dim(buffer, 0, length) for buffer in buffers]
    return [_keep_unreduced(x) for x in [*carry, *buffers]]


_jax.register_lowering(scan_p, _jax.lower_function(run_scan, multiple_results=True))


def _run_steps(
    body: Callable[[list[Any], list[Any]], list[Any]],
    carry: list[Any],
    steps: list[list[Any]],
    reverse: bool,
) -> tuple[list[Any], list[list[Any]]]:
    """The body once for each step; the ys come back in the order of their positions."""
    all_ys = []
    for x in reversed(steps) if reverse else steps:
        carry, ys = split_scan_outputs(body(carry, x), len(carry))
        all_ys.append(ys)
    return carry, all_ys[::-1] if reverse else all_ys


def _first_position(turn_number: Any, plan: StepPlan, length: Any, reverse: bool) -> Any:
    """The lowest position along the leading axis that a turn works on.

    Rows and ys may be on different meshes, so the position must stay on none.
    """
    with _jax.mesh_of(turn_number):
        if not reverse:
            return turn_number if plan.block == 1 else turn_number * plan.block
        turns_to_go = turn_number + 1
        return length - (turns_to_go if plan.block == 1 else turns_to_go * plan.block)


def _with_room(x: Any, length: Any, num_rows: Any) -> Any:
    """Make room for a row in an x of symbolic length that may be zero.

    No step then reads it, but the operation that would must fit into the array.
    """
    buffer = _jax.uninitialised((num_rows,), _jax.mapped_leading_aval(length, jax.typeof(x)))
    with _jax.mesh_of(buffer):
        return lax.dynamic_update_slice_in_dim(buffer, x, 0, axis=0)


def _take(xs: list[Any], position: int) -> list[Any]:
    """One step's xs at a position known while compiling."""
    rows = []
    for x in xs:
        with _jax.mesh_of(x):
            rows.append(lax.index_in_dim(x, position, keepdims=False))
    return rows


def _read_block(xs: list[Any], start: Any, size: int) -> list[list[Any]]:
    """The xs of `size` steps from a position known while running, one list for each step."""
    if size == 1:
        return [[_read_row(x, start) for x in xs]]
    blocks = []
    for x in xs:
        with _jax.mesh_of(x):
            blocks.append(lax.dynamic_slice_in_dim(x, start, size, allow_negative_indices=False))
    return [_take(blocks, i) for i in range(size)]


def _read_row(x: Any, position: Any) -> Any:
    with _jax.mesh_of(x):
        return lax.dynamic_index_in_dim(x, position, keepdims=False, allow_negative_indices=False)


def _write_block(buffers: list[Any], all_ys: list[list[Any]], start: Any) -> list[Any]:
    """Write the ys of neighbouring steps into the buffers."""
    written = []
    for buffer, ys in zip(buffers, zip(*all_ys, strict=True), strict=True):
        with _jax.mesh_of(buffer):
            written.append(
                lax.dynamic_update_slice_in_dim(
                    buffer, _stack(ys), start, axis=0, allow_negative_indices=False
                )
            )
    return written


def _stack_all(all_ys: list[list[Any]]) -> list[Any]:
    """One array for each y out of one list of ys for each step."""
    stacked = []
    for ys in zip(*all_ys, strict=True):
        with _jax.mesh_of(ys[0]):
            stacked.append(_stack(ys))
    return stacked


def _stack(ys: Sequence[Any]) -> Any:
    rows = [lax.expand_dims(y, (0,)) for y in ys]
    return rows[0] if len(rows) == 1 else lax.concatenate(rows, 0)


def _keep_unreduced(x: Any) -> Any:
    """Pin a sum that is not reduced over a mesh axis, so that the loop's end does not reduce it."""
    sharding = jax.typeof(x).sharding
    return jax.sharding.reshard(x, sharding) if sharding.spec.unreduced else x
