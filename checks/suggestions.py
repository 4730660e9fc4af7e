"""Advice for a leaf whose type changes: candidates, the likeliest first.

Each candidate is only a guess made from the two types and from the expressions that led to the
difference; `checks.explanation` tries them and gives the first that works.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from checks.growth_suggestions import growth_changes
from checks.leaf_problem import (
    LeafProblem,
    Rewrite,
    dtype_code,
    each_site,
    init_of_type,
    rewritten,
)
from checks.placement_suggestions import placement_changes, with_placement
from checks.rewriting import (
    call_method,
    called_name,
    casts_to_a_python_type,
    has_keyword,
    names_read,
    receiver,
    with_floor_division,
    with_keyword,
    with_other_cast,
    with_other_shape,
    without_keyword,
)
from checks.trial import Change


def candidates(problem: LeafProblem) -> Iterator[Change]:
    """Changes that may mend a leaf's type, the likeliest first."""
    same_dtype = problem.before.dtype == problem.after.dtype
    same_shape = problem.before.shape == problem.after.shape
    if same_dtype and same_shape:
        yield from placement_changes(problem)
        return
    changes = _dtype_changes if same_shape else _shape_changes if same_dtype else _both_changes
    yield from with_placement(problem, changes(problem))


# ---------------------------------------------------------------- dtypes


def _kind(dtype: Any) -> int:
    """Where a dtype stands in the order boolean, integer, floating, complex."""
    order = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(order) if jnp.issubdtype(dtype, kind)), -1)


def _is_numeric(problem: LeafProblem) -> bool:
    return _kind(problem.before.dtype) >= 0 and _kind(problem.after.dtype) >= 0


def _dtype_changes(problem: LeafProblem) -> Iterator[Change]:
    if not _is_numeric(problem):
        return
    before, after = problem.before.dtype, problem.after.dtype
    start = init_of_type(problem, after, problem.before.shape)
    if _kind(before) < _kind(after):
        yield from _changes_that_lose_nothing(problem, start)
        return
    if _may_wrap(before, after):
        yield start
    if problem.has_siblings:  # one expression may make leaves of several dtypes
        for site in problem.sites:
            yield from (rewritten(site, rewrite) for rewrite in _casts_to_an_operands(site.text))
    yield from each_site(problem, _dtype_rewrites(problem))
    yield start


def _changes_that_lose_nothing(problem: LeafProblem, start: Change) -> Iterator[Change]:
    """Changes where a cast in the body would cut what it computes, as of 0.5 to an integer."""
    divisions = [rewritten(site, with_floor_division) for site in problem.sites]
    if problem.ends_loop:  # with a float the loop would end at another step
        yield from divisions
    yield from each_site(problem, [lambda text: _whole_numbers(text, problem)])
    yield start
    yield from divisions  # the integer may be needed, as an index
    if _kind(problem.before.dtype) == 0 and _kind(problem.after.dtype) == 1:  # flags, counted
        yield from each_site(problem, _dtype_rewrites(problem))


def _may_wrap(before: Any, after: Any) -> bool:
    """Whether an integer's values may not fit into the narrower type: into 8 or 16 bits."""
    return _kind(before) == _kind(after) == 1 and before.itemsize < min(after.itemsize, 4)


# Functions that make whole numbers and call them floats unless told otherwise.
_MAKE_WHOLE = ("one_hot", "zeros", "ones", "zeros_like", "ones_like", "eye", "identity", "tri")
_ROUND = ("floor", "ceil", "round", "rint", "trunc", "fix")


def _whole_numbers(text: str, problem: LeafProblem) -> str | None:
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    if called_name(text) in _ROUND and _kind(problem.before.dtype) == 1:
        return call_method(text, f".astype({dtype})")
    return with_keyword(text, "dtype", dtype) if called_name(text) in _MAKE_WHOLE else None


def _casts_to_an_operands(text: str) -> list[Rewrite]:
    """Casts to the dtype of each value that an expression reads."""
    return [
        lambda text, name=name: call_method(text, f".astype({name}.dtype)")
        for name in names_read(text)
    ]


def _dtype_rewrites(problem: LeafProblem) -> list[Rewrite]:
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    casts = ("astype", "asarray", "array", "convert_element_type", *_DTYPE_NAMES)
    cast = f".astype({dtype})"
    # What a function computes in another kind of number, it does not compute in this one.
    same_kind = _kind(problem.before.dtype) == _kind(problem.after.dtype)

    def asked_for(text: str) -> bool:
        """Whether the author wrote the wider type: then it is its use that ends too late."""
        return called_name(text) in casts or has_keyword(text, "dtype")

    def with_dtype(text: str) -> str | None:
        return with_keyword(text, "dtype", dtype) if same_kind else None

    return [
        lambda text: None if asked_for(text) else with_dtype(text),
        lambda text: with_other_cast(text, dtype) if casts_to_a_python_type(text) else None,
        lambda text: None if asked_for(text) else call_method(text, cast),
        lambda text: with_other_cast(text, dtype),
        lambda text: with_dtype(text) if has_keyword(text, "dtype") else None,
        lambda text: call_method(text, cast),
    ]


_DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64")


# ---------------------------------------------------------------- shapes


def _shape_changes(problem: LeafProblem) -> Iterator[Change]:
    before, after = problem.before, problem.after
    yield from growth_changes(problem)
    yield from each_site(problem, [lambda text: with_keyword(text, "keepdims", "True")])
    for reduction in problem.upstream:
        yield rewritten(reduction.place, lambda text: with_keyword(text, "keepdims", "True"))
    yield from each_site(problem, _shape_rewrites(problem))
    if _starts_too_small(problem):
        yield init_of_type(problem, before.dtype, after.shape)


def _starts_too_small(problem: LeafProblem) -> bool:
    """Whether the carry has to start larger, because of data that the loop brings with it.

    A shape that is computed from the carry itself is more likely a mistake of the body's.
    """
    return not problem.from_carry and _broadcasts(problem.before.shape, problem.after.shape)


def _shape_rewrites(problem: LeafProblem) -> list[Rewrite]:
    """Ways to bring back a shape without changing which element stands where."""
    before, after = problem.before.shape, problem.after.shape
    rewrites: list[Rewrite] = [
        lambda text: without_keyword(text, "keepdims"),
        lambda text: receiver(text) if called_name(text) in _SHAPE_ONLY else None,
        lambda text: call_method(text, "[0]") if called_name(text) == "split" else None,
        lambda text: _unused_row(problem, text),
        lambda text: with_keyword(text, "mode", "'same'") if "convolve" in text else None,
    ]
    primitive = "" if problem.provenance is None else problem.provenance.primitive
    if primitive == "transpose" and sorted(before) == sorted(after):
        rewrites += _transpositions(before, after)
    elif primitive == "reshape" or _without_ones(before) == _without_ones(after):
        rewrites.append(lambda text: with_other_shape(text, repr(before)))
        rewrites.append(lambda text: call_method(text, f".reshape({before!r})"))
    return rewrites


def _unused_row(problem: LeafProblem, text: str) -> str | None:
    """The first of some keys that have been split and have a name, that the body does not use."""
    made = "" if problem.provenance is None else problem.provenance.place.text
    if called_name(made) != "split" or not text.isidentifier():
        return None
    num_rows = problem.after.shape[0]
    used = problem.written.elements_read(text, num_rows)
    unused = [] if used is None else [i for i in range(num_rows) if i not in used]
    return f"{text}[{unused[0]}]" if unused else None


# Functions that only lay out anew what they get.
_SHAPE_ONLY = ("squeeze", "ravel", "flatten", "transpose")


def _transpositions(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[Rewrite]:
    if tuple(reversed(after)) == before:
        return [
            lambda text: text[:-2] if text.endswith(".T") else None,
            lambda text: call_method(text, ".T"),
        ]
    if len(set(before)) < len(before):  # nothing tells equal axes apart
        return []
    axes = tuple(after.index(n) for n in before)
    moved = [i for i, axis in enumerate(axes) if i != axis]
    back = f".swapaxes{tuple(moved)}" if len(moved) == 2 else f".transpose{axes}"
    return [lambda text: call_method(text, back)]


def _without_ones(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(n for n in shape if n != 1)


def _broadcasts(shape: tuple[Any, ...], to: tuple[Any, ...]) -> bool:
    if len(shape) > len(to):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(to)))


# ---------------------------------------------------------------- both, and neither


def _key_changes(problem: LeafProblem) -> Iterator[Change]:
    """A typed key that comes out as its raw data, or the other way round."""
    was_key, is_key = (_kind(aval.dtype) < 0 for aval in (problem.before, problem.after))
    if was_key != is_key:
        convert = "wrap_key_data" if was_key else "key_data"
        name = f"{problem.written.jax}.random.{convert}"
        back = ("key_data", "wrap_key_data")
        undone: Rewrite = lambda text: receiver(text) if called_name(text) in back else None  # noqa: E731
        yield from each_site(problem, [undone, lambda text: f"{name}({text})"])


def _both_changes(problem: LeafProblem) -> Iterator[Change]:
    if not _is_numeric(problem):
        yield from _key_changes(problem)
        return
    if _starts_too_small(problem):
        yield init_of_type(problem, problem.after.dtype, problem.after.shape)
    keep: Rewrite = lambda text: with_keyword(text, "keepdims", "True")  # noqa: E731
    shapes = [keep, *_shape_rewrites(problem)]
    if _kind(problem.before.dtype) < _kind(problem.after.dtype):
        start = init_of_type(problem, problem.after.dtype, problem.before.shape)
        for change in each_site(problem, shapes):
            yield Change(change.edits, start.init)
        return
    for second in _dtype_rewrites(problem):
        yield from each_site(problem, [_one_after_other(first, second) for first in shapes])


def _one_after_other(first: Rewrite, second: Rewrite) -> Rewrite:
    def both(text: str) -> str | None:
        half = first(text)
        return None if half is None else second(half)

    return both
