"""A loop's body traced against its carry: the contract, and the conversions of its init."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef, treedef_children

from checks import CarryTypeError
from checks.explanation import explain_mismatches
from checks.matching import avals_match
from checks.passes import BodyOut, CarryChanges, CarryPasses, is_weak
from checks.tracing import LoopBody
from loops import _jax
from loops.learning import (
    Outcome,
    Settling,
    is_learning,
    is_nested,
    only_promoted_depend,
    recall,
    settle_loop,
)
from loops.recall import Learned, Place
from loops.same_function import description


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
    written: Callable[[], LoopBody] | None = None,
    made_of: Any = (),
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
      written: gives the body as the user wrote it, for the explanation of an error.
      made_of: the functions and types that a pass depends on, besides the carry's types.

    Raises:
      checks.CarryTypeError: the carry that comes out differs in type or structure.
    """
    avals = [jax.typeof(x) for x in init]
    place = None
    if is_nested() and any(map(is_weak, avals[num_settled:])):
        place = Place(description(made_of), init.tree, tuple(avals))

    def settle(settling: Settling, finish: bool) -> SettledLoop[Traced]:
        def start(explain_errors: bool = True) -> InitPasses:
            return InitPasses(name, body_fun, init, avals, written if explain_errors else None)

        return _Fixpoint(start, trace, num_settled, place, settling).find(finish)

    try:
        return settle_loop(settle)
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


class _Fixpoint(Generic[Traced]):
    """Passes over one body, from the types of its init to types that it keeps."""

    def __init__(
        self,
        start: Callable[..., InitPasses],
        trace: Callable[[Any, list[Any], bool], tuple[Traced, BodyOut]],
        num_settled: int,
        place: Place | None,
        settling: Settling,
    ) -> None:
        self.start, self.trace, self.num_settled = start, trace, num_settled
        self.place, self.settling = place, settling
        self.known = None if place is None else recall(place)
        # An error that belies what was known is never seen.
        self.passes = start(explain_errors=self.known is None or not self.known.is_settled)

    def find(self, finish: bool) -> SettledLoop[Traced]:
        """Trace, convert the initial carry, and trace again until nothing has to be converted."""
        if self.known is not None:
            self.passes.convert_as_before(self.known.conversions)
        while True:
            may_promote = self.passes.may_promote(self.num_settled)
            with self.settling.tracing_a_body(may_be_thrown_away=may_promote and not finish):
                traced, out = self.trace(self.passes.init, self.passes.avals, finish)
            holds_unfinished = self.settling.holds_unfinished(out.jaxpr)
            changes = self._changes_after(out)
            if changes is None:
                self._start_afresh()
            elif changes and self._may_stay_unfinished(changes, out):
                return self._unfinished(traced, out, changes)
            elif changes:
                self.passes.convert(changes)
            elif holds_unfinished and not is_learning():
                finish = True  # nothing was promoted, so this would have been the last pass
            else:
                return self._settled(traced, out, holds_unfinished)

    def _changes_after(self, out: BodyOut) -> CarryChanges | None:
        """What the pass says must change; None where it belies what was known before."""
        known, self.known = self.known, None
        if known is None or not known.is_settled:
            return self.passes.changes_after(out)
        try:
            changes = self.passes.changes_after(out)
        except CarryTypeError:
            return None
        return None if changes else changes

    def _start_afresh(self) -> None:
        self.passes = self.start()
        self.settling.forget()

    def _may_stay_unfinished(self, changes: CarryChanges, out: BodyOut) -> bool:
        worth_it = is_learning() and self.settling.has_promoted_inside()
        return worth_it and _leave_others_as_they_are(changes, out)

    def _unfinished(
        self, traced: Traced, out: BodyOut, changes: CarryChanges
    ) -> SettledLoop[Traced]:
        avals = changes.promoted_avals()
        self._tell([*self.passes.conversions, changes], avals, out, is_guess=True)
        return SettledLoop(self.passes.init, traced, avals, is_unfinished=True)

    def _settled(self, traced: Traced, out: BodyOut, is_guess: bool) -> SettledLoop[Traced]:
        passes = self.passes
        if is_guess or self.settling.guesses_were_right():
            self._tell(passes.conversions, passes.avals, out, is_guess)
        return SettledLoop(passes.init, traced, passes.avals, is_unfinished=False)

    def _tell(
        self, conversions: list[CarryChanges], avals: list[Any], out: BodyOut, is_guess: bool
    ) -> None:
        """Tell the loop around this one what came of it; steps run one by one teach it nothing."""
        if not is_nested() or out.jaxpr is None:
            return
        learned = None
        if self.place is not None and conversions:
            learned = Learned(self.place, tuple(conversions), is_settled=not is_guess)
        others = out.jaxpr.out_avals[len(avals) :]
        self.settling.tell_outer_loop(learned, Outcome((*avals, *others), is_guess))


def _leave_others_as_they_are(changes: CarryChanges, out: BodyOut) -> bool:
    """Whether the changes are promotions that change no other type than the promoted ones.

    They must be to the types that came out: else the next pass has an error to raise, or more to
    promote.
    """
    if out.jaxpr is None or any(changes.missing_axes):
        return False
    if not all(map(avals_match, changes.promoted_avals(), out.avals)):
        return False
    marks = [p is not None for p in changes.promoted]
    return only_promoted_depend(out.jaxpr, out.num_consts, marks)


class InitPasses(CarryPasses):
    """The initial carry of a loop, pass by pass."""

    def __init__(
        self,
        name: str,
        body_fun: Callable[..., Any],
        init: Any,
        avals: list[Any],
        written: Callable[[], LoopBody] | None,
    ) -> None:
        explain = None if written is None else partial(explain_mismatches, written)
        super().__init__(name, body_fun, init.tree, avals, explain)
        self.init = init
        self.conversions: list[CarryChanges] = []

    def carry(self) -> Any:
        """The values that go in: a class of the user's may refuse types in their place."""
        return self.init.unflatten()

    def convert(self, changes: CarryChanges) -> None:
        """Convert the initial carry, for the next pass."""
        self.conversions.append(changes)
        rows = zip(self.init, changes.promoted, changes.missing_axes, strict=True)
        self.init = self.init.update(_convert(*row) for row in rows)
        self.avals = [jax.typeof(x) for x in self.init]

    def convert_as_before(self, conversions: Sequence[CarryChanges]) -> None:
        """Convert the initial carry as passes that need not be made again would have it."""
        for changes in conversions:
            self.history.append(self.avals)
            self.convert(changes)


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
