"""Advice tried before it is given: the body with the change, traced against the changed init."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jax.tree_util import tree_flatten, tree_unflatten

from checks.edits import Edit, with_edits
from checks.errors import CarryMismatch, CarryTypeError
from checks.passes import BodyOut, CarryPasses
from checks.tracing import LoopBody


class InitChange(NamedTuple):
    """A component of the initial carry, the types that it gets, and the code that makes it.

    The code is an expression in which `init` is the initial carry as it is now.
    """

    path: tuple[Any, ...]
    types: Any
    code: str


class Change(NamedTuple):
    """What a piece of advice changes: expressions in the source, parts of the initial carry."""

    edits: tuple[Edit, ...] = ()
    init: tuple[InitChange, ...] = ()


class OutOfTime(Exception):  # noqa: N818  no error of the user's
    """The advice costs more time than it is worth."""


@dataclass
class Budget:
    """How long advice may be tried, and how often: a large model is slow to trace."""

    seconds: float = 2.0
    trials: int = 40
    _begin: float = field(default_factory=time.monotonic)

    def spend(self) -> None:
        """Take one trial."""
        self.trials -= 1
        if self.trials < 0 or time.monotonic() - self._begin > self.seconds:
            raise OutOfTime


@dataclass(frozen=True)
class Trial:
    """A body and the types of its initial carry, with the changes that have been accepted.

    Args:
      body: the body as it is.
      carry: the pytree of types that the loop starts with.
      budget: what trials may cost, all together.
      edits: the changes of the source so far.
      init: the changes of the initial carry so far.
    """

    body: LoopBody
    carry: Any
    budget: Budget
    edits: tuple[Edit, ...] = ()
    init: tuple[InitChange, ...] = ()

    def with_change(self, change: Change) -> "Trial | None":
        """The same with a change more; None if it touches what is changed already."""
        new = [edit for edit in change.edits if edit not in self.edits]
        if any(edit.span.overlaps(other.span) for edit in new for other in self.edits):
            return None
        changed = [init.path for init in self.init]
        if any(_one_inside_other(init.path, path) for init in change.init for path in changed):
            return None
        carry = self.carry
        for init in change.init:
            carry = with_subtree(carry, init.path, init.types)
        edits = (*self.edits, *new)
        return replace(self, carry=carry, edits=edits, init=(*self.init, *change.init))

    def mismatches(self) -> tuple[CarryMismatch, ...] | None:
        """What is still wrong; None where the changed body cannot be made or does not run."""
        fun = with_edits(self.body.fun, self.edits) if self.edits else self.body.fun
        if fun is None:
            return None
        self.budget.spend()
        try:
            return settled_mismatches(self.body, fun, self.carry)
        except Exception:  # noqa: BLE001  the changed body may fail in any way: then it is no advice
            return None


def settled_mismatches(
    body: LoopBody, fun: Callable[..., Any], carry: Any
) -> tuple[CarryMismatch, ...]:
    """Trace a function like a loop's body until its carry settles; what does not, is returned."""
    avals, tree = tree_flatten(carry)
    passes = CarryPasses("body", fun, tree, avals)
    while True:
        traced = body.trace(fun, tree_unflatten(tree, passes.avals))
        try:
            changes = passes.changes_after(BodyOut(traced.out_tree, traced.out_avals))
        except CarryTypeError as error:
            return error.mismatches
        if not changes:
            return ()
        passes.convert(changes)


def _one_inside_other(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return all(a == b for a, b in zip(first, second))


def with_subtree(tree: Any, path: Iterable[Any], new: Any) -> Any:
    """A pytree with the subtree at a key path replaced, in copies of what holds it."""
    path = tuple(path)
    if not path:
        return new
    key, *rest = path
    child = with_subtree(_at(tree, key), rest, new)
    if hasattr(key, "name"):
        if hasattr(tree, "_replace"):
            return tree._replace(**{key.name: child})
        return _with_attribute(tree, key.name, child)
    if isinstance(tree, dict):
        return type(tree)({**tree, key.key: child})
    items = list(tree)
    items[key.idx] = child
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def _with_attribute(tree: Any, name: str, child: Any) -> Any:
    import copy  # noqa: PLC0415

    made = copy.copy(tree)
    object.__setattr__(made, name, child)
    return made


def _at(tree: Any, key: Any) -> Any:
    if hasattr(key, "name"):
        return getattr(tree, key.name)
    return tree[key.key if hasattr(key, "key") else key.idx]


def subtree_at(tree: Any, path: Iterable[Any]) -> Any:
    """The part of a pytree at a key path."""
    for key in path:
        tree = _at(tree, key)
    return tree
