"""Advice for a carry whose pytree structure changes: candidates, the likeliest first."""

from collections.abc import Iterator
from typing import Any

from jax.core import ShapedArray
from jax.tree_util import GetAttrKey, tree_leaves, tree_structure

from checks.class_suggestions import other_class_changes
from checks.displays import element, with_other_key, with_rest
from checks.first_step import same_first_step
from checks.list_suggestions import growing_list_changes
from checks.matching import avals_match
from checks.rewriting import operand
from checks.structure import named_children
from checks.structure_problem import StructureProblem
from checks.structure_problem import edited as _edited
from checks.trial import Change, InitChange
from checks.zeros_code import types_code


def structure_candidates(problem: StructureProblem) -> Iterator[Change]:
    """Changes that may mend a component's structure, the likeliest first."""
    if problem.after is None:
        yield from _edited(problem, lambda _: problem.parameter)
    yield from other_class_changes(problem)
    yield from _in_its_only_field(problem)
    yield from _wrapped(problem)
    yield from _missing_end(problem)
    if isinstance(problem.before, dict) and isinstance(problem.after, dict):
        yield from _dictionaries(problem)
    yield from _one_of_several(problem)
    yield from growing_list_changes(problem)
    yield from _larger_init(problem)
    if isinstance(problem.before, dict) and isinstance(problem.after, dict):
        yield from _without_new_keys(problem)


def _wrapped(problem: StructureProblem) -> Iterator[Change]:
    """An array in the container of one that it was taken from, or arrays in one array."""
    before, after = problem.before, problem.after
    if isinstance(after, ShapedArray):
        if type(before) is dict and [_fits(value, after) for value in before.values()] == [True]:
            (key,) = before
            yield from _edited(problem, lambda text: f"{{{key!r}: {text}}}")
        if type(before) in (list, tuple) and len(before) == 1:
            around = "({},)" if type(before) is tuple else "[{}]"
            yield from _edited(problem, around.format)
        if _is_rows_of(before, after):
            yield from _edited(problem, lambda text: f"{type(before).__name__}({text})")
    elif _is_rows_of(after, before):
        stack = f"{problem.written.jnp or 'jnp'}.stack"
        yield from _edited(problem, lambda text: f"{stack}({text})")


def _in_its_only_field(problem: StructureProblem) -> Iterator[Change]:
    """What a class with one field holds, put back into the class."""
    children = [] if isinstance(problem.before, ShapedArray) else named_children(problem.before)
    if len(children) != 1 or not isinstance(children[0][0], GetAttrKey):
        return
    (key, part), after = children[0], problem.after
    if tree_structure(part) == tree_structure(after) and _alike(part, after):
        replace = f"{problem.written.dataclasses}.replace({problem.parameter}, "
        if isinstance(problem.before, tuple):
            replace = f"{problem.parameter}._replace("
        yield from _edited(problem, lambda text: f"{replace}{key.name}={text})")


def _is_rows_of(rows: Any, array: Any) -> bool:
    """Whether a list or tuple has the rows of an array."""
    if type(rows) not in (list, tuple) or not rows or not isinstance(array, ShapedArray):
        return False
    if not array.shape or array.shape[0] != len(rows):
        return False
    row = array.update(shape=array.shape[1:])
    return all(
        isinstance(item, ShapedArray) and (item.shape, item.dtype) == (row.shape, row.dtype)
        for item in rows
    )


def _fits(before: Any, item: Any) -> bool:
    both = isinstance(before, ShapedArray) and isinstance(item, ShapedArray)
    return both and avals_match(before, item)


def _missing_end(problem: StructureProblem) -> Iterator[Change]:
    """The last elements of a list or tuple, which come back no more, as they came in."""
    before, after = problem.before, problem.after
    if type(before) is not type(after) or type(before) not in (list, tuple):
        return
    if len(after) < len(before) and _alike(before, after):
        rest = f"{problem.parameter}[{len(after)}:]"
        yield from _edited(problem, lambda text: with_rest(text, rest, type(before)))


def _dictionaries(problem: StructureProblem) -> Iterator[Change]:
    """Keys that are missing as they came in; a key of another name by its own."""
    before, after = problem.before, problem.after
    lacks, adds = before.keys() - after.keys(), after.keys() - before.keys()
    if lacks and not adds:
        old = problem.parameter
        yield from _edited(problem, lambda text: f"{{**{old}, **{operand(text)}}}")
    if len(lacks) == len(adds) == 1:
        (old,), (new,) = lacks, adds
        if _fits(before[old], after[new]):
            yield from _edited(problem, lambda text: with_other_key(text, new, old))


def _one_of_several(problem: StructureProblem) -> Iterator[Change]:
    """The only one of some arrays that has the type of the array that went in."""
    before, after = problem.before, problem.after
    if not isinstance(before, ShapedArray):
        return
    is_sequence = type(after) is list or isinstance(after, tuple)  # also one with names
    items = dict(enumerate(after)) if is_sequence else after
    pairs = items.items() if type(items) is dict else ()
    fits = [k for k, item in pairs if _looks_like(before, item)]
    if len(fits) == 1:
        yield from _edited(problem, lambda text: element(text, fits[0]))


def _looks_like(before: Any, item: Any) -> bool:
    """Whether a type is another, wherever its values are."""
    both = isinstance(before, ShapedArray) and isinstance(item, ShapedArray)
    return both and (before.shape, before.dtype) == (item.shape, item.dtype)


def _larger_init(problem: StructureProblem) -> Iterator[Change]:
    """The initial carry with what the body adds to it, as zeros."""
    before, after = problem.before, problem.after
    code = types_code(after, problem.written)
    if code is None or after is None:
        return
    # Zeros in the place of numbers that the author started from would be other numbers.
    code = _extended(problem) if tree_leaves(before) else code
    if code is not None:
        change = InitChange(problem.path, code)
        if same_first_step(problem.written.body, problem.carry, change, problem.written.names):
            yield Change((), (change,))


def _without_new_keys(problem: StructureProblem) -> Iterator[Change]:
    before, after = problem.before, problem.after
    new = after.keys() - before.keys()
    is_read = any(problem.written.mentions(key) > 1 for key in new)  # the next step wants it
    if not before.keys() - after.keys() and not is_read:
        kept = f"if k in {problem.parameter}"
        yield from _edited(
            problem, lambda text: f"{{k: v for k, v in {operand(text)}.items() {kept}}}"
        )


def _extended(problem: StructureProblem) -> str | None:
    """Code of the component as it comes out, if all of the initial one is part of it."""
    before, after = problem.before, problem.after
    if type(before) is not type(after):
        return None
    if type(before) is dict and before.keys() <= after.keys():
        kept, new = (
            {k: after[k] for k in before},
            {k: v for k, v in after.items() if k not in before},
        )
        entries = [f"{k!r}: {types_code(v, problem.written)}" for k, v in new.items()]
        around = "{{**{}, {}}}"
    elif type(before) in (list, tuple) and len(before) < len(after):
        kept, new = after[: len(before)], after[len(before) :]
        entries = [str(types_code(item, problem.written)) for item in new]
        around = "[*{}, {}]" if type(before) is list else "(*{}, {})"
    else:
        return None
    fits = tree_structure(before) == tree_structure(kept) and _alike(before, kept)
    return around.format(problem.init, ", ".join(entries)) if fits else None


def _alike(before: Any, after: Any) -> bool:
    """Whether the leaves of two pytrees have the same types."""
    return all(_fits(a, b) for a, b in zip(tree_leaves(before), tree_leaves(after)))
