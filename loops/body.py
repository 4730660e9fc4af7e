"""A loop's body traced against its carry: the contract, and the conversions of its init."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef, treedef_children

from checks import (
    CarryTypeError,
    _check_carry_type,
    explain_passes,
    missing_varying_axes,
    promote_weak_avals,
)
from loops import _jax
from loops.learning import (
    finishing_all_after_an_error,
    is_learning,
    is_unfinished,
    only_promoted_depend,
    tracing_a_body,
)


class BodyOut(NamedTuple):
    """What a body returned for the carry, and how: by `jaxpr`, unless it was run on real values.

    jaxpr: [*consts, *carry, *x] -> [*carry, *y]
    """

    tree: PyTreeDef
    avals: list[Any]
    jaxpr: Any = None
    num_consts: int = 0


class TracedBody(NamedTuple):
    """A scan's body traced to `jaxpr`: [*consts, *carry, *x] -> [*carry, *y]."""

    jaxpr: Any
    consts: list[Any]
    carry_tree: PyTreeDef
    ys_tree: PyTreeDef


Traced = TypeVar("Traced")


class SettledLoop(NamedTuple, Generic[Traced]):
    """A loop whose carry keeps its types: the initial carry, promoted, and the traced body.

    Of an unfinished loop (see `loops.learning`) only `carry_avals` counts: the types that the carry
    would settle at.
    """

    init: Any
    traced: Traced
    carry_avals: list[Any]
    is_unfinished: bool


def trace_to_fixpoint(
    name: str,
    body_fun: Callable[..., Any],
    init: Any,
    trace: Callable[[Any, list[Any], bool], tuple[Traced, BodyOut]],
    num_settled: int = 0,
) -> SettledLoop[Traced]:
    """Trace a body until the carry that comes out has the types that went in.

    A weakly typed init (a Python scalar) may have another type than the body's output without being
    wrong: it is converted to what promotion makes of the two, and the body is traced again. So is
    an init that inside `jax.shard_map` varies over fewer mesh axes than the output, where that is
    all that differs. Each pass moves a leaf up in the order of types or adds an axis to one, so
    there are few of them; an init that needs neither takes one pass.

    Args:
      name: what the contract's message calls the body.
      body_fun: the user's function, for the names in that message.
      init: flat tree of the initial carry.
      trace: runs the body on a flat tree of carry or on the types of its leaves, and is told
        whether the loops inside must be finished; returns what it made of it and what came out.
      num_settled: how many leading leaves are known to keep their types (a counter).

    Raises:
      checks.CarryTypeError: the carry that comes out differs in type or structure.
    """
    try:
        return finishing_all_after_an_error(
            lambda finish: _settle(CarryPasses(name, body_fun, init), trace, num_settled, finish)
        )
    except ValueError as error:
        _explain_refs(error, init)
        raise


def _explain_refs(error: ValueError, init: Any) -> None:
    """Add what to do to JAX's refusal of a body that returns a Ref which it was given as carry."""
    if any(_jax.is_ref(jax.typeof(x)) for x in init):
        error.add_note(
            "A loop cannot carry a Ref. Let the body close over it, or scan over it as one of the "
            "xs: it may be read and written there."
        )


def _settle(
    passes: CarryPasses,
    trace: Callable[[Any, list[Any], bool], tuple[Traced, BodyOut]],
    num_settled: int,
    finish: bool,
) -> SettledLoop[Traced]:
    """Trace, convert the initial carry, and trace again until nothing has to be converted."""
    while True:
        with tracing_a_body(may_be_thrown_away=passes.may_promote(num_settled)):
            traced, out = trace(passes.init, passes.avals, finish)
        changes = passes.changes_after(out)
        if not changes:
            if out.jaxpr is not None and is_unfinished(out.jaxpr) and not is_learning():
                with tracing_a_body(may_be_thrown_away=False):
                    traced, _ = trace(passes.init, passes.avals, True)
            return SettledLoop(passes.init, traced, passes.avals, is_unfinished=False)
        if changes.leave_others_as_they_are(out) and is_learning():
            return SettledLoop(passes.init, traced, changes.promoted_avals(), is_unfinished=True)
        passes.convert(changes)


class CarryChanges(NamedTuple):
    """What one pass showed must change of each leaf of the initial carry."""

    avals: list[Any]
    promoted: list[Any]
    missing_axes: list[tuple[Any, ...]]

    def __bool__(self) -> bool:
        return any(p is not None for p in self.promoted) or any(self.missing_axes)

    def promoted_avals(self) -> list[Any]:
        """The types after promotion."""
        return [a if p is None else p for p, a in zip(self.promoted, self.avals, strict=True)]

    def leave_others_as_they_are(self, out: BodyOut) -> bool:
        """Whether the changes are promotions that change no other type than the promoted ones."""
        if out.jaxpr is None or any(self.missing_axes):
            return False
        marks = [p is not None for p in self.promoted]
        return only_promoted_depend(out.jaxpr, out.num_consts, marks)


class CarryPasses:
    """The initial carry of a loop, pass by pass."""

    def __init__(self, name: str, body_fun: Callable[..., Any], init: Any) -> None:
        self.name, self.body_fun, self.init = name, body_fun, init
        self.avals = [jax.typeof(x) for x in init]
        self.began_weak = [is_weak(aval) for aval in self.avals]
        self.history: list[list[Any]] = []

    def may_promote(self, num_settled: int) -> bool:
        """Whether a leaf may have to be promoted; the first ones are known to keep their types."""
        return any(is_weak(aval) for aval in self.avals[num_settled:])

    def changes_after(self, out: BodyOut) -> CarryChanges:
        """Compare what came out of a pass with what went in.

        Raises:
          checks.CarryTypeError: they differ, and no conversion of the init helps.
        """
        avals = self.avals
        self.history.append(avals)
        if out.tree == self.init.tree and out.avals == avals:  # the usual case: nothing to convert
            return CarryChanges(avals, [], [])
        try:
            if out.tree != self.init.tree:
                self._check(out)
            promoted = promote_weak_avals(avals, out.avals, self.began_weak)
            changes = CarryChanges(avals, promoted, [])
            missing = missing_varying_axes(changes.promoted_avals(), out.avals)
            changes = changes._replace(missing_axes=missing)
            if not changes:
                self._check(out)
        except CarryTypeError as error:
            explain_passes(error, self.history)
            raise
        return changes

    def _check(self, out: BodyOut) -> None:
        _check_carry_type(self.name, self.body_fun, self.init.unflatten(), out.tree, out.avals)

    def convert(self, changes: CarryChanges) -> None:
        """Convert the initial carry, for the next pass."""
        rows = zip(self.init, changes.promoted, changes.missing_axes, strict=True)
        self.init = self.init.update(_convert(*row) for row in rows)
        self.avals = [jax.typeof(x) for x in self.init]


def is_weak(aval: Any) -> bool:
    """Whether a type is that of a Python scalar, which promotes to others."""
    return getattr(aval, "weak_type", False)


def _convert(x: Any, promoted: Any, axes: tuple[Any, ...]) -> Any:
    """A leaf of the carry converted to a promoted type, unless that is None, and cast over axes."""
    if promoted is not None:
        x = lax.convert_element_type(x, promoted.dtype)
    return lax.pcast(jnp.asarray(x), axes, to="varying") if axes else x


def trace_scan_body(
    f: Callable[..., Any], carry_avals: Any, x_avals: Any, debug: Any
) -> tuple[TracedBody, BodyOut]:
    """Trace a scan's body for flat trees of avals and take its output apart."""
    traced = _jax.trace_function(f, (carry_avals, x_avals), debug)
    node, children = traced.out_tree.node_data(), treedef_children(traced.out_tree)
    if node is None or node[0] not in (tuple, list) or len(children) != 2:
        output = jax.tree_util.tree_unflatten(traced.out_tree, traced.out_avals)
        raise TypeError(f"scan body output must be a pair, got {output}.")
    carry_tree, ys_tree = children
    carry_out = traced.out_avals[: carry_tree.num_leaves]
    body = TracedBody(traced.jaxpr, traced.consts, carry_tree, ys_tree)
    return body, BodyOut(carry_tree, carry_out, traced.jaxpr, len(traced.consts))


def refuse_forbidden_effects(loop: str, effects: Any) -> None:
    """Raise if a body has effects that a loop cannot run in the right number and order."""
    forbidden = _jax.forbidden_effects(effects)
    if forbidden:
        raise NotImplementedError(
            f"Effects not supported in `{loop}`: {forbidden}. Move what has them out of the body."
        )
