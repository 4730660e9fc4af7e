"""A while loop that may run for another number of steps on each device of a mesh.

Inside `jax.shard_map` a predicate may vary over mesh axes. Then the devices leave the loop at steps
of their own, and what the loop changes differs between them even where one step treats it alike.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from loops import _jax
from loops.primitives.layout import keep, merge, partition


def vary_with_predicate(body: _jax.TracedFunction, predicate: Any) -> _jax.TracedFunction:
    """Make what a body changes vary over the mesh axes over which the loop's predicate varies.

    Before: [*consts, *carry] -> [*carry]
    After:  the same, the carry cast where it lacks one of the axes
    """
    jaxpr = vary_with_steps(body.jaxpr, len(body.consts), len(body.out_avals), varying(predicate))
    return body._replace(jaxpr=jaxpr, out_avals=list(jaxpr.out_avals))


def vary_with_steps(
    body: Any, num_consts: int, num_carry: int, axes: frozenset[Any] | set[Any]
) -> Any:
    """Make what a body changes vary over the mesh axes over which the number of steps varies.

    A part of the carry that the body hands on unchanged is the same after any number of steps.

    Before: [*consts, *carry, *x] -> [*carry, *y]
    After:  the same, carry and ys cast where they lack one of the axes
    """
    if not axes:
        return body
    sources = _jax.forwarded_inputs(body)
    unchanged = [i < num_carry and source == num_consts + i for i, source in enumerate(sources)]
    missing = [
        () if fixed else _missing_axes(aval, axes)
        for fixed, aval in zip(unchanged, body.out_avals, strict=True)
    ]
    if not any(missing):
        return body

    def cast_outputs(*args: Any) -> list[Any]:
        new = _jax.call_jaxpr(body, *args)
        carry = keep(unchanged[:num_carry], args[num_consts : num_consts + num_carry])
        after = merge(unchanged, partition(unchanged, new)[0], carry)
        return [lax.pcast(x, m, to="varying") if m else x for x, m in zip(after, missing)]

    return _jax.trace_closed(cast_outputs, body.in_avals, _jax.without_names(body))


def varying(aval: Any) -> frozenset[Any]:
    """The mesh axes over which an array's type varies; none for another type."""
    return aval.mat.varying if isinstance(aval, jax.core.ShapedArray) else frozenset()


def vary(x: Any, axes: frozenset[Any] | set[Any]) -> Any:
    """An array cast to vary over more mesh axes."""
    missing = _missing_axes(jax.typeof(x), axes)
    return lax.pcast(x, missing, to="varying") if missing else x


def _missing_axes(aval: Any, axes: frozenset[Any] | set[Any]) -> tuple[Any, ...]:
    """The axes, in order, over which an array's type does not vary; none for another type."""
    if not isinstance(aval, jax.core.ShapedArray):
        return ()
    return tuple(sorted(axes - aval.mat.varying, key=str))
