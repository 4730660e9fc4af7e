"""Advice for a leaf whose type changes: candidates, the likeliest first.

Each candidate is only a guess made from the two types and from the expressions that led to the
difference; `checks.explanation` tries them and gives the first that works.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.tree_util import keystr

from checks.edits import Edit
from checks.provenance import Provenance, Upstream
from checks.rewriting import (
    call_method,
    called_name,
    receiver,
    with_floor_division,
    with_keyword,
)
from checks.source import Place
from checks.trial import Change, InitChange
from checks.written import WrittenBody

Rewrite = Callable[[str], str | None]  # an expression's text to another's


@dataclass(frozen=True)
class LeafProblem:
    """A leaf with an input type that is not its output type, and what is known about it.

    `path` leads to it in the user's carry, `sites` are the expressions to change, and `upstream`
    those of reductions that the output was computed with.
    """

    path: tuple[Any, ...]
    before: ShapedArray
    after: ShapedArray
    provenance: Provenance | None
    sites: tuple[Place, ...]
    upstream: tuple[Upstream, ...]
    written: WrittenBody
    steps: int | None

    @property
    def init(self) -> str:
        """The component in the initial carry, as an expression."""
        return f"init{keystr(self.path)}"


def candidates(problem: LeafProblem) -> Iterator[Change]:
    """Changes that may mend a leaf's type, the likeliest first."""
    same_dtype = problem.before.dtype == problem.after.dtype
    same_shape = problem.before.shape == problem.after.shape
    if same_dtype and same_shape:
        yield from _placement_changes(problem)
    elif same_shape:
        yield from _dtype_changes(problem)
    elif same_dtype:
        yield from _shape_changes(problem)
    else:
        yield from _both_changes(problem)


# ---------------------------------------------------------------- dtypes


def dtype_code(dtype: Any, alias: str | None) -> str:
    """A dtype as the user would write it."""
    name = np.dtype(dtype).name
    name = "bool_" if name == "bool" else name
    return f"{alias}.{name}" if alias and hasattr(jnp, name) else repr(np.dtype(dtype).name)


def _kind(dtype: Any) -> int:
    """Where a dtype stands in the order boolean, integer, floating, complex."""
    order = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(order) if jnp.issubdtype(dtype, kind)), -1)


def _is_numeric(problem: LeafProblem) -> bool:
    return _kind(problem.before.dtype) >= 0 and _kind(problem.after.dtype) >= 0


def _dtype_changes(problem: LeafProblem) -> Iterator[Change]:
    if not _is_numeric(problem):
        return
    loses = _kind(problem.before.dtype) < _kind(problem.after.dtype)
    if loses:  # a cast in the body would cut what the body computes
        yield from (_rewritten(site, with_floor_division) for site in problem.sites)
        yield _init_of_type(problem, problem.before.update(dtype=problem.after.dtype))
    yield from _each_site(problem, _dtype_rewrites(problem))
    if not loses:
        yield _init_of_type(problem, problem.before.update(dtype=problem.after.dtype))


def _dtype_rewrites(problem: LeafProblem) -> list[Rewrite]:
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    return [
        lambda text: with_keyword(text, "dtype", dtype),
        lambda text: call_method(text, f".astype({dtype})"),
    ]


# ---------------------------------------------------------------- shapes


def _shape_changes(problem: LeafProblem) -> Iterator[Change]:
    before, after = problem.before, problem.after
    yield from _growth_changes(problem)
    yield from _each_site(problem, [lambda text: with_keyword(text, "keepdims", "True")])
    for reduction in problem.upstream:
        yield _rewritten(reduction.place, lambda text: with_keyword(text, "keepdims", "True"))
    yield from _each_site(problem, _shape_rewrites(problem))
    if _broadcasts(before.shape, after.shape):
        yield _init_of_type(problem, before.update(shape=after.shape))
    if _broadcasts(after.shape, before.shape):
        shape = repr(before.shape)
        broadcast = f"{problem.written.jnp or 'jnp'}.broadcast_to"
        yield from _each_site(problem, [lambda text: f"{broadcast}({text}, {shape})"])


def _shape_rewrites(problem: LeafProblem) -> list[Rewrite]:
    """Ways to bring back a shape without changing which element stands where."""
    before, after = problem.before.shape, problem.after.shape
    rewrites: list[Rewrite] = [
        lambda text: receiver(text) if called_name(text) in _SHAPE_ONLY else None,
        lambda text: call_method(text, "[0]") if called_name(text) == "split" else None,
        lambda text: with_keyword(text, "mode", "'same'") if "convolve" in text else None,
    ]
    primitive = "" if problem.provenance is None else problem.provenance.primitive
    if primitive == "transpose":
        rewrites += _transpositions(before, after)
    elif primitive == "reshape" or _without_ones(before) == _without_ones(after):
        rewrites.append(lambda text: call_method(text, f".reshape({before!r})"))
    return rewrites


# Functions that only lay out anew what they get.
_SHAPE_ONLY = ("squeeze", "ravel", "flatten", "transpose")


def _transpositions(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[Rewrite]:
    if tuple(reversed(after)) == before:
        return [
            lambda text: text[:-2] if text.endswith(".T") else None,
            lambda text: call_method(text, ".T"),
        ]
    pairs = [
        (i, j)
        for i in range(len(after))
        for j in range(i + 1, len(after))
        if _swapped(after, i, j) == before
    ]
    return [lambda text, p=pair: call_method(text, f".swapaxes{p}") for pair in pairs[:1]]


def _swapped(shape: tuple[Any, ...], i: int, j: int) -> tuple[Any, ...]:
    dims = list(shape)
    dims[i], dims[j] = dims[j], dims[i]
    return tuple(dims)


def _without_ones(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(n for n in shape if n != 1)


def _broadcasts(shape: tuple[Any, ...], to: tuple[Any, ...]) -> bool:
    if len(shape) > len(to):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(to)))


def _growth_changes(problem: LeafProblem) -> Iterator[Change]:
    """A carry that gets longer at each step becomes a buffer that is long enough from the start.

    The buffer's new rows come in at its end, so that after the last step it holds what the growing
    array would have held.
    """
    before, after, provenance = problem.before.shape, problem.after.shape, problem.provenance
    if provenance is None or provenance.primitive not in ("concatenate", "pad"):
        return
    axes = [i for i, (n, m) in enumerate(zip(before, after)) if n != m]
    if len(before) != len(after) or len(axes) != 1 or problem.steps is None:
        return
    (axis,) = axes
    grown = after[axis] - before[axis]
    if not isinstance(problem.steps, int) or grown <= 0 or problem.steps < 1:
        return
    size = before[axis] + grown * problem.steps
    shape = (*before[:axis], size, *before[axis + 1 :])
    alias = problem.written.jnp or "jnp"
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    # An index such as `:, -1:` at the axis.
    leading = ":, " * axis
    old, new = f"{leading}-{before[axis]}:", f"{leading}{grown}:"
    init = f"{alias}.zeros({shape!r}, {dtype})"
    if before[axis]:
        init += f".at[{old}].set({problem.init})"
    types = problem.before.update(shape=shape)
    keep = f"[{new}]"
    for site in problem.sites:
        edit = _edit(site, lambda text: call_method(text, keep))
        if edit is not None:
            yield Change((edit,), (InitChange(problem.path, types, init),))


# ---------------------------------------------------------------- both, and neither


def _key_changes(problem: LeafProblem) -> Iterator[Change]:
    """A typed key that comes out as its raw data, or the other way round."""
    was_key, is_key = (_kind(aval.dtype) < 0 for aval in (problem.before, problem.after))
    if was_key != is_key:
        convert = "wrap_key_data" if was_key else "key_data"
        name = f"{problem.written.jax}.random.{convert}"
        yield from _each_site(problem, [lambda text: f"{name}({text})"])


def _both_changes(problem: LeafProblem) -> Iterator[Change]:
    if not _is_numeric(problem):
        yield from _key_changes(problem)
        return
    if _broadcasts(problem.before.shape, problem.after.shape):
        types = problem.before.update(shape=problem.after.shape, dtype=problem.after.dtype)
        yield _init_of_type(problem, types)
    keep: Rewrite = lambda text: with_keyword(text, "keepdims", "True")  # noqa: E731
    first = [keep, *_shape_rewrites(problem)]
    for second in _dtype_rewrites(problem):
        yield from _each_site(problem, [_one_after_other(rewrite, second) for rewrite in first])
    if _broadcasts(problem.after.shape, problem.before.shape):
        alias, shape = problem.written.jnp or "jnp", problem.before.shape
        spread: Rewrite = lambda text: f"{alias}.broadcast_to({text}, {shape!r})"  # noqa: E731
        for second in _dtype_rewrites(problem):
            yield from _each_site(problem, [_one_after_other(spread, second)])


def _one_after_other(first: Rewrite, second: Rewrite) -> Rewrite:
    def both(text: str) -> str | None:
        half = first(text)
        return None if half is None else second(half)

    return both


def _placement_changes(problem: LeafProblem) -> Iterator[Change]:
    """Types that differ in varying axes, memory space or sharding alone."""
    before, after, jax = problem.before, problem.after, problem.written.jax
    gained = tuple(sorted(after.mat.varying - before.mat.varying, key=str))
    lost = tuple(sorted(before.mat.varying - after.mat.varying, key=str))
    if gained:
        types = before.update(mat=before.mat.update(varying=before.mat.varying | set(gained)))
        code = f"{jax}.lax.pcast({problem.init}, {gained!r}, to='varying')"
        yield Change((), (InitChange(problem.path, types, code),))
    if lost:
        cast: Rewrite = lambda text: f"{jax}.lax.pcast({text}, {lost!r}, to='varying')"  # noqa: E731
        yield from _each_site(problem, [cast])
    if before.sharding != after.sharding:
        spec = f"{jax}.sharding.{before.sharding.spec!r}"
        again: Rewrite = lambda text: f"{jax}.sharding.reshard({text}, {spec})"  # noqa: E731
        yield from _each_site(problem, [again])


# ---------------------------------------------------------------- making changes


def _each_site(problem: LeafProblem, rewrites: list[Rewrite]) -> Iterator[Change]:
    for rewrite in rewrites:
        yield from (_rewritten(site, rewrite) for site in problem.sites)


def _rewritten(site: Place, rewrite: Rewrite) -> Change:
    """A change of one expression; an empty one where the rewrite does not apply."""
    edit = _edit(site, rewrite)
    return Change() if edit is None else Change((edit,))


def _edit(site: Place, rewrite: Rewrite) -> Edit | None:
    if site.span is None or site.code is None or not site.text:
        return None
    new = rewrite(site.text)
    return None if new is None else Edit(site.file, site.span, site.code, new)


def _init_of_type(problem: LeafProblem, aval: ShapedArray) -> Change:
    """A change of the initial value to another dtype, shape, or both."""
    alias = problem.written.jnp or "jnp"
    code = problem.init
    if aval.dtype != problem.before.dtype:
        code = f"{alias}.asarray({code}, {dtype_code(aval.dtype, problem.written.jnp)})"
    if aval.shape != problem.before.shape:
        code = f"{alias}.broadcast_to({code}, {aval.shape!r})"
    return Change((), (InitChange(problem.path, aval.update(weak_type=False), code),))
