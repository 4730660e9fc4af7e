"""Advice tried before it is given: the body with the change, traced against the changed init."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from checks.condition import check_predicate
from checks.edits import Edit, with_edits
from checks.errors import CarryMismatch, CarryTypeError
from checks.jaxprs import Scope, depends_on, forwards
from checks.passes import BodyOut, CarryPasses
from checks.structure import named_children
from checks.tracing import LoopBody, trace


class InitChange(NamedTuple):
    """A component of the initial carry, and the code that makes it.

    The code is an expression in which `init` is the initial carry as it is now.
    """

    path: tuple[Any, ...]
    code: str


class Change(NamedTuple):
    """What a piece of advice changes: expressions in the source, parts of the initial carry.

    `is_the_fault` says that the expression is what is wrong, wherever the types were made.
    """

    edits: tuple[Edit, ...] = ()
    init: tuple[InitChange, ...] = ()
    is_the_fault: bool = False


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
      start: the pytree of types that the loop starts with.
      names: what the names of the body's file stand for.
      budget: what trials may cost, all together.
      edits: the changes of the source so far.
      init: the changes of the initial carry so far.
    """

    body: LoopBody
    start: Any
    names: dict[str, Any]
    budget: Budget
    edits: tuple[Edit, ...] = ()
    init: tuple[InitChange, ...] = ()

    def with_change(self, change: Change) -> "Trial | None":
        """The same with a change more; None if it touches what is changed, or its code fails."""
        new = [edit for edit in change.edits if edit not in self.edits]
        if any(edit.span.overlaps(other.span) for edit in new for other in self.edits):
            return None
        changed = [init.path for init in self.init]
        if any(_one_inside_other(init.path, path) for init in change.init for path in changed):
            return None
        edits, init = (*self.edits, *new), (*self.init, *change.init)
        changed = replace(self, edits=edits, init=init)
        return None if change.init and changed.carry() is None else changed

    def carry(self) -> Any:
        """The types of the initial carry with the changes; None where code of theirs fails."""
        carry = self.start
        try:
            for init in self.init:
                types = types_of_code(init.code, self.names, self.start)
                carry = with_subtree(carry, init.path, types)
        except Exception:  # noqa: BLE001  the code is a guess, and may fail in any way
            return None
        return carry

    def mismatches(self) -> tuple[CarryMismatch, ...] | None:
        """What is still wrong; None where the changed body cannot be made or does not run."""
        fun = with_edits(self.body.fun, self.edits) if self.edits else self.body.fun
        if fun is None:
            return None
        self.budget.spend()
        try:
            return settled_mismatches(self.body, fun, self.carry())
        except Exception:  # noqa: BLE001  the changed body may fail in any way: then it is no advice
            return None


def types_of_code(code: str, names: dict[str, Any], start: Any) -> Any:
    """The types that an expression makes of the types of the initial carry; nothing is computed.

    Example:
      >>> import jax
      >>> types_of_code("(init, [init * 2])", {}, jax.typeof(1.0))
      (ShapedArray(float32[], weak_type=True), [ShapedArray(float32[], weak_type=True)])
    """
    traced = trace(lambda init: eval(code, {**names, "init": init}), start)  # noqa: S307  our own
    return tree_unflatten(traced.out_tree, traced.out_avals)


def settled_mismatches(
    body: LoopBody, fun: Callable[..., Any], carry: Any
) -> tuple[CarryMismatch, ...]:
    """Trace a function like a loop's body until its carry settles; what does not, is returned.

    Raises:
      Exception: the function, or the loop's condition, does not run on these types, or the
        function changes nothing that the condition reads.
    """
    avals, tree = tree_flatten(carry)
    passes = CarryPasses("body", fun, tree, avals)
    while True:
        traced = body.trace(fun, tree_unflatten(tree, passes.avals))
        try:
            changes = passes.changes_after(BodyOut(traced.out_tree, traced.out_avals))
        except CarryTypeError as error:
            return error.mismatches
        if not changes:
            if body.condition is not None:
                predicate = trace(body.condition, passes.carry())
                check_predicate("cond_fun", predicate.out_tree, predicate.out_avals)
                _check_that_it_may_end(predicate.jaxpr, traced.jaxpr, len(tree_leaves(body.before)))
            return ()
        passes.convert(changes)


def _check_that_it_may_end(condition: Any, jaxpr: Any, num_before: int) -> None:
    """Raise ValueError if a body hands on as it came whatever its loop's condition reads."""
    predicate, body = Scope(condition), Scope(jaxpr)
    (output,) = predicate.jaxpr.outvars
    leaves = zip(predicate.jaxpr.invars, body.jaxpr.outvars, body.jaxpr.invars[num_before:])
    is_read = [
        (atom, source) for leaf, atom, source in leaves if depends_on(predicate, output, leaf)
    ]
    if is_read and all(forwards(body, atom, source) for atom, source in is_read):
        raise ValueError("the condition would never change")


def _one_inside_other(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return all(a == b for a, b in zip(first, second))


def _children(tree: Any) -> tuple[list[Any], list[Any], Any]:
    """The keys and the values of a node's children, and the structure of the node alone."""
    children, node = tree_flatten(tree, is_leaf=lambda part: part is not tree)
    return [key for key, _ in named_children(tree)], children, node


def with_subtree(tree: Any, path: Iterable[Any], new: Any) -> Any:
    """A pytree with the part at a key path replaced, in copies of what holds it."""
    key, *rest = (*path, None)
    if key is None:
        return new
    keys, children, node = _children(tree)
    position = keys.index(key)
    children[position] = with_subtree(children[position], rest[:-1], new)
    return tree_unflatten(node, children)


def subtree_at(tree: Any, path: Iterable[Any]) -> Any:
    """The part of a pytree at a key path."""
    for key in path:
        keys, children, _ = _children(tree)
        tree = children[keys.index(key)]
    return tree
