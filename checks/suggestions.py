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
from checks.rewriting import (
    call_method,
    called_name,
    names_read,
    receiver,
    with_floor_division,
    with_keyword,
    with_other_cast,
)
from checks.trial import Change, InitChange


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
        yield from (rewritten(site, with_floor_division) for site in problem.sites)
        yield from each_site(problem, [lambda text: _whole_numbers(text, problem)])
        yield init_of_type(problem, problem.before.update(dtype=problem.after.dtype))
    if problem.has_siblings:  # one expression may make leaves of several dtypes
        for site in problem.sites:
            yield from (rewritten(site, rewrite) for rewrite in _casts_to_an_operands(site.text))
    yield from each_site(problem, _dtype_rewrites(problem))
    if not loses:
        yield init_of_type(problem, problem.before.update(dtype=problem.after.dtype))


# Functions that make whole numbers and call them floats unless told otherwise.
_MAKE_WHOLE = ("one_hot", "zeros", "ones", "zeros_like", "ones_like", "eye", "identity", "tri")


def _whole_numbers(text: str, problem: LeafProblem) -> str | None:
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
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
    takes_dtype = [
        lambda text: None if called_name(text) in casts else with_keyword(text, "dtype", dtype)
    ]
    return [
        *(takes_dtype if same_kind else []),
        # Where the author asked for the wider type, it is its use that ends too late.
        lambda text: None if called_name(text) in casts else call_method(text, cast),
        lambda text: with_other_cast(text, dtype),
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
    if _broadcasts(before.shape, after.shape):
        yield init_of_type(problem, after.update(dtype=before.dtype))
    if _broadcasts(after.shape, before.shape) and _is_reduced(problem):
        shape = repr(before.shape)
        broadcast = f"{problem.written.jnp or 'jnp'}.broadcast_to"
        yield from each_site(problem, [lambda text: f"{broadcast}({text}, {shape})"])


def _is_reduced(problem: LeafProblem) -> bool:
    """Whether a reduction made the shape, so that each element stands for several."""
    provenance = problem.provenance
    return provenance is not None and provenance.primitive.startswith("reduce_")


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
    if _broadcasts(problem.before.shape, problem.after.shape):
        types = problem.after
        yield init_of_type(problem, types)
    keep: Rewrite = lambda text: with_keyword(text, "keepdims", "True")  # noqa: E731
    first = [keep, *_shape_rewrites(problem)]
    for second in _dtype_rewrites(problem):
        yield from each_site(problem, [_one_after_other(rewrite, second) for rewrite in first])
    if _broadcasts(problem.after.shape, problem.before.shape) and _is_reduced(problem):
        alias, shape = problem.written.jnp or "jnp", problem.before.shape
        spread: Rewrite = lambda text: f"{alias}.broadcast_to({text}, {shape!r})"  # noqa: E731
        for second in _dtype_rewrites(problem):
            yield from each_site(problem, [_one_after_other(spread, second)])


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
        types = before.update(
            manual_axis_type=before.mat.update(varying=before.mat.varying | set(gained))
        )
        code = f"{jax}.lax.pcast({problem.init}, {gained!r}, to='varying')"
        yield Change((), (InitChange(problem.path, types, code),))
    if lost:
        cast: Rewrite = lambda text: f"{jax}.lax.pcast({text}, {lost!r}, to='varying')"  # noqa: E731
        yield from each_site(problem, [cast])
    if before.sharding != after.sharding:
        spec = f"{jax}.sharding.{before.sharding.spec!r}"
        again: Rewrite = lambda text: f"{jax}.sharding.reshard({text}, {spec})"  # noqa: E731
        yield from each_site(problem, [again])
