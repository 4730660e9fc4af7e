"""A carry's types from pass to pass, until what comes out of the body is what went in.

The rule is one for the loops, which convert their initial values by it, and for the static checks,
which have types only.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray
from jax.tree_util import PyTreeDef, tree_unflatten

from checks.carry import _check_carry_type
from checks.errors import CarryTypeError
from checks.promotion import explain_passes, promote_weak_avals
from checks.varying import missing_varying_axes


class BodyOut(NamedTuple):
    """What a body returned for the carry, and how: by `jaxpr`, unless it was run on real values.

    jaxpr: [*consts, *carry, *x] -> [*carry, *y]
    """

    tree: PyTreeDef
    avals: list[Any]
    jaxpr: Any = None
    num_consts: int = 0

    def as_pytree(self) -> Any:
        """The carry of types that came out."""
        return tree_unflatten(self.tree, self.avals)


class CarryChanges(NamedTuple):
    """What one pass showed must change of each leaf of the initial carry."""

    avals: list[Any]
    promoted: list[ShapedArray | None]
    missing_axes: list[tuple[Hashable, ...]]

    def __bool__(self) -> bool:
        return any(p is not None for p in self.promoted) or any(self.missing_axes)

    def promoted_avals(self) -> list[Any]:
        """The types after promotion."""
        return [a if p is None else p for p, a in zip(self.promoted, self.avals, strict=True)]

    def new_avals(self) -> list[Any]:
        """The types after promotion and after the casts over mesh axes."""
        rows = zip(self.promoted_avals(), self.missing_axes, strict=True)
        return [with_varying(aval, axes) if axes else aval for aval, axes in rows]


def with_varying(aval: Any, axes: Iterable[Hashable]) -> Any:
    """A type that varies over more mesh axes, and is no longer weak, as a cast makes it."""
    return aval.update(
        manual_axis_type=aval.mat.update(varying=aval.mat.varying | set(axes)), weak_type=False
    )


class CarryPasses:
    """The types of a loop's carry, pass by pass.

    Args:
      name: what the contract's message calls the body.
      body_fun: the function, for the names in that message.
      tree: structure of the carry.
      avals: the types that it starts with.
      explain: adds to an error what is known beyond its text: `explain(error, history, tree, out)`.
    """

    def __init__(
        self,
        name: str,
        body_fun: Callable[..., Any],
        tree: PyTreeDef,
        avals: Sequence[Any],
        explain: "Explain | None" = None,
    ) -> None:
        self.name, self.body_fun, self.tree, self.avals = name, body_fun, tree, list(avals)
        self.began_weak = [is_weak(aval) for aval in avals]
        self.history: list[list[AbstractValue]] = []
        self._explain = explain

    def may_promote(self, num_settled: int = 0) -> bool:
        """Whether a leaf may have to be promoted; the first ones are known to keep their types."""
        return any(is_weak(aval) for aval in self.avals[num_settled:])

    def changes_after(self, out: BodyOut) -> CarryChanges:
        """Compare what came out of a pass with what went in.

        Raises:
          checks.CarryTypeError: they differ, and no conversion of the init helps.
        """
        avals = self.avals
        if not self.history or self.history[-1] != avals:  # else the loops inside were finished
            self.history.append(avals)
        if out.tree == self.tree and out.avals == avals:  # the usual case: nothing to convert
            return CarryChanges(avals, [], [])
        try:
            if out.tree != self.tree:
                self._check(out)
            promoted = promote_weak_avals(avals, out.avals, self.began_weak)
            changes = CarryChanges(avals, promoted, [])
            missing = missing_varying_axes(changes.promoted_avals(), out.avals)
            changes = changes._replace(missing_axes=missing)
            if not changes:
                self._check(out)
        except CarryTypeError as error:
            explain_passes(error, self.history)
            if self._explain is not None:
                self._explain(error, self.history, self.tree, out)
            raise
        return changes

    def _check(self, out: BodyOut) -> None:
        _check_carry_type(self.name, self.body_fun, self.carry(), out.tree, out.avals)

    def carry(self) -> Any:
        """The carry that goes in, as a pytree of types or of values."""
        return tree_unflatten(self.tree, self.avals)

    def convert(self, changes: CarryChanges) -> None:
        """Go on with the changed types, for the next pass."""
        self.avals = changes.new_avals()


Explain = Callable[[CarryTypeError, list[list[AbstractValue]], PyTreeDef, BodyOut], None]


def is_weak(aval: Any) -> bool:
    """Whether a type is that of a Python scalar, which promotes to others."""
    return getattr(aval, "weak_type", False)
