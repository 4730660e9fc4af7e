"""Cotangents added up in place: a step that read one row of a buffer adds to one row of its sum.

The cotangent of reading a row is a buffer of zeros with one row written, and the sum of cotangents
adds the whole of it to the buffer so far. In a loop that is the size of the buffer at each step.

    Before: zeros = broadcast_in_dim 0.0           After: row  = dynamic_slice a i
            rows  = dynamic_update_slice zeros u i        row' = add_any row u
            sum   = add_any a rows                        sum  = dynamic_update_slice a row' i

    Before: rows  = scatter-add zeros i u          After: sum  = scatter-add a i u
            sum   = add_any a rows

Neither touches more than the rows, and XLA does both in place where `a` is not read afterwards. A
sum of many terms is written as the sum of its dense terms and then one update after another. A sum
of updates alone is left as it is: it fills a buffer with zeros in either form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.core import ShapedArray

from loops import _jax
from loops.passes.inline_calls import CALLS, called_jaxpr, inline_calls

CALLS_AND_LOOPS = (*CALLS, "scan", "while")
"""The primitives whose jaxprs are looked into."""

MAKES_ZEROS = ("broadcast_in_dim", "pvary")
"""The primitives that make larger zeros of zeros."""

MIN_BUFFER = 256
"""Smaller buffers are left alone: XLA adds them in one loop, together with what is around."""

TIMES_SMALLER = 4
"""So many times smaller than the buffer must an update be, so that it costs less than a sum."""

TIMES_SMALLER_AT_FIXED_PLACE = 16
"""The same at a fixed place: XLA fuses such a sum with others, as of a state taken apart."""

MAX_INDEX = np.iinfo(np.int32).max


@_jax.cached_by_jaxpr
def accumulate_in_place(jaxpr: Any) -> Any:
    """Write sums of cotangents as updates in place; the same object where there are none.

    Before: [*in] -> [*out]
    After:  [*in] -> [*out], the same up to the order in which terms are added
    """
    jaxpr = _jax.map_equations(_inside_equation, jaxpr)
    if not any(eqn.primitive is _jax.add_cotangents_p for eqn in jaxpr.jaxpr.eqns):
        return jaxpr
    inlined = inline_calls(jaxpr, _returns_update)
    eqns = _Sums(inlined.jaxpr).rewritten()
    return jaxpr if eqns is None else _jax.with_equations(inlined, eqns)


def changes_in_place(jaxpr: Any, position: int, output: int) -> bool:
    """Whether an output is the input at `position` with updates made to it, and nothing else."""
    producers = _producers(jaxpr.jaxpr.eqns)
    buffer, variable = jaxpr.jaxpr.invars[position], jaxpr.jaxpr.outvars[output]
    while variable is not buffer:
        eqn = producers.get(variable) if isinstance(variable, _jax.Var) else None
        if eqn is not None and eqn.primitive in (lax.dynamic_update_slice_p, lax.scatter_add_p):
            variable = eqn.invars[0]
        elif eqn is not None and variable in eqn.outvars[: eqn.params.get("num_carry", 0)]:
            variable = eqn.invars[eqn.params["num_consts"] + eqn.outvars.index(variable)]
        else:
            return False
    return True


def _inside_equation(eqn: Any) -> Any:
    """Rewrite the jaxprs of an equation."""
    if eqn.primitive.name not in CALLS_AND_LOOPS:
        return eqn
    params = _jax.map_parameters(
        lambda value: accumulate_in_place(value) if _jax.is_closed_jaxpr(value) else value,
        eqn.params,
    )
    return _jax.with_parameters(eqn, params)


def _returns_update(call: Any) -> bool:
    """Whether a called function returns zeros with few rows written."""
    called = called_jaxpr(call).jaxpr
    producers = _producers(called.eqns)
    outputs = _variables(called.outvars)
    return any(_is_update(producers.get(v), producers) for v in outputs)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if isinstance(v, _jax.Var)]


def _producers(eqns: Sequence[Any]) -> dict[Any, Any]:
    return {v: eqn for eqn in eqns for v in eqn.outvars}


def _is_zero(atom: Any, producers: dict[Any, Any]) -> bool:
    """Whether a value is nothing but zeros."""
    while isinstance(atom, _jax.Var):
        eqn = producers.get(atom)
        if eqn is None or eqn.primitive.name not in MAKES_ZEROS:
            return False
        atom = eqn.invars[0]
    return bool(np.all(atom.val == 0))


def _is_update(eqn: Any, producers: dict[Any, Any]) -> bool:
    """Whether an equation writes few rows into a large buffer of zeros."""
    if eqn is None:
        return False
    times_smaller = TIMES_SMALLER
    if eqn.primitive is lax.dynamic_update_slice_p:
        zeros, update = eqn.invars[:2]
    elif eqn.primitive is lax.scatter_add_p:
        zeros, _, update = eqn.invars
    elif eqn.primitive is lax.pad_p and _only_adds_around(eqn.params["padding_config"]):
        update, zeros = eqn.invars
        times_smaller = TIMES_SMALLER_AT_FIXED_PLACE
    else:
        return False
    is_worth_it = _is_smaller(update.aval, eqn.outvars[0].aval, times_smaller)
    return is_worth_it and _is_zero(zeros, producers)


def _only_adds_around(config: Any) -> bool:
    return all(0 <= low <= MAX_INDEX and high >= 0 and inner == 0 for low, high, inner in config)


def _is_smaller(update: Any, buffer: Any, times: int) -> bool:
    shapes = (*buffer.shape, *update.shape)
    if not all(isinstance(size, int) for size in shapes):  # symbolic sizes can't be compared
        return False
    return buffer.size >= max(MIN_BUFFER, times * update.size)


class _Sums:
    """The sums in a jaxpr, and what its equations become."""

    def __init__(self, inner: Any) -> None:
        self.eqns, self.outvars = inner.eqns, inner.outvars
        self.producers = _producers(inner.eqns)
        used = [v for eqn in inner.eqns for v in _variables(eqn.invars)]
        self.uses = Counter([*used, *_variables(inner.outvars)])
        self.new_variable = _jax.variable_maker()
        self.seen: set[int] = set()
        self.gone: set[int] = set()

    def rewritten(self) -> list[Any] | None:
        """All equations, with the sums that have updates among their terms written anew."""
        new: list[Any] = []
        for eqn in reversed(self.eqns):
            if eqn.primitive is _jax.add_cotangents_p and id(eqn) not in self.seen:
                new.extend(reversed(self.sum_of(eqn)))
            elif id(eqn) not in self.gone:
                new.append(eqn)
        return _without_unused_zeros(new[::-1], self.outvars) if self.gone else None

    def sum_of(self, root: Any) -> list[Any]:
        """The equations that a sum becomes: its own, unless it adds updates to a dense term."""
        terms, inner_sums = self.terms(root)
        self.seen.update(map(id, inner_sums))
        updates = [p for term in terms if _is_update(p := self.only_producer(term), self.producers)]
        if len(updates) in (0, len(terms)):
            return [root]
        made = {v for update in updates for v in update.outvars}
        dense = [term for term in terms if term not in made]
        self.gone.update(map(id, [*inner_sums, *updates]))
        return self.added_up(dense, updates, root)

    def only_producer(self, term: Any) -> Any:
        """The equation that makes a term, if the term is used nowhere else."""
        is_only_here = isinstance(term, _jax.Var) and self.uses[term] == 1
        return self.producers.get(term) if is_only_here else None

    def terms(self, root: Any) -> tuple[list[Any], list[Any]]:
        """The terms of a sum, and the sums inside it that are used nowhere else."""
        terms, inner_sums, to_do = [], [], list(root.invars[::-1])
        while to_do:
            term = to_do.pop()
            producer = self.only_producer(term)
            if producer is not None and producer.primitive is _jax.add_cotangents_p:
                inner_sums.append(producer)
                to_do.extend(producer.invars[::-1])
            else:
                terms.append(term)
        return terms, inner_sums

    def added_up(self, dense: list[Any], updates: list[Any], root: Any) -> list[Any]:
        """The dense terms of a sum added up, and then one update after another."""
        eqns, total = [], dense[0]
        for term in dense[1:]:
            result = self.new_variable(total.aval)
            eqns.append(root.replace(invars=[total, term], outvars=[result]))
            total = result
        for update in updates:
            result = self.new_variable(total.aval)
            eqns.extend(self.in_place(update, total, result))
            total = result
        return [*eqns[:-1], eqns[-1].replace(outvars=root.outvars)]

    def in_place(self, update: Any, total: Any, result: Any) -> list[Any]:
        """An update that is made to a sum, in the place of zeros."""
        if update.primitive is lax.scatter_add_p:
            return [update.replace(invars=[total, *update.invars[1:]], outvars=[result])]
        if update.primitive is lax.pad_p:
            rows, start = update.invars[0], _literals(update.params["padding_config"])
        else:
            rows, start = update.invars[1], update.invars[2:]
        old, new = self.new_variable(rows.aval), self.new_variable(rows.aval)
        sizes = {"slice_sizes": rows.aval.shape}
        read, add, write = lax.dynamic_slice_p, _jax.add_cotangents_p, lax.dynamic_update_slice_p
        return [
            update.replace(primitive=primitive, invars=[*inputs], outvars=[output], params=params)
            for primitive, inputs, output, params in (
                (read, (total, *start), old, sizes),
                (add, (old, rows), new, {}),
                (write, (total, new, *start), result, {}),
            )
        ]


def _literals(padding: Any) -> list[Any]:
    """Where the padded array begins, as start indices."""
    index = ShapedArray((), np.dtype(np.int32))
    return [_jax.Literal(np.int32(low), index) for low, _, _ in padding]


def _without_unused_zeros(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """Drop the buffers of zeros that nothing is written into any more."""
    used, kept = set(_variables(outvars)), []
    for eqn in reversed(eqns):
        if eqn.primitive.name not in MAKES_ZEROS or not used.isdisjoint(eqn.outvars):
            used.update(_variables(eqn.invars))
            kept.append(eqn)
    return kept[::-1]
