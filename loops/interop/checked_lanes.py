"""checkify of a while loop over lanes: a lane that is done reports nothing.

    running = cond(init)
    last = select(running, init, init of the first lane that runs), and so each lane's constants
    while any(running):
        last = select(running, carry, last)
        carry = select(running, body(last), carry)
        running = cond(carry)

The checks of a batched body look at all lanes at once, so a lane that is done must not be shown to
the body as it ended: one step more may well divide by zero. It runs its last step again instead,
whose errors have been kept already. A lane that never runs has no such step. It does what the first
lane that runs does, with that lane's constants too, and so it must be known which they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from loops import _jax
from loops.passes.freeze_lanes import select_lanes
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import while_of_functions, while_p
from loops.rules.batching import Loop, _batched_carry, _predicate_is_batched, while_batch

Axes = tuple[int, ...]


def repeat_last_step_in_finished_lanes(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run a loop over lanes so that a lane that is done meets no error that it has not met.

    Raises:
      NotImplementedError: it isn't known which constants differ between lanes, some differ along
        one of several vmaps only or are Refs, or the lanes exchange values.
    """
    axes = _lane_axes(cond_jaxpr, body_jaxpr, body_nconsts)
    cond_consts, body_consts, init = split_while_inputs(args, cond_nconsts, body_nconsts)
    num_carry = len(init)

    def lanes_running(carry: Sequence[Any]) -> Any:
        (running,) = _jax.evaluate_jaxpr(cond_jaxpr, *cond_consts, *carry)
        return running

    def any_running(running: Any, *_: Any) -> Any:
        return lax.reduce_or(running, tuple(range(running.ndim)))

    def select_each(running: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
        return [select_lanes(running, n, o) for n, o in zip(new, old, strict=True)]

    def body(running: Any, *state: Any) -> list[Any]:
        last, carry = state[:num_carry], state[num_carry:]
        last = select_each(running, carry, last)
        stepped = _jax.evaluate_jaxpr(body_jaxpr, *body_consts, *last)
        carry = select_each(running, stepped, carry)
        return [lanes_running(carry), *last, *carry]

    running = lanes_running(init)
    body_consts = [
        x if a is None else _like_a_running_lane(running, x, a)
        for x, a in zip(body_consts, axes, strict=True)
    ]
    last = [_like_a_running_lane(running, x, tuple(range(running.ndim))) for x in init]
    _, *state = while_of_functions(any_running, body, [running, *last, *init])
    return state[num_carry:]


def _like_a_running_lane(running: Any, x: Any, axes: Axes) -> Any:
    """An array whose lanes that do not run are those of the first that does."""
    if running.size == 0:
        return x
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    lanes_first = lax.transpose(x, (*axes, *rest))
    shape = lanes_first.shape
    first = lax.argmax(lax.reshape(running, (running.size,)), 0, jnp.int32)
    lanes = lax.reshape(lanes_first, (running.size, *shape[running.ndim :]))
    lane = lax.dynamic_index_in_dim(lanes, first, keepdims=False, allow_negative_indices=False)
    everywhere = lax.broadcast_in_dim(lane, shape, tuple(range(running.ndim, x.ndim)))
    filled = select_lanes(running, lanes_first, everywhere)
    return lax.transpose(filled, [[*axes, *rest].index(axis) for axis in range(x.ndim)])


def _lane_axes(cond_jaxpr: Any, body_jaxpr: Any, body_nconsts: int) -> list[Axes | None]:
    """The axes of each of the body's constants that are the predicate's; None without any."""
    num_lane_axes = len(cond_jaxpr.out_avals[0].shape)
    axes: list[Axes] = [()] * body_nconsts
    found = 0
    for cond, body in _batchings_of_both(cond_jaxpr, body_jaxpr):
        is_lane_axis = cond.out_axes[0] is not None
        found += is_lane_axis
        axes = [
            _with_axis(a, new, is_lane_axis)
            for a, new in zip(axes, body.in_axes[:body_nconsts], strict=True)
        ]
        if is_lane_axis and body.mixes_lanes:
            raise _refusal("its body has a collective over the lanes")
    if found < num_lane_axes:
        raise _refusal("it was transformed again after vmap, and what vmap did is lost")
    for aval, a in zip(body_jaxpr.in_avals, axes, strict=False):
        if a and len(a) < num_lane_axes:
            raise _refusal("a value that it closes over differs along one of several vmaps only")
        if _jax.is_ref(aval):
            raise _refusal("its body closes over a Ref")
    return [a or None for a in axes]


def _batchings_of_both(
    cond_jaxpr: Any, body_jaxpr: Any
) -> list[tuple[_jax.Batching, _jax.Batching]]:
    """The batchings of condition and body together, first to last, as far back as both go."""
    both = [reversed(_jax.batchings(jaxpr)) for jaxpr in (cond_jaxpr, body_jaxpr)]
    return list(zip(*both, strict=False))[::-1]


def _with_axis(axes: Axes, new: int | None, is_lane_axis: bool) -> Axes:
    """Earlier axes after a new one has come between them; the predicate has its newest first."""
    if new is None:
        return axes
    moved = tuple(axis + (axis >= new) for axis in axes)
    return (new, *moved) if is_lane_axis else moved


def refuse_lanes_batched_without_checks(cond_jaxpr: Any) -> None:
    """Raise for a loop over lanes that was traced, and kept by a cache, before checkify was there.

    Such a loop has one predicate, which asks whether any lane runs.
    """
    for eqn in _jax.open_jaxpr(cond_jaxpr).eqns:
        called = eqn.params.get("call_jaxpr")
        if called is not None and any(b.out_axes == (0,) for b in _jax.batchings(called)):
            raise _refusal("it was traced before without checkify, and jax.clear_caches() helps")


def _refusal(reason: str) -> NotImplementedError:
    return NotImplementedError(
        "checkify of a while loop whose predicate differs between the lanes of a vmap is not "
        f"supported for this loop: {reason}, so a lane that is done could report an error that "
        "it never met. Apply checkify inside of vmap: jax.vmap(checkify.checkify(fun))."
    )


def while_batch_for_checks(
    axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """vmap of a while loop that is or may be checked: all that its lanes carry is their own.

    Otherwise lanes share a counter that depends on none of them. It counts on until the last lane
    is done, and what the others make of it then no check could tell from what they did before.
    """
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    if _jax.check_effects(cond_jaxpr.effects | body_jaxpr.effects) or _jax.inside_checkify():
        args, dims = _with_lanes_of_their_own(axis, args, dims, **params)
    return while_batch(axis, args, dims, **params)


_jax.primitive_batchers[while_p] = while_batch_for_checks


def _with_lanes_of_their_own(
    axis: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[list[Any], list[int | None]]:
    """The inputs with a batch axis in the carry that changes, if lanes end at different steps."""
    inputs, axes = (split_while_inputs(x, cond_nconsts, body_nconsts) for x in (args, dims))
    loop = Loop(cond_jaxpr, body_jaxpr, inputs, axes)
    if not _predicate_is_batched(axis, loop, _batched_carry(axis, loop)):
        return list(args), list(dims)
    sources = _jax.forwarded_inputs(body_jaxpr)
    shared = [
        dim is None and source != body_nconsts + i
        for i, (dim, source) in enumerate(zip(axes.carry, sources, strict=True))
    ]
    carry = [
        _jax.broadcast_along(x, axis, 0) if is_shared else x
        for is_shared, x in zip(shared, inputs.carry, strict=True)
    ]
    carry_axes = [0 if is_shared else d for is_shared, d in zip(shared, axes.carry, strict=True)]
    return (
        [*inputs.cond_consts, *inputs.body_consts, *carry],
        [*axes.cond_consts, *axes.body_consts, *carry_axes],
    )
