"""Advice for a component that comes out as another class: the same parts in the class that went in.

Parts are matched by their names where both classes have names, and by their order where one has
none. Where neither tells which part is which, there is no advice.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from jax.core import ShapedArray
from jax.tree_util import DictKey, GetAttrKey, tree_leaves, tree_structure, tree_unflatten

from checks.displays import as_arguments
from checks.rewriting import operand
from checks.structure import named_children
from checks.structure_problem import StructureProblem, edited
from checks.trial import Change, InitChange, with_subtree


def other_class_changes(problem: StructureProblem) -> Iterator[Change]:
    """Changes of what is returned, or of the initial value where a static field differs."""
    before, after = problem.before, problem.after
    if any(isinstance(tree, ShapedArray) or tree is None for tree in (before, after)):
        return
    if _is_plain(before) and _is_plain(after):
        if len(before) == len(after):
            yield from edited(problem, lambda text: f"{type(before).__name__}({text})")
        if _are_sequences(before) and _are_sequences(after):  # grouped in another way
            yield from _by_order(problem)
        return
    if type(before) is type(after):
        yield from _other_static_fields(problem)
        return
    old, new = _names(before), _names(after)
    if old and new:
        yield from _by_name(problem, old, new)
    elif not (isinstance(before, dict) or isinstance(after, dict)) and _same_parts(before, after):
        yield from _by_order(problem)


def _is_plain(tree: Any) -> bool:
    return type(tree) in (list, tuple)


def _are_sequences(tree: Any) -> bool:
    """Whether all the containers of a pytree are lists and tuples."""
    return isinstance(tree, ShapedArray) or (_is_plain(tree) and all(map(_are_sequences, tree)))


def _names(tree: Any) -> list[Any] | None:
    """The names of a node's children, in order; None where they have none."""
    keys = [key for key, _ in named_children(tree)]
    named = [
        key.key if isinstance(key, DictKey) else key.name
        for key in keys
        if isinstance(key, DictKey | GetAttrKey)
    ]
    return named if len(named) == len(keys) else None


def _by_name(problem: StructureProblem, old: list[Any], new: list[Any]) -> Iterator[Change]:
    before, after = problem.before, problem.after
    same_names = set(old) == set(new)
    if same_names:
        around = _conversion(before, after, problem.parameter)
        if around:
            yield from edited(problem, lambda text: around.format(operand(text)))
    # Under other names the types alone may tell which part is which.
    types = [str(leaf) for leaf in tree_leaves(before)]
    is_certain = old == new if same_names else len(set(types)) == len(types)
    if is_certain and _same_parts(before, after):
        yield from _by_order(problem)


def _conversion(before: Any, after: Any, parameter: str) -> str:
    """What to write around a value to make the other class of it, by names; or nothing."""
    if isinstance(after, dict):
        if type(before) is dict:
            return "dict({})"
        return "" if isinstance(before, dict) else f"type({parameter})(**{{}})"
    if hasattr(after, "_asdict"):
        return (
            "{}._asdict()" if isinstance(before, dict) else f"type({parameter})(**{{}}._asdict())"
        )
    return ""


def _by_order(problem: StructureProblem) -> Iterator[Change]:
    if hasattr(problem.before, "_fields") and isinstance(problem.after, list | tuple):
        kind = type(problem.before)
        name = problem.written.alias(kind, kind.__name__) or f"type({problem.parameter})"
        yield from edited(problem, lambda text: f"{name}({as_arguments(text)})")
    tree = f"{problem.written.jax}.tree"
    same = f"{tree}.structure({problem.parameter})"
    yield from edited(problem, lambda text: f"{tree}.unflatten({same}, {tree}.leaves({text}))")


def _same_parts(before: Any, after: Any) -> bool:
    """Whether two nodes have as many children, each with the structure of the other's."""
    children = [[child for _, child in named_children(tree)] for tree in (before, after)]
    return list(map(tree_structure, children[0])) == list(map(tree_structure, children[1]))


def _other_static_fields(problem: StructureProblem) -> Iterator[Change]:
    """A dataclass that comes out with other static fields: it may start with those."""
    before, after = problem.before, problem.after
    if not dataclasses.is_dataclass(after) or not _same_parts(before, after):
        return
    names = [f.name for f in dataclasses.fields(after) if f.name not in (_names(after) or ())]
    values = {name: getattr(after, name, None) for name in names}
    values = {k: v for k, v in values.items() if v != getattr(before, k, None)}
    if not values or not all(isinstance(v, str | int | float | bool) for v in values.values()):
        return
    types = tree_unflatten(tree_structure(after), tree_leaves(before))
    if _reads_other_fields(problem, types):  # the first step would compute something else
        return
    fields = ", ".join(f"{name}={value!r}" for name, value in values.items())
    code = f"{problem.written.dataclasses}.replace({problem.init}, {fields})"
    yield Change((), (InitChange(problem.path, code),))


def _reads_other_fields(problem: StructureProblem, types: Any) -> bool:
    """Whether the body does something else for the component with its new static fields."""
    body, changed = problem.written.body, with_subtree(problem.carry, problem.path, types)
    try:
        first, second = (body.trace(body.fun, carry).jaxpr for carry in (problem.carry, changed))
    except Exception:  # noqa: BLE001  the body may refuse them in any way
        return True
    return str(first) != str(second)
