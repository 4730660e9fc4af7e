"""Hijax types: a loop over high-level values as a loop over the arrays that they are made of.

A body may also be high-level because of an equation inside, with plain arrays going in and out. A
mutable box (JAX before 0.12) that a body closes over is carried: what it holds goes into each step.
What a scan adds to a log, a box that no program reads, is stacked as its ys are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.primitives.layout import cut, partition, split_scan_inputs, split_while_inputs
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


class BoxesAsCarry(NamedTuple):
    """A body that takes the boxes among its constants behind the others, and its inputs.

    before: [*consts with boxes, *carry, *x] -> [*carry, *y]
    after:  [*consts, *boxes, *carry, *x]    -> [*carry, *y]
    """

    jaxpr: Any
    inputs: list[Any]
    num_boxes: int


def boxes_as_carry(jaxpr: Any, inputs: Sequence[Any], num_consts: int) -> BoxesAsCarry:
    """Move the boxes that a body closes over to where its carry begins."""
    is_box = _jax.boxes_among(jaxpr.in_avals)
    is_log = _jax.logs_among(jaxpr.in_avals)
    is_carried = [box and not log for box, log in zip(is_box, is_log, strict=True)]
    others, boxes = partition(is_carried[:num_consts], range(num_consts))
    order = [*others, *boxes, *range(num_consts, len(inputs))]
    return BoxesAsCarry(_jax.permute(jaxpr, order), [inputs[i] for i in order], len(boxes))


def scan_to_lojax(
    *args: Any, jaxpr: Any, num_consts: int, num_carry: int, **params: Any
) -> list[Any]:
    """Run a scan on the arrays that its inputs are made of."""
    moved = boxes_as_carry(jaxpr, args, num_consts)
    num_others, num_carried = num_consts - moved.num_boxes, num_carry + moved.num_boxes
    low = _jax.lower_high_jaxpr(moved.jaxpr)
    groups = _jax.arrays_of(moved.jaxpr, moved.inputs)
    arrays = split_scan_inputs(groups, num_others, num_carried)
    num_logged = sum(low.num_held[:num_others])
    outputs = scan_p.bind(
        *_flat(groups),
        jaxpr=_with_logs_last(low.jaxpr, num_logged),
        num_consts=len(_flat(arrays.consts)),
        num_carry=len(_flat(arrays.carry)),
        **params,
    )
    outputs, logged = cut(outputs, [len(outputs) - num_logged])
    return low.raise_outputs(moved.inputs, [*logged, *outputs])


def _with_logs_last(jaxpr: Any, num_logged: int) -> Any:
    """Put what a step adds to logs among the ys.

    before: [*consts, *carry, *x] -> [*logged, *carry, *y]
    after:  [*consts, *carry, *x] -> [*carry, *y, *logged]
    """
    logged, others = cut(range(len(jaxpr.out_avals)), [num_logged])
    return _jax.permute(jaxpr, range(len(jaxpr.in_avals)), [*others, *logged])


def scan_is_high(*_: Any, jaxpr: Any, **__: Any) -> bool:
    """Whether the body has anything of a high-level type."""
    return _jax.is_high(jaxpr)


_jax.register_lojax(scan_p, scan_is_high, scan_to_lojax)


def while_to_lojax(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run a while loop on the arrays that its inputs are made of."""
    inputs = split_while_inputs(args, cond_nconsts, body_nconsts)
    if any(_jax.boxes_among(cond_jaxpr.in_avals)):
        raise NotImplementedError(
            "The condition of a loop cannot read a hijax box. Read it before the loop and at the "
            "end of each step, and carry what it holds."
        )
    if any(_jax.logs_among(body_jaxpr.in_avals)):
        raise NotImplementedError(
            "A while loop cannot add to a hijax log: nothing says how many steps there will be. "
            "Use a scan."
        )
    moved = boxes_as_carry(body_jaxpr, [*inputs.body_consts, *inputs.carry], body_nconsts)
    num_others = body_nconsts - moved.num_boxes
    body = _jax.lower_high_jaxpr(moved.jaxpr)
    cond = _jax.lower_high_jaxpr(cond_jaxpr).jaxpr

    groups = _jax.arrays_of(moved.jaxpr, moved.inputs)
    body_consts, in_boxes, carry = map(_flat, cut(groups, [num_others, moved.num_boxes]))
    cond_consts = _flat(_jax.arrays_of(cond_jaxpr, [*inputs.cond_consts, *inputs.carry]))
    cond_consts = cond_consts[: len(cond_consts) - len(carry)]
    outputs = while_p.bind(
        *cond_consts,
        *body_consts,
        *in_boxes,
        *carry,
        cond_jaxpr=_with_unread_carry(cond, len(cond_consts), in_boxes),
        cond_nconsts=len(cond_consts),
        body_jaxpr=body.jaxpr,
        body_nconsts=len(body_consts),
    )
    return body.raise_outputs(moved.inputs, outputs)


def _with_unread_carry(cond_jaxpr: Any, num_consts: int, unread: Sequence[Any]) -> Any:
    """A condition that takes more carry than it reads.

    before: [*consts, *carry] -> [predicate]
    after:  [*consts, *unread, *carry] -> [predicate]
    """
    num_inputs = len(cond_jaxpr.in_avals)
    more = _jax.with_unused_inputs(cond_jaxpr, [jax.typeof(x) for x in unread])
    added = range(num_inputs, num_inputs + len(unread))
    return _jax.permute(more, [*range(num_consts), *added, *range(num_consts, num_inputs)])


def while_is_high(*_: Any, cond_jaxpr: Any, body_jaxpr: Any, **__: Any) -> bool:
    """Whether condition or body has anything of a high-level type."""
    return _jax.is_high(cond_jaxpr) or _jax.is_high(body_jaxpr)


_jax.register_lojax(while_p, while_is_high, while_to_lojax)


def _flat(groups: list[list[Any]]) -> list[Any]:
    return [x for group in groups for x in group]
