"""A loop's contract checked without running the loop: types in, a report or the loop's error out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray
from jax.tree_util import PyTreeDef, SequenceKey, keystr, tree_flatten, tree_map, tree_unflatten

from checks.condition import check_predicate
from checks.errors import CarryTypeError
from checks.explanation import explain_mismatches
from checks.jaxprs import Scope, depends_on, forwards
from checks.naming import explain_fori, function_name, parameter_name
from checks.nesting import nesting
from checks.passes import BodyOut, CarryPasses, with_varying
from checks.provenance import follow
from checks.report import CarryLeaf, CarryReport, Promotion
from checks.steps import fori_road, scan_steps
from checks.tracing import LoopBody, TracedFunction, as_aval, key_paths, trace


def check_scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None
) -> CarryReport:
    """Check that a scan's body keeps the types of its carry, without running or compiling it.

    Args:
      f: the body, `(carry, x) -> (carry, y)`; it may close over anything, tracers too.
      init: the initial carry, a pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`.
      xs: what is scanned over, arrays or `jax.ShapeDtypeStruct` of shape `(length, ...)`, or None.
      length: the number of steps, where `xs` has no leaf.

    Returns:
      A report on each leaf of the carry, which prints as a table.

    Raises:
      checks.CarryTypeError: what `loops.scan` would raise, with provenance and suggestions.
      checks.CarryStructureError: the same for a structure that changes.
      TypeError: the body returns no pair.
      ValueError: nothing says how many steps there are, or two things say otherwise.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> row = jax.ShapeDtypeStruct((100, 3), jnp.float32)
      >>> report = check_scan(lambda c, x: (c + x.sum(), None), 0, row)
      >>> report.traces, report.steps, report.leaf("c").promotion.after
      (2, 100, ShapedArray(float32[]))
    """
    steps = scan_steps(xs, length)
    x = tree_map(lambda leaf: _row(as_aval(leaf)), xs)
    written = LoopBody(f, (), (x,), True, steps=steps)
    loop = _Loop("scan body", f, f, written, (x,))
    return _report("scan", loop, _settle(loop, init), "a scan always does", ())


def check_while(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> CarryReport:
    """Check that the body of a while loop keeps the types of its carry, without running it.

    Args:
      cond: `carry -> bool`, a boolean scalar.
      body: `carry -> carry`.
      init: the initial carry, a pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`.

    Returns:
      A report on each leaf of the carry; it says which of them the condition reads.

    Raises:
      checks.CarryTypeError: what `loops.while_loop` would raise, with provenance and suggestions.
      checks.CarryStructureError: the same for a structure that changes.
      TypeError: `cond` returns no boolean scalar.

    Example:
      >>> import jax.numpy as jnp
      >>> report = check_while(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1] * 2), (0, jnp.ones(3)))
      >>> [leaf.is_read_by_condition for leaf in report.leaves], report.nbytes
      ([True, False], 16)
    """
    loop = _Loop("while_loop body", body, body, LoopBody(body, condition=cond), (), cond)
    return _report("while_loop", loop, _settle(loop, init), "a while loop always does", ())


def check_fori(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> CarryReport:
    """Check that the body of a `fori_loop` keeps the types of its carry, without running it.

    Args:
      lower: the first index, an integer, or a `jax.ShapeDtypeStruct` for one that is traced.
      upper: one more than the last index, likewise.
      body: `(index, carry) -> carry`.
      init: the initial carry, a pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`.

    Returns:
      A report on each leaf of the carry, the index first; it says whether the loop becomes a scan
      or a while, and why.

    Raises:
      checks.CarryTypeError: what `loops.fori_loop` would raise, with provenance and suggestions.
      checks.CarryStructureError: the same for a structure that changes.
      TypeError: a bound is no integer scalar.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> n = jax.ShapeDtypeStruct((), jnp.int32)
      >>> report = check_fori(0, n, lambda i, x: x * 2, jnp.ones(3))
      >>> report.road, report.reason
      ('while', '`upper` is a type without a value, so the number of steps is known only while running')
    """
    road = fori_road(lower, upper)
    is_scan = road.primitive == "scan"
    extra = (road.index,) if is_scan else (road.index, road.index)
    slot = len(extra)

    def loop_body(loop_carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, *bound, value = loop_carry
        return (i + 1, *bound, body(i, value))

    first = lower if isinstance(lower, int) else None
    slots = (SequenceKey(slot),)
    written = LoopBody(body, (road.index,), slot=slots, steps=road.steps, first_index=first)
    name = "scan body" if is_scan else "while_loop body"
    condition = None if is_scan else _is_below
    loop = _Loop(name, lambda loop_carry: loop_carry, loop_body, written, (), condition, 1)
    try:
        settled = _settle(loop, (*extra, init))
    except CarryTypeError as error:
        explain_fori(error, body, slot)
        raise
    return _report("fori_loop", loop, settled, road.reason, ("index", "bound")[:slot])


def _is_below(loop_carry: tuple[Any, ...]) -> Any:
    i, upper, _ = loop_carry
    return i < upper


def _row(aval: AbstractValue) -> AbstractValue:
    """The type of one row of what is scanned over."""
    if not isinstance(aval, ShapedArray):
        return aval
    sharding = aval.sharding
    spec = sharding.spec.update(partitions=sharding.spec.partitions[1:]) if sharding.spec else None
    changed = {} if spec is None else {"sharding": sharding.update(spec=spec)}
    return aval.update(shape=aval.shape[1:], **changed)


@dataclass(frozen=True)
class _Loop:
    """A loop to be checked.

    `named` is the function that messages take the carry's name from, `fun` takes the loop's whole
    carry and then `after`, and `written` is the body as the user wrote it.
    """

    name: str
    named: Callable[..., Any]
    fun: Callable[..., Any]
    written: LoopBody
    after: tuple[Any, ...] = ()
    condition: Callable[[Any], Any] | None = None
    num_settled: int = 0


class _Pass(NamedTuple):
    """One trace of a loop: its condition, if it has one, and its body."""

    condition: TracedFunction | None
    jaxpr: Any
    out: BodyOut


class _Settled(NamedTuple):
    """The passes that a loop took until its carry's types agreed; each with the types that went in."""

    tree: PyTreeDef
    history: list[list[AbstractValue]]
    passes: list[_Pass]
    traces: int


def _settle(loop: _Loop, init: Any) -> _Settled:
    leaves, tree = tree_flatten(init)
    avals = [as_aval(leaf) for leaf in leaves]
    return nesting().finishing_all_after_an_error(lambda _: _settle_types(loop, tree, avals))


def _settle_types(loop: _Loop, tree: PyTreeDef, avals: list[AbstractValue]) -> _Settled:
    """Trace, promote, and trace again until nothing has to be promoted."""
    explain = partial(explain_mismatches, lambda: loop.written)
    passes = CarryPasses(loop.name, loop.named, tree, avals, explain)
    done: list[_Pass] = []
    while True:
        with nesting().tracing_a_body(passes.may_promote(loop.num_settled)):
            done.append(_trace(loop, passes.carry()))
        changes = passes.changes_after(done[-1].out)
        if not changes:
            again = nesting().is_unfinished(done[-1].jaxpr)
            return _Settled(tree, passes.history, done, len(done) + again)
        passes.convert(changes)


def _trace(loop: _Loop, carry: Any) -> _Pass:
    condition = None
    if loop.condition is not None:
        with nesting().tracing_a_body(False):
            condition = trace(loop.condition, carry)
        check_predicate("cond_fun", condition.out_tree, condition.out_avals)
    traced = trace(loop.fun, carry, *loop.after)
    tree, avals = traced.out_tree, traced.out_avals
    if loop.written.returns_pair:
        node, children = tree.node_data(), tree.children()
        if node is None or node[0] not in (tuple, list) or len(children) != 2:
            output = tree_unflatten(tree, avals)
            raise TypeError(f"scan body output must be a pair, got {output}.")
        tree = children[0]
        avals = avals[: tree.num_leaves]
    if condition is not None:
        avals = _varying_with(condition.out_avals[0], traced.jaxpr, avals)
    return _Pass(condition, traced.jaxpr, BodyOut(tree, avals, traced.jaxpr))


def _varying_with(
    predicate: AbstractValue, jaxpr: Any, avals: list[AbstractValue]
) -> list[AbstractValue]:
    """What a body changes varies over the mesh axes that the loop's predicate varies over."""
    axes = getattr(predicate, "mat").varying  # noqa: B009  a boolean scalar has it
    if not axes:
        return avals
    scope = Scope(jaxpr)
    outputs = zip(avals, scope.jaxpr.outvars, scope.jaxpr.invars)
    return [
        aval if forwards(scope, output, source) else with_varying(aval, axes)
        for aval, output, source in outputs
    ]


def _report(
    name: str, loop: _Loop, settled: _Settled, reason: str, roles: tuple[str, ...]
) -> CarryReport:
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


def _leaf_names(loop: _Loop, carry: Any, roles: tuple[str, ...]) -> list[_LeafName]:
    """What each leaf of a loop's carry is called: the user's, and what a fori_loop carries beside."""
    fun = loop.written.fun
    beside = {"index": parameter_name(fun, 0) or "index", "bound": "upper"}
    parameter = parameter_name(fun, loop.written.position)
    paths = key_paths(carry)
    users = [path[len(loop.written.slot) :] for path in paths[len(roles) :]]
    return [
        *(_LeafName((), beside[role], role) for role in roles),
        *(_LeafName(path, (parameter + keystr(path)) or "carry", "carry") for path in users),
    ]


def _leaf(settled: _Settled, position: int, leaf: _LeafName) -> CarryLeaf:
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


def _promotion(settled: _Settled, position: int) -> Promotion | None:
    """What a leaf was promoted from, and the line that first made another type of it."""
    types = [avals[position] for avals in settled.history]
    for number, (before, after) in enumerate(zip(types, types[1:])):
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
