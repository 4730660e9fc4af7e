"""Advice for a leaf whose type changes: candidates, the likeliest first.

Each candidate is only a guess made from the two types and from the expressions that led to the
difference; `checks.explanation` tries them and gives the first that works.
"""

from collections.abc import Iterator
from typing import Any

from checks.dtype_suggestions import dtype_changes, dtype_rewrites, is_numeric, kind_of
from checks.growth_suggestions import growth_changes
from checks.leaf_problem import (
    LeafProblem,
    Rewrite,
    each_early_site,
    each_site,
    early_change,
    init_of_type,
)
from checks.placement_suggestions import placement_changes, with_placement
from checks.rewriting import (
    call_method,
    called_name,
    has_keyword,
    laid_out,
    receiver,
    with_keyword,
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
    changes = dtype_changes if same_shape else _shape_changes if same_dtype else _both_changes
    yield from with_placement(problem, changes(problem))


# ---------------------------------------------------------------- shapes


def _shape_changes(problem: LeafProblem) -> Iterator[Change]:
    before, after = problem.before, problem.after
    yield from growth_changes(problem)
    yield from each_early_site(problem, [_keep_axes], only_ones=True)
    for reduction in problem.upstream:
        yield early_change(problem, reduction.place, _keep_axes, only_ones=True)
    yield from each_early_site(problem, [_drop_axes], only_ones=True)
    yield from each_early_site(
        problem, _shape_rewrites(problem), only_ones=_differ_in_ones(problem)
    )
    if _starts_too_small(problem):
        yield init_of_type(problem, before.dtype, after.shape)


def _keep_axes(text: str) -> str | None:
    return with_keyword(text, "keepdims", "True")


def _drop_axes(text: str) -> str | None:
    return without_keyword(text, "keepdims")


def _differ_in_ones(problem: LeafProblem) -> bool:
    return _without_ones(problem.before.shape) == _without_ones(problem.after.shape)


def _starts_too_small(problem: LeafProblem) -> bool:
    """Whether the carry has to start larger, because of data that the loop brings with it.

    A shape that is computed from the carry itself is more likely a mistake of the body's.
    """
    return not problem.from_carry and _broadcasts(problem.before.shape, problem.after.shape)


def _shape_rewrites(problem: LeafProblem) -> list[Rewrite]:
    """Ways to bring back a shape without changing which element stands where."""
    before, after = problem.before.shape, problem.after.shape
    rewrites: list[Rewrite] = [
        lambda text: receiver(text) if called_name(text) in _SHAPE_ONLY else None,
        lambda text: laid_out(text) if called_name(text) in ("squeeze", "expand_dims") else None,
        lambda text: call_method(text, "[0]") if called_name(text) == "split" else None,
        lambda text: _unused_row(problem, text),
        lambda text: _as_long_as_before(problem, text),
    ]
    primitive = "" if problem.provenance is None else problem.provenance.primitive
    if primitive == "transpose" and sorted(before) == sorted(after):
        rewrites += _transpositions(before, after)
    elif primitive == "reshape" or _differ_in_ones(problem):
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


def _as_long_as_before(problem: LeafProblem, text: str) -> str | None:
    """A convolution, or a transform back, of as many elements as there were."""
    before, after = problem.before.shape, problem.after.shape
    if called_name(text) == "convolve" and not has_keyword(text, "mode"):
        return with_keyword(text, "mode", "'same'")
    # Half a spectrum does not tell an odd length from the even one before it.
    longer = [n for n, m in zip(before, after) if n != m]
    is_odd = len(before) == len(after) and len(longer) == 1 and sum(before) == sum(after) + 1
    if called_name(text) == "irfft" and is_odd and not has_keyword(text, "n"):
        return with_keyword(text, "n", str(longer[0]))
    return None


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
    was_key, is_key = (kind_of(aval.dtype) < 0 for aval in (problem.before, problem.after))
    if was_key != is_key:
        convert = "wrap_key_data" if was_key else "key_data"
        name = f"{problem.written.jax}.random.{convert}"
        back = ("key_data", "wrap_key_data")
        undone: Rewrite = lambda text: receiver(text) if called_name(text) in back else None  # noqa: E731
        yield from each_site(problem, [undone, lambda text: f"{name}({text})"])


def _both_changes(problem: LeafProblem) -> Iterator[Change]:
    if not is_numeric(problem):
        yield from _key_changes(problem)
        return
    cuts = kind_of(problem.before.dtype) > kind_of(problem.after.dtype)
    if _starts_too_small(problem) and not cuts:
        yield init_of_type(problem, problem.after.dtype, problem.after.shape)
    shapes = [_keep_axes, _drop_axes, *_shape_rewrites(problem)]
    only_ones = _differ_in_ones(problem)
    if kind_of(problem.before.dtype) < kind_of(problem.after.dtype):
        start = init_of_type(problem, problem.after.dtype, problem.before.shape)
        for change in each_early_site(problem, shapes, only_ones=only_ones):
            yield Change(change.edits, start.init)
        return
    for second in dtype_rewrites(problem):
        both = [_one_after_other(first, second) for first in shapes]
        yield from each_early_site(problem, both, only_ones=only_ones)


def _one_after_other(first: Rewrite, second: Rewrite) -> Rewrite:
    def both(text: str) -> str | None:
        half = first(text)
        return None if half is None else second(half)

    return both
