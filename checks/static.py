"""A loop's contract checked without running it: types in, a report or the loop's error out."""

from collections.abc import Callable
from typing import Any

from jax.core import AbstractValue, ShapedArray
from jax.tree_util import SequenceKey, tree_map

from checks.errors import CarryTypeError
from checks.naming import explain_fori
from checks.report import CarryReport
from checks.reporting import report_of
from checks.settling import Loop, settle
from checks.steps import first_index, fori_road, scan_steps
from checks.tracing import LoopBody, as_aval


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
    loop = Loop("scan body", f, f, written, (x,))
    return report_of("scan", loop, settle(loop, init), "a scan always does", ())


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
    loop = Loop("while_loop body", body, body, LoopBody(body, condition=cond), (), cond)
    return report_of("while_loop", loop, settle(loop, init), "a while loop always does", ())


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
      >>> report.road, report.steps
      ('while', None)
      >>> print(report.reason)
      `upper` is a type without a value, so the number of steps is known only while running
    """
    road = fori_road(lower, upper)
    is_scan = road.primitive == "scan"
    extra = (road.index,) if is_scan else (road.index, road.index)
    slot = len(extra)

    def loop_body(loop_carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, *bound, value = loop_carry
        return (i + 1, *bound, body(i, value))

    first = first_index(lower)
    slots = (SequenceKey(slot),)
    written = LoopBody(body, (road.index,), slot=slots, steps=road.steps, first_index=first)
    name = "scan body" if is_scan else "while_loop body"
    condition = None if is_scan else _is_below
    loop = Loop(name, lambda loop_carry: loop_carry, loop_body, written, (), condition, 1)
    try:
        settled = settle(loop, (*extra, init))
    except CarryTypeError as error:
        explain_fori(error, body, slot)
        raise
    return report_of("fori_loop", loop, settled, road.reason, ("index", "bound")[:slot])


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
