"""A report made of the passes that a loop's types took to settle."""

import math
from itertools import pairwise
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray
from jax.tree_util import keystr, tree_unflatten

from checks.jaxprs import Scope, depends_on, forwards
from checks.naming import function_name, parameter_name
from checks.provenance import follow
from checks.report import CarryLeaf, CarryReport, Promotion
from checks.settling import Loop, Settled
from checks.tracing import key_paths


def report_of(
    name: str, loop: Loop, settled: Settled, reason: str, roles: tuple[str, ...]
) -> CarryReport:
    """The report on a loop; `roles` are those of the leaves before the user's own."""
    names = _leaf_names(loop, tree_unflatten(settled.tree, settled.history[-1]), roles)
    leaves = tuple(_leaf(settled, i, leaf) for i, leaf in enumerate(names))
    return CarryReport(
        name,
        function_name(loop.written.fun),
        leaves,
        settled.traces,
        loop.written.steps,
        "scan" if loop.condition is None else "while",
        reason,
    )


class _LeafName(NamedTuple):
    path: tuple[Any, ...]
    component: str
    role: str


def _leaf_names(loop: Loop, carry: Any, roles: tuple[str, ...]) -> list[_LeafName]:
    """What each leaf is called: the user's, and what a `fori_loop` carries beside."""
    fun = loop.written.fun
    beside = {"index": parameter_name(fun, 0) or "index", "bound": "upper"}
    parameter = parameter_name(fun, loop.written.position)
    paths = key_paths(carry)
    users = [path[len(loop.written.slot) :] for path in paths[len(roles) :]]
    return [
        *(_LeafName((), beside[role], role) for role in roles),
        *(_LeafName(path, (parameter + keystr(path)) or "carry", "carry") for path in users),
    ]


def _leaf(settled: Settled, position: int, leaf: _LeafName) -> CarryLeaf:
    last = settled.passes[-1]
    scope = Scope(last.jaxpr)
    type_in = settled.history[-1][position]
    reads = None
    if last.condition is not None:
        predicate = Scope(last.condition.jaxpr)
        (output,) = predicate.jaxpr.outvars
        wanted = predicate.jaxpr.invars[position]
        reads = depends_on(predicate, output, wanted)
    return CarryLeaf(
        leaf.path,
        leaf.component,
        type_in,
        last.out.avals[position],
        _promotion(settled, position),
        forwards(scope, scope.jaxpr.outvars[position], scope.jaxpr.invars[position]),
        reads,
        _nbytes(type_in),
        leaf.role,
    )


def _promotion(settled: Settled, position: int) -> Promotion | None:
    """What a leaf was promoted from, and the line that first made another type of it."""
    types = [avals[position] for avals in settled.history]
    for number, (before, after) in enumerate(pairwise(types)):
        if before != after:
            trail = follow(settled.passes[number].jaxpr, position, before)
            return Promotion(types[0], types[-1], trail.provenance)
    return None


def _nbytes(aval: AbstractValue) -> int | None:
    """The size of a value; None where a dimension is symbolic or the type has no size."""
    if not isinstance(aval, ShapedArray) or not all(isinstance(n, int) for n in aval.shape):
        return None
    size = getattr(aval.dtype, "itemsize", None)
    return None if size is None else math.prod(aval.shape) * size
