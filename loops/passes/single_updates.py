"""Writes at a single index made easy to differentiate.

Indices of a `scatter` may coincide, and which update then wins must be found out and kept: its
derivative compares and selects the whole buffer, at each step of a loop. One index coincides with
no other, so `scatter` is told that its indices are unique; then its derivative is one `scatter`.

    Before: scatter b i u                          After: scatter[unique_indices=True] b i u

The derivative of an update that is no `scatter` or `scatter-add` is as large as the buffer, unless
what it combines is read, combined and written.

    Before: scatter-mul b i u                      After: old = gather b i
                                                          new = mul old u
                                                          scatter[unique_indices=True] b i new
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax

from loops import _jax
from loops.passes.inline_calls import CALLS

COMBINED_BY = {
    lax.scatter_mul_p: lax.mul,
    lax.scatter_min_p: lax.min,
    lax.scatter_max_p: lax.max,
}


@_jax.cached_by_jaxpr
def simplify_single_updates(jaxpr: Any) -> Any:
    """Prepare updates at a single index for differentiation; the same object if there are none.

    Before: [*in] -> [*out]
    After:  [*in] -> [*out], the same values
    """
    jaxpr = _jax.map_equations(_inside_equation, jaxpr)
    if not any(_is_combined_at_one_index(eqn) for eqn in jaxpr.jaxpr.eqns):
        return jaxpr
    new_variable = _jax.variable_maker()
    eqns: list[Any] = []
    for eqn in jaxpr.jaxpr.eqns:
        is_combined = _is_combined_at_one_index(eqn)
        eqns.extend(_read_combine_write(eqn, new_variable) if is_combined else [eqn])
    return _jax.with_equations(jaxpr, eqns)


def _inside_equation(eqn: Any) -> Any:
    """An equation with a single index said to be unique, and with its jaxprs prepared."""
    if eqn.primitive is lax.scatter_p and not eqn.params["unique_indices"]:
        return eqn.replace(params=_unique(eqn)) if _has_one_index(eqn) else eqn
    if eqn.primitive.name not in CALLS:  # a loop is prepared when it is differentiated
        return eqn
    params = _jax.map_parameters(
        lambda value: simplify_single_updates(value) if _jax.is_closed_jaxpr(value) else value,
        eqn.params,
    )
    return _jax.with_parameters(eqn, params)


def _unique(eqn: Any) -> dict[str, Any]:
    return dict(eqn.params, unique_indices=True)


def _has_one_index(scatter: Any) -> bool:
    """Whether a scatter has one index for each lane that it is batched over."""
    *shape, _ = scatter.invars[1].aval.shape
    lanes = scatter.params["dimension_numbers"].scatter_indices_batching_dims
    sizes = [size for dim, size in enumerate(shape) if dim not in lanes]
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) == 1


def _is_combined_at_one_index(eqn: Any) -> bool:
    return eqn.primitive in COMBINED_BY and _has_one_index(eqn)


def _read_combine_write(eqn: Any, new_variable: Any) -> list[Any]:
    """What an update that combines old and new rows is short for.

    Where the index is out of bounds nothing is written, and what is read does not matter, except
    that it must be finite: its derivative is multiplied by it, and by zero.
    """
    buffer, indices, update = eqn.invars
    old, new = new_variable(update.aval), new_variable(update.aval)
    (combine,) = jax.make_jaxpr(COMBINED_BY[eqn.primitive])(old.aval, update.aval).eqns
    write = dict(_unique(eqn), update_jaxpr=None, update_consts=())
    return [
        eqn.replace(
            primitive=lax.gather_p, invars=[buffer, indices], outvars=[old], params=_read_of(eqn)
        ),
        eqn.replace(
            primitive=combine.primitive,
            invars=[old, update],
            outvars=[new],
            params=combine.params,
        ),
        eqn.replace(primitive=lax.scatter_p, invars=[buffer, indices, new], params=write),
    ]


def _read_of(scatter: Any) -> dict[str, Any]:
    """The parameters of the gather of the rows that a scatter writes."""
    dims = scatter.params["dimension_numbers"]
    buffer, _, update = (v.aval for v in scatter.invars)
    window = iter(dims.update_window_dims)
    one_wide = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    sizes = [1 if dim in one_wide else update.shape[next(window)] for dim in range(buffer.ndim)]
    return {
        "dimension_numbers": lax.GatherDimensionNumbers(
            offset_dims=dims.update_window_dims,
            collapsed_slice_dims=dims.inserted_window_dims,
            start_index_map=dims.scatter_dims_to_operand_dims,
            operand_batching_dims=dims.operand_batching_dims,
            start_indices_batching_dims=dims.scatter_indices_batching_dims,
        ),
        "slice_sizes": tuple(sizes),
        "unique_indices": True,
        "indices_are_sorted": True,
        "mode": scatter.params["mode"],
        "fill_value": 0,
    }
