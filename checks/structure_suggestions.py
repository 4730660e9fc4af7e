"""Advice for a carry whose pytree structure changes: candidates, the likeliest first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.core import ShapedArray
from jax.tree_util import keystr, tree_leaves, tree_structure

from checks.edits import Edit
from checks.matching import avals_match
from checks.rewriting import element, operand
from checks.source import Place
from checks.trial import Change, InitChange
from checks.written import WrittenBody
from checks.zeros_code import types_code


@dataclass(frozen=True)
class StructureProblem:
    """A component whose structure differs: the pytrees of types that go in and come out.

    `sites` are the expressions that the body returns for it, and `parameter` is what the body calls
    the component that goes in.
    """

    path: tuple[Any, ...]
    before: Any
    after: Any
    sites: tuple[Place, ...]
    parameter: str
    written: WrittenBody

    @property
    def init(self) -> str:
        """The component in the initial carry, as an expression."""
        return f"init{keystr(self.path)}"


def structure_candidates(problem: StructureProblem) -> Iterator[Change]:
    """Changes that may mend a component's structure, the likeliest first."""
    before, after = problem.before, problem.after
    if after is None:
        yield from _edited(problem, lambda _: problem.parameter)
    yield from _same_leaves(problem)
    yield from _missing_end(problem)
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _dictionaries(problem)
    if isinstance(before, ShapedArray) and type(after) in (list, tuple):
        same = [i for i, item in enumerate(after) if _fits(before, item)]
        if len(same) == 1:
            yield from _edited(problem, lambda text: element(text, same[0]))
    code = types_code(after, problem.written.jnp)
    if code is not None and after is not None:
        yield Change((), (InitChange(problem.path, after, _extended(problem, code)),))
    if isinstance(before, dict) and isinstance(after, dict) and not before.keys() - after.keys():
        kept = f"if k in {problem.parameter}"
        yield from _edited(
            problem, lambda text: f"{{k: v for k, v in {operand(text)}.items() {kept}}}"
        )


def _edited(problem: StructureProblem, rewrite: Callable[[str], str]) -> Iterator[Change]:
    """A returned expression rewritten, each that is known in turn."""
    for site in problem.sites:
        if site.span is not None and site.code is not None and site.text:
            yield Change((Edit(site.file, site.span, site.code, rewrite(site.text)),))


def _same_leaves(problem: StructureProblem) -> Iterator[Change]:
    """The output's leaves in the input's structure, where they are as many."""
    before, after = problem.before, problem.after
    leaves_in, leaves_out = tree_leaves(before), tree_leaves(after)
    if len(leaves_in) != len(leaves_out) or not leaves_in:
        return
    if type(before) is dict and [_fits(value, after) for value in before.values()] == [True]:
        (key,) = before
        yield from _edited(problem, lambda text: f"{{{key!r}: {text}}}")
        return
    plain = (list, tuple)
    if type(before) in plain and type(after) in plain and len(before) == len(after):
        name = type(before).__name__
        yield from _edited(problem, lambda text: f"{name}({text})")
    if isinstance(before, ShapedArray):
        return
    if type(before) in plain and len(before) == 1 and isinstance(after, ShapedArray):
        around = "({},)" if type(before) is tuple else "[{}]"
        yield from _edited(problem, around.format)
        return
    if isinstance(before, dict) and isinstance(after, dict) and type(before) is type(after):
        return  # other keys: nothing tells which of them belong together
    if isinstance(before, dict) != isinstance(after, dict) and not _fields(after):
        return
    tree = f"{problem.written.jax}.tree"
    same = f"{tree}.structure({problem.parameter})"
    yield from _edited(problem, lambda text: f"{tree}.unflatten({same}, {tree}.leaves({text}))")


def _fits(before: Any, item: Any) -> bool:
    both = isinstance(before, ShapedArray) and isinstance(item, ShapedArray)
    return both and avals_match(before, item)


def _fields(tree: Any) -> bool:
    return hasattr(tree, "_fields") or hasattr(tree, "__dataclass_fields__")


def _missing_end(problem: StructureProblem) -> Iterator[Change]:
    """The last elements of a list or tuple, which come back no more, as they came in."""
    before, after = problem.before, problem.after
    if type(before) is not type(after) or type(before) not in (list, tuple):
        return
    if len(after) < len(before) and _alike(before, after):
        around = "[*{}, *{}]" if type(before) is list else "(*{}, *{})"
        rest = f"{problem.parameter}[{len(after)}:]"
        yield from _edited(problem, lambda text: around.format(operand(text), rest))


def _dictionaries(problem: StructureProblem) -> Iterator[Change]:
    before, after = problem.before, problem.after
    lacks, adds = before.keys() - after.keys(), after.keys() - before.keys()
    if lacks and not adds:
        old = problem.parameter
        yield from _edited(problem, lambda text: f"{{**{old}, **{operand(text)}}}")


def _extended(problem: StructureProblem, code: str) -> str:
    """Code of the component as it comes out, with what it keeps of the initial one."""
    before, after = problem.before, problem.after
    if type(before) is not type(after):
        return code
    if type(before) is dict and before.keys() <= after.keys():
        kept, new = (
            {k: after[k] for k in before},
            {k: v for k, v in after.items() if k not in before},
        )
        entries = [f"{k!r}: {types_code(v, problem.written.jnp)}" for k, v in new.items()]
        around = "{{**{}, {}}}"
    elif type(before) in (list, tuple) and len(before) < len(after):
        kept, new = after[: len(before)], after[len(before) :]
        entries = [str(types_code(item, problem.written.jnp)) for item in new]
        around = "[*{}, {}]" if type(before) is list else "(*{}, {})"
    else:
        return code
    fits = tree_structure(before) == tree_structure(kept) and _alike(before, kept)
    return around.format(problem.init, ", ".join(entries)) if fits else code


def _alike(before: Any, after: Any) -> bool:
    """Whether the leaves of two pytrees have the same types."""
    return all(_fits(a, b) for a, b in zip(tree_leaves(before), tree_leaves(after)))
