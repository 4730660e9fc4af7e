"""jvp: the same loop, with the tangents beside the values, there and back.

A cache of stored carries that it gets is of no use to it, because those have no tangents. One that
it returns has none either: only the loop's own way back reads it, and that knows the carries from
their init, tangents and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.single_updates import simplify_single_updates
from loops.primitives.checkpointed_loop import (
    Lanes,
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_p,
)
from loops.primitives.layout import keep
from loops.rules.fixpoint import grow_to_fixpoint
from loops.rules.forward_mode import beside_tangents, tangents_in, tangents_out


class JvpOfLoop(NamedTuple):
    """A loop with tangents, and which of its inputs and outputs have one.

    forward_jaxpr:  [*consts, *consts', *carry, *carry', *x, *x'] -> [*carry, *carry', *y, *y']
    backward_jaxpr: [*consts, *consts', *carry, *carry', *back, *back', *x, *x']
                    -> [*back, *back', *row, *row']
    """

    loop: Loop
    nonzeros_in: LoopInputs
    nonzeros_out: LoopOutputs


def jvp_of_loop(loop: Loop, nonzeros: Sequence[bool]) -> JvpOfLoop:
    """Add tangents where the inputs have them, and where the carry and `back` get them."""
    given = loop.inputs(nonzeros)
    forward = simplify_single_updates(loop.forward_jaxpr)

    def transform(carry: list[bool]) -> tuple[tuple[Any, list[bool]], list[bool]]:
        marks = [*given.consts, *carry, *given.xs]
        result = _jax.jvp_jaxpr(forward, marks, [*carry, *[False] * loop.num_ys])
        return result, result[1][: loop.num_carry]

    carry, (jvp, forward_out) = grow_to_fixpoint(given.carry, transform)
    ends_in = [loop.num_consts, loop.num_consts + loop.num_carry]
    jvp = _jax.permute(
        jvp,
        beside_tangents([*given.consts, *carry, *given.xs], ends_in),
        beside_tangents(forward_out, [loop.num_carry]),
    )
    back, back_jvp, backward_out = _jvp_of_way_back(loop, given, carry)
    nonzeros_in = LoopInputs(False, given.consts, carry, back, given.xs, [])
    nonzeros_out = LoopOutputs(
        False,
        carry,
        back,
        forward_out[loop.num_carry :],
        backward_out[loop.num_back :],
        [False] * (0 if loop.recorded is None else 1 + sum(loop.recorded)),
    )
    with_tangents = loop._replace(
        cond_jaxpr=_cond_without_tangents(loop, given.consts, carry),
        forward_jaxpr=jvp,
        backward_jaxpr=back_jvp,
        num_consts=loop.num_consts + sum(given.consts),
        num_carry=loop.num_carry + sum(carry),
        num_back=loop.num_back + sum(back),
        recorded=_of_values_alone(loop.recorded, carry),
        cached=None,
        linear_carry=_doubled(loop.is_linear()[0], carry),
        linear_xs=_doubled(loop.is_linear()[1], given.xs),
        lanes=_lanes_with_tangents(loop.lanes, nonzeros_in, nonzeros_out),
    )
    return JvpOfLoop(with_tangents, nonzeros_in, nonzeros_out)


def _jvp_of_way_back(
    loop: Loop, given: LoopInputs, carry: list[bool]
) -> tuple[list[bool], Any, list[bool]]:
    """Which parts of `back` have tangents, the jaxpr with them, and which outputs have."""
    jaxpr = loop.backward_jaxpr
    if jaxpr is None:
        return [], None, []

    def transform(back: list[bool]) -> tuple[tuple[Any, list[bool]], list[bool]]:
        marks = [*given.consts, *carry, *back, *given.xs]
        result = _jax.jvp_jaxpr(jaxpr, marks, [*back, *[False] * loop.num_rows])
        return result, result[1][: loop.num_back]

    back, (jvp, nonzeros_out) = grow_to_fixpoint(given.back, transform)
    first_back = loop.num_consts + loop.num_carry
    ends = [loop.num_consts, first_back, first_back + loop.num_back]
    inputs = beside_tangents([*given.consts, *carry, *back, *given.xs], ends)
    return (
        back,
        _jax.permute(jvp, inputs, beside_tangents(nonzeros_out, [loop.num_back])),
        nonzeros_out,
    )


def _cond_without_tangents(loop: Loop, consts: list[bool], carry: list[bool]) -> Any:
    """A condition that takes the tangents and does not look at them.

    Before: [*consts, *carry]                     -> [predicate]
    After:  [*consts, *consts', *carry, *carry']  -> [predicate]
    """
    if loop.cond_jaxpr is None:
        return None
    avals = loop.cond_jaxpr.in_avals
    tangent_avals = [aval.to_tangent_aval() for aval in keep([*consts, *carry], avals)]
    widened = _jax.with_unused_inputs(loop.cond_jaxpr, tangent_avals)
    return _jax.permute(widened, beside_tangents([*consts, *carry], [loop.num_consts]))


def _lanes_with_tangents(
    lanes: Lanes | None, nonzeros: LoopInputs, nonzeros_out: LoopOutputs
) -> Lanes | None:
    """A tangent has lanes where its value has."""
    if lanes is None:
        return None
    return Lanes(
        consts=_doubled(lanes.consts, nonzeros.consts),
        carry=_doubled(lanes.carry, nonzeros.carry),
        back=_doubled(lanes.back, nonzeros.back),
        xs=_doubled(lanes.xs, nonzeros.xs),
        rows=_doubled(lanes.rows, nonzeros_out.rows),
    )


def _doubled(marks: Sequence[bool], nonzero: Sequence[bool]) -> tuple[bool, ...]:
    return (*marks, *keep(nonzero, marks))


def _of_values_alone(
    recorded: tuple[bool, ...] | None, carry: list[bool]
) -> tuple[bool, ...] | None:
    """The same parts of the carry recorded, and none of the tangents."""
    return None if recorded is None else (*recorded, *(False for nonzero in carry if nonzero))


def inputs_with_tangents(jvp: JvpOfLoop, values: LoopInputs, tangents: LoopInputs) -> LoopInputs:
    """The inputs of a loop with tangents: each group, and after it its tangents."""
    marks = jvp.nonzeros_in
    return LoopInputs(
        values.limit,
        [*values.consts, *tangents_in(marks.consts, tangents.consts)],
        [*values.carry, *tangents_in(marks.carry, tangents.carry)],
        [*values.back, *tangents_in(marks.back, tangents.back)],
        [*values.xs, *tangents_in(marks.xs, tangents.xs)],
        [],
    )


def outputs_and_tangents(
    loop: Loop, jvp: JvpOfLoop, outputs: LoopOutputs
) -> tuple[list[Any], list[Any]]:
    """The outputs of a loop with tangents taken apart."""
    values: list[Any] = [outputs.steps]
    dots: list[Any] = []
    groups = (
        (outputs.carry, loop.num_carry),
        (outputs.back, loop.num_back),
        (outputs.ys, loop.num_ys),
        (outputs.rows, loop.num_rows),
    )
    for group, count in groups:
        values += group[:count]
        dots += group[count:]
    values += outputs.cache
    return values, tangents_out(jvp.nonzeros_out.flat(), dots, values)


def checkpointed_loop_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Run one loop over values and tangents."""
    loop = Loop(**params)
    jvp = jvp_of_loop(loop, [not _jax.is_zero(t) for t in tangents])
    inputs = inputs_with_tangents(jvp, loop.inputs(primals), loop.inputs(tangents))
    return outputs_and_tangents(loop, jvp, jvp.loop.bind(inputs))


_jax.primitive_jvps[checkpointed_loop_p] = checkpointed_loop_jvp
