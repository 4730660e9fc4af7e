"""Dead code: what neither a used output, nor the condition, nor the way back needs, goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.primitives.checkpointed_loop import (
    Lanes,
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_p,
)
from loops.primitives.layout import cut, keep
from loops.rules.fixpoint import grow_to_fixpoint


class LiveLoop(NamedTuple):
    """A loop without dead code, and which of its inputs and outputs it still has."""

    loop: Loop
    inputs: LoopInputs
    outputs: LoopOutputs


def live_loop(loop: Loop, used: LoopOutputs) -> LiveLoop:
    """Drop all that the used outputs do not need.

    A part of `back` is needed if it is used or if a step back needs it; a part of the carry if it
    is used, stored for another, or if the condition, a step, or a step back needs it.
    """
    back, way_back = _live_way_back(loop, used)
    cond = _live_condition(loop)
    num_consts, num_carry = loop.num_consts, loop.num_carry
    wanted = [any(marks) for marks in zip(used.carry, way_back.carry, cond.carry, strict=True)]
    if loop.recorded is not None:
        wanted = [a or b for a, b in zip(wanted, loop.recorded, strict=True)]

    def transform(carry: list[bool]) -> tuple[Any, list[bool]]:
        keep_inputs = [*[False] * num_consts, *carry, *[False] * loop.num_xs]
        result = _jax.eliminate_dead_code(loop.forward_jaxpr, [*carry, *used.ys], keep_inputs)
        return result, cut(result.used_inputs, [num_consts, num_carry])[1]

    carry, forward = grow_to_fixpoint(wanted, transform)
    consts_used, _, xs_used = cut(forward.used_inputs, [num_consts, num_carry])
    consts = _either(consts_used, way_back.consts, cond.consts)
    xs = _either(xs_used, way_back.xs)
    return LiveLoop(
        _without(loop, consts, carry, back, xs, used),
        LoopInputs(True, consts, carry, back, xs, _cache_kept(loop, carry, used)),
        used._replace(carry=carry, back=back),
    )


class _Needs(NamedTuple):
    """What one of the jaxprs reads."""

    consts: list[bool]
    carry: list[bool]
    xs: list[bool]


def _either(*marks: Sequence[bool]) -> list[bool]:
    return [any(each) for each in zip(*marks, strict=True)]


def _live_way_back(loop: Loop, used: LoopOutputs) -> tuple[list[bool], _Needs]:
    """The parts of `back` that are needed, and what the way back reads for them."""
    sizes = [loop.num_consts, loop.num_carry, loop.num_back]
    if loop.backward_jaxpr is None:
        nothing = ([False] * size for size in (*sizes[:2], loop.num_xs))
        return [], _Needs(*nothing)
    jaxpr = loop.backward_jaxpr

    def transform(back: list[bool]) -> tuple[list[list[bool]], list[bool]]:
        result = _jax.eliminate_dead_code(jaxpr, [*back, *used.rows], [False] * len(jaxpr.in_avals))
        groups = cut(result.used_inputs, sizes)
        return groups, groups[2]

    back, (consts, carry, _, xs) = grow_to_fixpoint(used.back, transform)
    return back, _Needs(consts, carry, xs)


def _live_condition(loop: Loop) -> _Needs:
    """What the condition reads."""
    if loop.cond_jaxpr is None:
        return _Needs([False] * loop.num_consts, [False] * loop.num_carry, [])
    marks = [False] * len(loop.cond_jaxpr.in_avals)
    result = _jax.eliminate_dead_code(loop.cond_jaxpr, [True], marks)
    consts, carry = cut(result.used_inputs, [loop.num_consts])
    return _Needs(consts, carry, [])


def _without(
    loop: Loop,
    consts: list[bool],
    carry: list[bool],
    back: list[bool],
    xs: list[bool],
    used: LoopOutputs,
) -> Loop:
    """The loop with the marked parts alone."""

    def narrowed(jaxpr: Any, outputs: Sequence[bool], inputs: Sequence[bool]) -> Any:
        return None if jaxpr is None else _narrowed(jaxpr, tuple(outputs), tuple(inputs))

    has_way_back = loop.backward_jaxpr is None or any(back) or any(used.rows)
    return loop._replace(
        cond_jaxpr=narrowed(loop.cond_jaxpr, [True], [*consts, *carry]),
        forward_jaxpr=narrowed(loop.forward_jaxpr, [*carry, *used.ys], [*consts, *carry, *xs]),
        backward_jaxpr=narrowed(
            loop.backward_jaxpr if has_way_back else None,
            [*back, *used.rows],
            [*consts, *carry, *back, *xs],
        ),
        num_consts=sum(consts),
        num_carry=sum(carry),
        num_back=sum(back),
        recorded=_narrow(carry, loop.recorded),
        cached=_narrow(carry, loop.cached) if has_way_back else None,
        linear_carry=_narrow(carry, loop.linear_carry or None) or (),
        linear_xs=_narrow(xs, loop.linear_xs or None) or (),
        lanes=_lanes_kept(loop.lanes, consts, carry, back, xs, used.rows),
    )


def _narrow(marks: Sequence[bool], values: tuple[bool, ...] | None) -> tuple[bool, ...] | None:
    return None if values is None else tuple(keep(marks, values))


def _lanes_kept(
    lanes: Lanes | None,
    consts: list[bool],
    carry: list[bool],
    back: list[bool],
    xs: list[bool],
    rows: list[bool],
) -> Lanes | None:
    if lanes is None:
        return None
    return Lanes(
        consts=tuple(keep(consts, lanes.consts)),
        carry=tuple(keep(carry, lanes.carry)),
        back=tuple(keep(back, lanes.back)),
        xs=tuple(keep(xs, lanes.xs)),
        rows=tuple(keep(rows, lanes.rows)),
    )


def _cache_kept(loop: Loop, carry: list[bool], used: LoopOutputs) -> list[bool]:
    """The positions and the stored carries that are left, if there still is a way back."""
    if loop.cached is None:
        return []
    has_way_back = loop.backward_jaxpr is None or any(used.back) or any(used.rows)
    return [has_way_back, *(has_way_back and kept for kept in keep(loop.cached, carry))]


@_jax.cached_by_jaxpr
def _narrowed(jaxpr: Any, outputs: tuple[bool, ...], inputs: tuple[bool, ...]) -> Any:
    """A jaxpr with the marked outputs, and with the marked inputs whether it reads them or not."""
    return _jax.eliminate_dead_code(jaxpr, outputs, inputs).jaxpr


def checkpointed_loop_dead_code(
    used_outputs: Sequence[bool], live_inputs: Sequence[bool], eqn: Any
) -> tuple[list[bool], Any]:
    """Drop from a loop what none of its used outputs needs."""
    if not any(used_outputs) and not _jax.must_keep(eqn, live_inputs):
        return [False] * len(eqn.invars), None
    loop = Loop(**eqn.params)
    live = live_loop(loop, loop.outputs(used_outputs))
    used_inputs = live.inputs.flat()
    if live.loop == loop and all(used_inputs):
        return used_inputs, eqn
    outputs = live.outputs._replace(steps=True, cache=[True] * len(live.outputs.cache))
    invars, outvars = keep(used_inputs, eqn.invars), keep(outputs.flat(), eqn.outvars)
    params = live.loop._asdict()
    return used_inputs, _jax.new_equation(checkpointed_loop_p, invars, outvars, params, eqn)


_jax.register_dead_code_rule(checkpointed_loop_p, checkpointed_loop_dead_code)
