"""State discharge: a loop over Refs as a loop that carries their contents.

Reading and writing a Ref becomes reading and writing a part of the carry. A Ref that is scanned
over is carried whole, and each step works on its row of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from loops import _jax
from loops.primitives.layout import (
    cut,
    keep,
    merge,
    partition,
    split_scan_inputs,
    split_scan_outputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_of_functions, while_p


def _discharged_inputs(context: _jax.DischargeContext) -> list[bool]:
    return [
        _jax.is_ref(aval) and should
        for aval, should in zip(context.in_avals, context.should_discharge, strict=True)
    ]


def scan_discharge(
    context: _jax.DischargeContext,
    *args: Any,
    jaxpr: Any,
    length: Any,
    num_consts: int,
    num_carry: int,
    reverse: bool,
    unroll: int,
) -> tuple[list[Any], list[Any]]:
    """Carry the contents of the Refs.

    Before: [*consts with Refs, *carry, *x with Refs] -> [*carry, *y]
    After:  [*consts, step, *contents, *contents of xs, *carry, *x]
            -> [step + 1, *contents, *contents of xs, *carry, *y]
    """
    discharged = context.discharge(jaxpr, context.should_discharge)
    is_const_ref, _, is_x_ref = split_scan_inputs(
        _discharged_inputs(context), num_consts, num_carry
    )
    inputs = split_scan_inputs(args, num_consts, num_carry)
    consts, contents = partition(is_const_ref, inputs.consts)
    xs, x_contents = partition(is_x_ref, inputs.xs)
    num_outputs = len(jaxpr.out_avals)

    def body(*flat: Any) -> list[Any]:
        given = split_scan_inputs(
            flat, len(consts), 1 + len(contents) + len(x_contents) + num_carry
        )
        step, refs, x_refs, carry = cut(given.carry, [1, len(contents), len(x_contents)])
        row = length - step[0] - 1 if reverse else step[0]
        x_rows = [lax.dynamic_index_in_dim(x, row, keepdims=False) for x in x_refs]
        outputs = _jax.call_jaxpr(
            discharged,
            *merge(is_const_ref, given.consts, refs),
            *carry,
            *merge(is_x_ref, given.xs, x_rows),
        )
        plain, new_contents = outputs[:num_outputs], outputs[num_outputs:]
        new_carry, ys = split_scan_outputs(plain, num_carry)
        new_refs, new_rows = new_contents[: len(refs)], new_contents[len(refs) :]
        new_x_refs = [
            lax.dynamic_update_index_in_dim(x, new, row, 0)
            for x, new in zip(x_refs, new_rows, strict=True)
        ]
        return [step[0] + 1, *new_refs, *new_x_refs, *new_carry, *ys]

    state = [0, *contents, *x_contents, *inputs.carry]
    rows = [_jax.mapped_leading_aval(length, jax.typeof(x)) for x in xs]
    avals = [*map(jax.typeof, [*consts, *state]), *rows]
    outputs = scan_p.bind(
        *consts,
        *state,
        *xs,
        jaxpr=_jax.trace_closed(body, avals, _jax.without_names(jaxpr)),
        length=length,
        reverse=reverse,
        unroll=unroll,
        num_consts=len(consts),
        num_carry=len(state),
    )
    _, new_contents, new_x_contents, plain = cut(outputs, [1, len(contents), len(x_contents)])
    new_values = [
        *merge(is_const_ref, [None] * len(consts), new_contents),
        *[None] * num_carry,
        *merge(is_x_ref, [None] * len(xs), new_x_contents),
    ]
    return new_values, plain


_jax.register_discharge_rule(scan_p, scan_discharge)


def while_discharge(
    context: _jax.DischargeContext,
    *args: Any,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[list[Any], list[Any]]:
    """Carry the contents of the Refs that are written; one Ref in condition and body, once.

        contents = the Refs'
        predicate, contents = cond(contents, init)
        while predicate:
            carry, contents = body(contents, carry)
            predicate, contents = cond(contents, carry)

    A condition that writes nothing stays a condition. What is only read stays a constant: it has no
    lanes of its own where the predicate has.
    """
    is_ref = split_while_inputs(_discharged_inputs(context), cond_nconsts, body_nconsts)
    inputs = split_while_inputs(args, cond_nconsts, body_nconsts)
    should = split_while_inputs(context.should_discharge, cond_nconsts, body_nconsts)
    cond = context.discharge(cond_jaxpr, [*should.cond_consts, *should.carry])
    body = context.discharge(body_jaxpr, [*should.body_consts, *should.carry])
    slots, contents = _one_slot_each(context, args, [*is_ref.cond_consts, *is_ref.body_consts])
    num_cond_refs, num_carry = sum(is_ref.cond_consts), len(inputs.carry)
    cond_slots, body_slots = slots[:num_cond_refs], slots[num_cond_refs:]
    cond_consts, _ = partition(is_ref.cond_consts, inputs.cond_consts)
    body_consts, _ = partition(is_ref.body_consts, inputs.body_consts)
    cond_writes = _written_slots(cond_jaxpr, is_ref.cond_consts, cond_slots)
    body_writes = _written_slots(body_jaxpr, is_ref.body_consts, body_slots)
    is_written = [slot in cond_writes | body_writes for slot in range(len(contents))]
    only_read, written = partition(is_written, contents)

    def run_cond(written: list[Any], carry: list[Any]) -> tuple[Any, list[Any]]:
        refs = merge(is_written, only_read, written)
        consts = merge(is_ref.cond_consts, cond_consts, [refs[i] for i in cond_slots])
        predicate, *new = _jax.call_jaxpr(cond, *consts, *carry)
        return predicate, keep(is_written, _with_slots(refs, cond_slots, new))

    def run_body(written: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
        refs = merge(is_written, only_read, written)
        consts = merge(is_ref.body_consts, body_consts, [refs[i] for i in body_slots])
        outputs = _jax.call_jaxpr(body, *consts, *carry)
        new = _with_slots(refs, body_slots, outputs[num_carry:])
        return outputs[:num_carry], keep(is_written, new)

    if cond_writes:
        predicate, written = run_cond(written, inputs.carry)

        def step_and_test(_: Any, *state: Any) -> list[Any]:
            refs, carry = cut(state, [len(written)])
            new_carry, new_refs = run_body(refs, carry)
            predicate, new_refs = run_cond(new_refs, new_carry)
            return [predicate, *new_refs, *new_carry]

        init = [predicate, *written, *inputs.carry]
        _, *final = while_of_functions(lambda predicate, *_: predicate, step_and_test, init)
    else:

        def test(*state: Any) -> Any:
            return run_cond(*cut(state, [len(written)]))[0]

        def step(*state: Any) -> list[Any]:
            new_carry, new_refs = run_body(*cut(state, [len(written)]))
            return [*new_refs, *new_carry]

        final = while_of_functions(test, step, [*written, *inputs.carry])
    written, carry = cut(final, [len(written)])
    new_contents = merge(is_written, only_read, written)
    marks = [*is_ref.cond_consts, *is_ref.body_consts]
    unmarked = [None] * marks.count(False)
    return [*merge(marks, unmarked, [new_contents[i] for i in slots]), *[None] * num_carry], carry


_jax.register_discharge_rule(while_p, while_discharge)


def _one_slot_each(
    context: _jax.DischargeContext, args: Sequence[Any], is_ref: Sequence[bool]
) -> tuple[list[int], list[Any]]:
    """A slot for each Ref, the same for a Ref that occurs twice, and the contents of each slot.

    Two occurrences are one Ref if they are one value of one type object: Refs made apart have type
    objects of their own, even with equal contents.
    """
    num_consts = len(is_ref)
    occurrences = keep(is_ref, list(zip(args, context.in_avals, strict=True))[:num_consts])
    numbers: dict[tuple[int, int], int] = {}
    slots = [numbers.setdefault((id(value), id(aval)), len(numbers)) for value, aval in occurrences]
    contents: list[Any] = [None] * len(numbers)
    for slot, (value, _) in zip(slots, occurrences, strict=True):
        contents[slot] = value
    return slots, contents


def _written_slots(jaxpr: Any, is_ref: Sequence[bool], slots: Sequence[int]) -> set[int]:
    """The slots of the Refs among the constants of a jaxpr that it writes to."""
    is_written = _jax.written_inputs(jaxpr)[: len(is_ref)]
    return set(keep(keep(is_ref, is_written), slots))


def _with_slots(refs: list[Any], slots: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """The contents of all slots, with new ones for some."""
    changed = list(refs)
    for slot, value in zip(slots, new, strict=True):
        changed[slot] = value
    return changed
