"""What an error of the carry contract says beyond its text: where a type changed, and what to do.

Nothing here runs unless a loop is refused. The body is then traced again, at most for a few seconds
in all, to try each piece of advice before it is given.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.core import AbstractValue, ShapedArray
from jax.tree_util import keystr, tree_leaves, tree_unflatten

from checks.advice import Suggestion
from checks.errors import CarryMismatch, CarryTypeError
from checks.jaxprs import Scope, depends_on
from checks.leaf_problem import LeafProblem
from checks.naming import parameter_name
from checks.passes import BodyOut
from checks.provenance import Provenance, Upstream, follow
from checks.rewriting import one_line
from checks.source import Place, shown
from checks.structure_suggestions import StructureProblem, structure_candidates
from checks.suggestions import candidates
from checks.swap_suggestions import carry_and_y, carry_in_a_tuple, two_components
from checks.tracing import LoopBody, key_paths, trace
from checks.trial import Budget, Change, OutOfTime, Trial, subtree_at
from checks.written import WrittenBody

KeyPath = tuple[Any, ...]


def explain_mismatches(
    get_body: Callable[[], LoopBody],
    error: CarryTypeError,
    history: Sequence[Sequence[AbstractValue]],
    tree: Any,
    out: BodyOut,
) -> None:
    """Add provenance and suggestions to an error's mismatches, and notes that say them.

    Args:
      get_body: gives the body as the user wrote it.
      error: the error.
      history: the types of the loop's carry in each pass.
      tree: the structure of the loop's carry.
      out: what came out of the last pass.
    """
    try:
        explanation = _Explanation(get_body(), error.mismatches, history, tree, out)
        error.mismatches = tuple(map(explanation.of_mismatch, error.mismatches))
    except Exception:  # noqa: BLE001  whatever goes wrong here must not hide the user's error
        return
    for mismatch in error.mismatches:
        note = explanation.note(mismatch)
        if note:
            error.add_note(note)


class _Explanation:
    """All that is known about a refused body."""

    def __init__(
        self,
        body: LoopBody,
        mismatches: Sequence[CarryMismatch],
        history: Sequence[Sequence[AbstractValue]],
        tree: Any,
        out: BodyOut,
    ) -> None:
        self.body = body
        first, last = tree_unflatten(tree, history[0]), tree_unflatten(tree, history[-1])
        self.carry_in = subtree_at(last, body.slot)
        self.jaxpr, self.carry_out = out.jaxpr, subtree_at(out.as_pytree(), body.slot)
        # The leaves of the loop's carry that stand before the user's.
        self.offset = 0 if out.jaxpr is None else _leaves_before(last, body.slot)
        before = out.num_consts + self.offset
        if out.jaxpr is None:  # the body was run step by step
            self.jaxpr = body.trace(body.fun, self.carry_in).jaxpr
            before = len(tree_leaves(body.before))
        self.carry = slice(before, before + len(key_paths(self.carry_in)))  # among the inputs
        self.written = WrittenBody(body)
        self.parameter = parameter_name(body.fun, body.position)
        self.trial = Trial(body, subtree_at(first, body.slot), self.written.names, Budget())
        self.broken = {mismatch.path[len(body.slot) :] for mismatch in mismatches}
        self.mended: dict[KeyPath, Suggestion] = {}
        self.faults: list[Suggestion] = []  # advice whose place is the line to name

    def of_mismatch(self, mismatch: CarryMismatch) -> CarryMismatch:
        """A mismatch with its provenance and a suggestion."""
        path = mismatch.path[len(self.body.slot) :]
        if mismatch.kind == "structure":
            found = self._of_structure(path)
        else:
            found = self._of_leaf(mismatch, path)
        suggestion = self._first_that_works(mismatch, path, found.changes)
        provenance = found.provenance
        if suggestion in self.faults and suggestion is not None and suggestion.place is not None:
            provenance = Provenance(suggestion.place)
        elif provenance is not None and suggestion is not None:
            provenance = _blaming_what_helps(provenance, found.upstream, suggestion)
        return dataclasses.replace(mismatch, provenance=provenance, suggestion=suggestion)

    # ------------------------------------------------------------ a leaf of another type

    def _of_leaf(self, mismatch: CarryMismatch, path: KeyPath) -> "_Found":
        before, after = mismatch.input_type, mismatch.output_type
        position = key_paths(self.carry_in).index(path)
        output = self.offset + position
        trail = follow(self.jaxpr, output, before, self.carry, position)  # pyrefly: ignore[bad-argument-type]
        returned = self.written.returned(path)
        sites = tuple(dict.fromkeys([*trail.sites, *returned.exact]))
        provenance = trail.provenance
        if provenance is None and returned.place is not None:
            provenance = Provenance(shown(returned.place))
        if not (isinstance(before, ShapedArray) and isinstance(after, ShapedArray)):
            return _Found(provenance, iter(()))
        problem = LeafProblem(
            path,
            self.carry_in,
            self.parameter + keystr(path),
            before,
            after,
            provenance,
            self.jaxpr,
            sites,
            trail.upstream,
            trail.from_carry,
            trail.from_itself,
            self.written,
            has_siblings=len(self.broken) > 1,
            ends_loop=self._ends_loop(path),
        )
        changes = chain(self._swaps(path), candidates(problem))
        return _Found(provenance, changes, trail.upstream)

    def _ends_loop(self, path: KeyPath) -> bool:
        """Whether the condition of a while loop reads a leaf, as it is and not made a float."""
        if self.body.condition is None:
            return False
        scope = Scope(trace(self.body.condition, self.carry_in).jaxpr)
        (output,) = scope.jaxpr.outvars
        leaf = scope.jaxpr.invars[key_paths(self.carry_in).index(path)]
        is_float = any(
            jnp.issubdtype(eqn.params["new_dtype"], jnp.inexact)
            and depends_on(scope, eqn.invars[0], leaf)
            for eqn in scope.jaxpr.eqns
            if eqn.primitive.name == "convert_element_type"
        )
        return depends_on(scope, output, leaf) and not is_float

    # ------------------------------------------------------------ another structure

    def _of_structure(self, path: KeyPath) -> "_Found":
        before, after = subtree_at(self.carry_in, path), subtree_at(self.carry_out, path)
        returned = self.written.returned(path)
        place = self._place_of_key(before, after) or self._place_of_class(after)
        if type(before) is type(after) is list and len(before) < len(after):
            place = place or self.written.appends()
        place = place or returned.place
        provenance = None if place is None else Provenance(shown(place))
        problem = StructureProblem(
            path,
            self.carry_in,
            before,
            after,
            returned.exact,
            self.parameter + keystr(path),
            self.written,
        )
        changes = chain(self._swaps(path), structure_candidates(problem))
        return _Found(provenance, changes)

    def _swaps(self, path: KeyPath) -> Iterator[Change]:
        """Two things that the body returns in each other's place."""
        if not path and self.body.returns_pair:
            yield from carry_and_y(self.written, self.body, self.carry_in)
        yield from carry_in_a_tuple(self.written, self.carry_in, self.carry_out)
        broken = sorted(self.broken, key=keystr)
        yield from two_components(self.written, broken, self.carry_in, self.carry_out)

    def _place_of_key(self, before: Any, after: Any) -> Place | None:
        """Where a key is added to a dictionary, or taken out of it."""
        if not (isinstance(before, dict) and isinstance(after, dict)):
            return None
        added = [self.written.writes_key(key) for key in after if key not in before]
        removed = [self.written.removes_key(key) for key in before if key not in after]
        found = [*added, *removed, self.written.writes_any_key()]
        return next((place for place in found if place is not None), None)

    def _place_of_class(self, after: Any) -> Place | None:
        return self.written.calls(type(after).__name__)

    # ------------------------------------------------------------ advice

    def _first_that_works(
        self, mismatch: CarryMismatch, path: KeyPath, changes: Iterator[Change]
    ) -> Suggestion | None:
        """The first change that mends the component and breaks nothing else."""
        if path in self.mended:  # by an earlier piece of advice
            return self.mended[path]
        try:
            for change in changes:
                is_empty = not (change.edits or change.init)
                trial = None if is_empty else self.trial.with_change(change)
                after = None if trial is None else trial.mismatches()
                if trial is None or after is None:
                    continue
                left = {found.path for found in after}
                is_mended = not any(other[: len(path)] == path for other in left)
                # Where the structure differs, what else is wrong has not been told yet.
                if is_mended and (left <= self.broken or mismatch.kind == "structure"):
                    suggestion = self._suggestion(mismatch, change, left - self.broken)
                    self.faults += [suggestion] * change.is_the_fault
                    self.mended |= dict.fromkeys(self.broken - left, suggestion)
                    self.trial, self.broken = trial, self.broken & left
                    return suggestion
        except OutOfTime:
            return None
        except Exception:  # noqa: BLE001  a guess that cannot be made must not hide the line
            return None
        return None

    def _suggestion(
        self, mismatch: CarryMismatch, change: Change, untold: set[KeyPath]
    ) -> Suggestion:
        component = self.name_of(mismatch)
        others = ", ".join(sorted(f"{self.parameter}{keystr(path)}" for path in untold))
        then = f"; then the type of {others} still differs" if untold else ""
        start = "".join(f"start {component} from `{init.code}`" for init in change.init)
        if not change.edits:
            return Suggestion(start + then, change.init[0].code)
        (edit,) = change.edits
        place = Place(edit.file, edit.span.line, edit.code.co_qualname, edit.span)
        old, new = one_line(edit.old), one_line(edit.new)
        text = f"at {place} write `{new}` for `{old}`"
        init_code = change.init[0].code if change.init else ""
        text += f", and {start}" if start else ""
        return Suggestion(text + then, edit.new, place, edit.old, init_code)

    def name_of(self, mismatch: CarryMismatch) -> str:
        """The component as the author of the user's function would write it."""
        path = keystr(mismatch.path[len(self.body.slot) :])
        return f"{self.parameter}{path}" if self.parameter or path else "the carry"

    def note(self, mismatch: CarryMismatch) -> str:
        """What the traceback says about a mismatch; nothing where nothing is known."""
        lines = []
        provenance = mismatch.provenance
        if provenance is not None:
            lines.append(f"{self.name_of(mismatch)} changes at {provenance}")
            if provenance.origin is not None:
                lines.append(f"  because of {_described(provenance.origin)}")
            if provenance.reaches is not None:
                lines.append(f"  and is taken over at {_described(provenance.reaches)}")
            if provenance.returns is not None:
                lines.append(f"  and is returned from {_described(provenance.returns)}")
        if mismatch.suggestion is not None:
            lines.append(f"  to mend it, {mismatch.suggestion}")
        return "\n".join(lines)


class _Found(NamedTuple):
    """What is known about a mismatch, and the changes to try."""

    provenance: Provenance | None
    changes: Iterator[Change]
    upstream: tuple[Upstream, ...] = ()


def _blaming_what_helps(
    provenance: Provenance, upstream: tuple[Upstream, ...], suggestion: Suggestion
) -> Provenance:
    """The provenance, moved to the reduction whose lost axis turned out to be the cause."""
    for reduction in upstream:
        place = shown(reduction.place)
        if place == suggestion.place and place != provenance.place:
            return Provenance(
                place,
                reduction.equation,
                reduction.primitive,
                reaches=provenance.place,
                returns=provenance.returns,
            )
    return provenance


def _described(place: Place) -> str:
    return f"{place}: `{one_line(place.text)}`" if place.text else str(place)


def _leaves_before(tree: Any, slot: KeyPath) -> int:
    return sum(path[: len(slot)] != slot for path in key_paths(tree)) if slot else 0
