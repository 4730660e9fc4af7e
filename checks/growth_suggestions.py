"""Advice for a carry that gets longer at each step: a buffer that is long enough from the start.

A loop whose index the body gets writes its row in place:

    c = jnp.concatenate([c, row])     becomes     c = c.at[i + 1].set(row[0])

and any other keeps the last rows of what it joins. After the last step either buffer holds what the
growing array would have held.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from checks.leaf_problem import LeafProblem, changed_site, dtype_code
from checks.naming import parameter_name
from checks.rewriting import call_method, operand, two_arguments
from checks.trial import Change, InitChange


class _Growth(NamedTuple):
    """An axis that grows at each step, from how many elements and by how many."""

    axis: int
    start: int
    by: int


def growth_changes(problem: LeafProblem) -> Iterator[Change]:
    """Changes that make a buffer of a carry that grows."""
    growth, steps = _growth(problem), problem.written.body.steps
    if growth is None or not isinstance(steps, int) or steps < 1:
        return
    shape = list(problem.before.shape)
    shape[growth.axis] += growth.by * steps
    leading = ":, " * growth.axis
    at_front = _buffer(problem, tuple(shape), f"{leading}:{growth.start}")
    for row in ("", "[0]"):
        for site in problem.sites:
            edit = changed_site(site, lambda text, row=row: _in_place(problem, growth, text, row))
            if edit is not None:
                yield Change((edit,), (at_front,))
    at_end = _buffer(problem, tuple(shape), f"{leading}-{growth.start}:")
    for site in problem.sites:
        edit = changed_site(site, lambda text: call_method(text, f"[{leading}{growth.by}:]"))
        if edit is not None:
            yield Change((edit,), (at_end,))


def _growth(problem: LeafProblem) -> _Growth | None:
    before, after, provenance = problem.before.shape, problem.after.shape, problem.provenance
    if provenance is None or provenance.primitive not in ("concatenate", "pad"):
        return None
    axes = [i for i, (n, m) in enumerate(zip(before, after)) if n != m]
    if len(before) != len(after) or len(axes) != 1:
        return None
    (axis,) = axes
    by = after[axis] - before[axis]
    return _Growth(axis, before[axis], by) if isinstance(by, int) and by > 0 else None


def _buffer(problem: LeafProblem, shape: tuple[Any, ...], where: str) -> InitChange:
    """The initial carry as a buffer of zeros that begins or ends with what it was."""
    alias = problem.written.jnp
    code = f"{alias or 'jnp'}.zeros({shape!r}, {dtype_code(problem.before.dtype, alias)})"
    if 0 not in problem.before.shape:
        code += f".at[{where}].set({problem.init})"
    return InitChange(problem.path, problem.before.update(shape=shape), code)


def _in_place(problem: LeafProblem, growth: _Growth, text: str, row: str) -> str | None:
    """The call that joins the carry and a row, as a write of the row where the index says."""
    body, joined = problem.written.body, two_arguments(text)
    if joined is None or growth.axis or growth.by != 1 or body.first_index is None:
        return None
    index, (carry, new) = parameter_name(body.fun, 0), joined
    if not index or carry.replace('"', "'") != problem.parameter:
        return None
    offset = growth.start - body.first_index
    where = index if offset == 0 else f"{index} {'+' if offset > 0 else '-'} {abs(offset)}"
    value = operand(new) + row if row else new
    return f"{carry}.at[{where}].set({value})"
