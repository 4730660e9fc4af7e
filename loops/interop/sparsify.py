"""sparsify: a loop over sparse arrays, whose parts become constants, carry and xs of their own.

A body runs on the sparse arrays that its inputs stand for. What it hands on must be sparse in the
same way as what it got, with as many stored elements; a sparse result for a dense part of the carry
is made dense. Of a sparse array in xs each step gets a row, so its leading axis must be a batch
axis, and sparse ys are stacked along a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from loops import _jax
from loops.interop.checkpointed import written_out
from loops.interop.when_imported import when_imported
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.layout import (
    split_scan_inputs,
    split_scan_outputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.rules.fixpoint import grow_to_fixpoint


class Form(NamedTuple):
    """What an array is made of: the types of its parts and, for a sparse one, how to join them.

    `kind` is the class of a sparse array, and None for a dense one, which is its own part.
    """

    kind: type | None
    shape: tuple[Any, ...]
    parts: tuple[Any, ...]
    indices_sorted: bool = True
    unique_indices: bool = True

    def join(self, parts: Sequence[Any]) -> Any:
        """The array made of the given parts."""
        if self.kind is None:
            return parts[0]
        flags = {"indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices}
        return self.kind(tuple(parts), shape=self.shape, **flags)

    def row(self, length: Any) -> Form:
        """The form of a row of arrays of this form."""
        parts = tuple(_jax.mapped_leading_aval(length, aval) for aval in self.parts)
        return self._replace(shape=self.shape[1:], parts=parts)

    def stacked(self, length: Any) -> Form:
        """The form of stacked arrays of this form."""
        parts = tuple(_jax.unmapped_leading_aval(length, aval) for aval in self.parts)
        return self._replace(shape=(length, *self.shape), parts=parts)

    def __str__(self) -> str:
        if self.kind is None:
            return "dense"
        types = ", ".join(aval.str_short() for aval in self.parts)
        return f"{self.kind.__name__} of shape {self.shape} stored as {types}"


def form_of(x: Any) -> Form:
    """The form of a dense or sparse array."""
    parts = tuple(jax.typeof(part) for part in jax.tree.leaves(x))
    if not _is_sparse(x):
        return Form(None, x.shape, parts)
    return Form(type(x), x.shape, parts, x.indices_sorted, x.unique_indices)


def scan_sparse(
    sparse: Any,
    env: Any,
    *values: Any,
    jaxpr: Any,
    length: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> Any:
    """Run one scan over the parts of sparse arrays.

    Before: [*consts, *carry, *x] -> [*carry, *y]
    After:  [*parts of consts, *parts of carry, *parts of x] -> [*parts of carry, *parts of y]
    """
    arrays = split_scan_inputs(sparse.spvalues_to_arrays(env, values), num_consts, num_carry)
    xs = [_as_rows(x, length) for x in arrays.xs]
    const_forms = [form_of(x) for x in arrays.consts]
    row_forms = [form_of(x).row(length) for x in xs]

    def run(carry_forms: list[Form]) -> SparseJaxpr:
        forms_in = (*const_forms, *carry_forms, *row_forms)
        return _sparse_jaxpr(jaxpr, sparse.sparsify, forms_in, tuple(carry_forms))

    carry_forms, body = _weaken_to_fixpoint("scan body", [form_of(x) for x in arrays.carry], run)
    consts, carry = jax.tree.leaves(arrays.consts), jax.tree.leaves(arrays.carry)
    outputs = scan_p.bind(
        *consts,
        *carry,
        *jax.tree.leaves(xs),
        jaxpr=body.jaxpr,
        length=length,
        num_consts=len(consts),
        num_carry=len(carry),
        **params,
    )
    ys_forms = [form.stacked(length) for form in split_scan_outputs(body.forms, num_carry).ys]
    return sparse.arrays_to_spvalues(env, _join_all([*carry_forms, *ys_forms], outputs))


def while_sparse(
    sparse: Any,
    env: Any,
    *values: Any,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> Any:
    """Run one while loop over the parts of sparse arrays."""
    arrays = sparse.spvalues_to_arrays(env, values)
    arrays = split_while_inputs(arrays, cond_nconsts, body_nconsts)
    cond_forms = [form_of(x) for x in arrays.cond_consts]
    body_forms = [form_of(x) for x in arrays.body_consts]

    def run(carry_forms: list[Form]) -> SparseJaxpr:
        forms_in = (*body_forms, *carry_forms)
        return _sparse_jaxpr(body_jaxpr, sparse.sparsify, forms_in, tuple(carry_forms))

    carry_forms, body = _weaken_to_fixpoint(
        "while_loop body", [form_of(x) for x in arrays.carry], run
    )
    dense = (Form(None, (), tuple(cond_jaxpr.out_avals)),)
    cond = _sparse_jaxpr(cond_jaxpr, sparse.sparsify, (*cond_forms, *carry_forms), dense)
    cond_consts, body_consts, carry = (jax.tree.leaves(group) for group in arrays)
    outputs = while_p.bind(
        *cond_consts,
        *body_consts,
        *carry,
        cond_jaxpr=cond.jaxpr,
        cond_nconsts=len(cond_consts),
        body_jaxpr=body.jaxpr,
        body_nconsts=len(body_consts),
    )
    return sparse.arrays_to_spvalues(env, _join_all(carry_forms, outputs))


def checkpointed_sparse(sparse: Any, env: Any, *values: Any, **params: Any) -> Any:
    """Run the plain loops that a checkpointed one is written out as over sparse arrays."""
    arrays = sparse.spvalues_to_arrays(env, values)
    plain = written_out([jax.core.ShapedArray(x.shape, x.dtype) for x in arrays], params)
    outputs = sparse.sparsify(partial(_jax.evaluate_jaxpr, plain))(*arrays)
    return sparse.arrays_to_spvalues(env, outputs)


class SparseJaxpr(NamedTuple):
    """A jaxpr on the parts of sparse arrays, and the forms of what it returns."""

    jaxpr: Any
    forms: list[Form]


@_jax.cached_by_jaxpr
def _sparse_jaxpr(
    jaxpr: Any, sparsify: Callable[..., Any], forms_in: tuple[Form, ...], wanted: tuple[Form, ...]
) -> SparseJaxpr:
    """Trace a jaxpr on sparse arrays; the first outputs are made dense where `wanted` is."""
    forms: list[Form] = []

    def run(*parts: Any) -> list[Any]:
        evaluate = sparsify(partial(_jax.evaluate_jaxpr, jaxpr))
        outputs = evaluate(*_join_all(forms_in, parts))
        for i, form in enumerate(wanted):
            if form.kind is None and _is_sparse(outputs[i]):
                outputs[i] = outputs[i].todense()
        forms.extend(form_of(out) for out in outputs)
        return jax.tree.leaves(outputs)

    avals = [aval for form in forms_in for aval in form.parts]
    return SparseJaxpr(_jax.trace_closed(run, avals, _jax.without_names(jaxpr)), forms)


def _join_all(forms: Sequence[Form], parts: Sequence[Any]) -> list[Any]:
    rest = iter(parts)
    return [form.join([next(rest) for _ in form.parts]) for form in forms]


def _weaken_to_fixpoint(
    name: str, forms: Sequence[Form], run: Callable[[list[Form]], SparseJaxpr]
) -> tuple[list[Form], SparseJaxpr]:
    """Forms of the carry that hold at every step, and the body for them.

    Indices that are sorted or unique going in may not be so coming out. What a step loses, no step
    may rely on.
    """

    def transform(lost: list[bool]) -> tuple[Any, list[bool]]:
        before = [
            form._replace(
                indices_sorted=form.indices_sorted and not lost[2 * i],
                unique_indices=form.unique_indices and not lost[2 * i + 1],
            )
            for i, form in enumerate(forms)
        ]
        body = run(before)
        pairs = list(zip(before, body.forms[: len(forms)], strict=True))
        for i, (form, after) in enumerate(pairs):
            _check_same_parts(name, i, form, after)
        flags = [
            (a.indices_sorted and not b.indices_sorted, a.unique_indices and not b.unique_indices)
            for a, b in pairs
        ]
        return (before, body), [flag for pair in flags for flag in pair]

    return grow_to_fixpoint([False] * (2 * len(forms)), transform)[1]


def _check_same_parts(name: str, position: int, before: Form, after: Form) -> None:
    """Raise unless a part of the carry is stored as before when it comes out of the body."""
    same = before.kind is after.kind and before.shape == after.shape
    if same and all(map(_jax.types_match, before.parts, after.parts)):
        return
    raise TypeError(
        f"sparsify: {name} carry part {position} is {before} going in, but {after} coming out of "
        "the body. Use operations that keep what is stored, or carry it dense: make it so by "
        "`sparse.todense` before the loop."
    )


def _as_rows(x: Any, length: Any) -> Any:
    """An array of xs whose parts all have a row for each step."""
    if not _is_sparse(x):
        return x
    if x.n_batch == 0:
        raise NotImplementedError(
            f"sparsify: a scan over a sparse array of shape {x.shape} whose leading axis is no "
            "batch axis has no row for each step. Store it by rows, by "
            "`sparse.bcoo_update_layout(x, n_batch=1, on_inefficient=None)`, or scan over "
            "`sparse.todense(x)`."
        )
    parts = [jnp.broadcast_to(part, (length, *part.shape[1:])) for part in jax.tree.leaves(x)]
    return form_of(x).join(parts)


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "todense")


def _register(sparse: Any) -> None:
    for rules in (sparse.sparse_rules_bcoo, sparse.sparse_rules_bcsr):
        rules[scan_p] = partial(scan_sparse, sparse)
        rules[while_p] = partial(while_sparse, sparse)
        rules[checkpointed_loop_p] = partial(checkpointed_sparse, sparse)


when_imported("jax.experimental.sparse.transform", _register)
