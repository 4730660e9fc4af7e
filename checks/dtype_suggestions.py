"""Advice for a leaf whose dtype changes: a cast, a `dtype=`, or an initial value of the other type.

What a cast would cut, as that of 0.5 to an integer, is not cast: then the loop starts from floats.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from checks.leaf_problem import (
    LeafProblem,
    Rewrite,
    dtype_code,
    each_site,
    init_of_type,
    rewritten,
)
from checks.rewriting import (
    arguments_after_array,
    call_method,
    called_name,
    casts_to_a_python_type,
    has_keyword,
    names_read,
    with_floor_division,
    with_integers,
    with_keyword,
    with_other_cast,
)
from checks.trial import Change


def kind_of(dtype: Any) -> int:
    """Where a dtype stands in the order boolean, integer, floating, complex."""
    order = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(order) if jnp.issubdtype(dtype, kind)), -1)


def is_numeric(problem: LeafProblem) -> bool:
    """Whether both types are of numbers or flags: a key can be cast to nothing."""
    return kind_of(problem.before.dtype) >= 0 and kind_of(problem.after.dtype) >= 0


def dtype_changes(problem: LeafProblem) -> Iterator[Change]:
    """Changes that give back a dtype, or start from the other."""
    if not is_numeric(problem):
        return
    before, after = problem.before.dtype, problem.after.dtype
    start = init_of_type(problem, after, problem.before.shape)
    if kind_of(before) < kind_of(after):
        yield from _changes_that_lose_nothing(problem, start)
        return
    if _may_wrap(before, after):
        yield start
    if problem.has_siblings:  # one expression may make leaves of several dtypes
        for site in problem.sites:
            yield from (rewritten(site, rewrite) for rewrite in _casts_to_an_operands(site.text))
    # What is a flag or an index is cast where it is returned: it may be used as one before.
    sites = problem.sites if kind_of(before) == kind_of(after) else problem.sites[::-1]
    yield from each_site(replace(problem, sites=sites), dtype_rewrites(problem))
    if kind_of(before) == kind_of(after):  # else it would cut the initial value
        yield start


def _changes_that_lose_nothing(problem: LeafProblem, start: Change) -> Iterator[Change]:
    """Changes where a cast in the body would cut what it computes, as of 0.5 to an integer."""
    divisions = [rewritten(site, with_floor_division) for site in problem.sites]
    # With a float the loop would end at another step, unless it waits for one.
    if problem.ends_loop and problem.from_itself:
        yield from divisions
    yield from each_site(problem, [lambda text: _whole_numbers(text, problem)])
    yield start
    yield from divisions  # the integer may be needed, as an index
    yield from each_site(problem, [with_integers])
    if kind_of(problem.before.dtype) == 0 and kind_of(problem.after.dtype) == 1:  # flags, counted
        yield from each_site(problem, dtype_rewrites(problem))


def _may_wrap(before: Any, after: Any) -> bool:
    """Whether an integer's values may not fit into the narrower type: into 8 or 16 bits."""
    return kind_of(before) == kind_of(after) == 1 and before.itemsize < min(after.itemsize, 4)


# Functions that make whole numbers and call them floats unless told otherwise.
_MAKE_WHOLE = ("one_hot", "zeros", "ones", "zeros_like", "ones_like", "eye", "identity", "tri")
_ROUND = ("floor", "ceil", "round", "rint", "trunc", "fix")


def _whole_numbers(text: str, problem: LeafProblem) -> str | None:
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    is_whole = called_name(text) in _ROUND and not arguments_after_array(text)  # no decimals
    if is_whole and kind_of(problem.before.dtype) == 1:
        return call_method(text, f".astype({dtype})")
    return with_keyword(text, "dtype", dtype) if called_name(text) in _MAKE_WHOLE else None


def _casts_to_an_operands(text: str) -> list[Rewrite]:
    """Casts to the dtype of each value that an expression reads."""
    return [
        lambda text, name=name: call_method(text, f".astype({name}.dtype)")
        for name in names_read(text)
    ]


def dtype_rewrites(problem: LeafProblem) -> list[Rewrite]:
    """Ways to make an expression's result have the dtype that went in."""
    dtype = dtype_code(problem.before.dtype, problem.written.jnp)
    casts = ("astype", "asarray", "array", "convert_element_type", *_DTYPE_NAMES)
    cast = f".astype({dtype})"
    # What a function computes in another kind of number, it does not compute in this one.
    same_kind = kind_of(problem.before.dtype) == kind_of(problem.after.dtype)

    def asked_for(text: str) -> bool:
        """Whether the author wrote the wider type: then it is its use that ends too late."""
        return called_name(text) in casts or has_keyword(text, "dtype")

    is_half = kind_of(problem.before.dtype) > 1 and problem.before.dtype.itemsize < 4

    def with_dtype(text: str) -> str | None:
        loses = is_half and called_name(text) in _ADD_UP
        draws = hasattr(jax.random, called_name(text))  # of another type, other numbers
        changes = loses or draws or not same_kind
        return None if changes else with_keyword(text, "dtype", dtype)

    return [
        lambda text: None if asked_for(text) else with_dtype(text),
        lambda text: with_other_cast(text, dtype) if casts_to_a_python_type(text) else None,
        lambda text: None if asked_for(text) else call_method(text, cast),
        lambda text: with_other_cast(text, dtype),
        lambda text: with_dtype(text) if has_keyword(text, "dtype") else None,
        lambda text: call_method(text, cast),
    ]


_DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64")
# Functions that must not add up many numbers in half precision.
_ADD_UP = ("sum", "mean", "prod", "cumsum", "cumprod", "var", "std", "average", "nansum", "nanmean")
