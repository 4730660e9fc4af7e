"""Advice for a carry that gets longer at each step: a buffer that is long enough from the start.

A loop whose index the body gets writes its row in place:

    c = jnp.concatenate([c, row])     becomes     c = c.at[i + 1].set(row[0])

and any other keeps the last rows of what it joins, or the first ones if the new row comes first:

    c = jnp.append(c, x)              becomes     c = jnp.append(c, x)[1:]
    c = jnp.append(x, c)              becomes     c = jnp.append(x, c)[:-1]

After the last step each buffer holds what the growing array would have held.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from checks.displays import two_arguments
from checks.growth import growth_of
from checks.leaf_problem import LeafProblem, changed_site, dtype_code, placed
from checks.naming import parameter_name
from checks.rewriting import call_method, operand
from checks.tracing import LoopBody
from checks.trial import Change, InitChange


class _Axis(NamedTuple):
    """An axis that grows at each step, from how many elements and by how many."""

    axis: int
    start: int
    by: int


def growth_changes(problem: LeafProblem) -> Iterator[Change]:
    """Changes that make a buffer of a carry that grows."""
    grown, steps = _growing_axis(problem), problem.written.body.steps
    if grown is None or not isinstance(steps, int) or steps < 1:
        return
    growth = growth_of(problem.written.body, problem.carry, problem.path, grown.axis)
    if growth is None:
        return
    shape = list(problem.before.shape)
    shape[grown.axis] += grown.by * steps
    leading = ":, " * grown.axis
    at_front = _buffer(problem, tuple(shape), f"{leading}:{grown.start}")
    at_end = _buffer(problem, tuple(shape), f"{leading}-{grown.start}:")
    if growth.side == "end" and not growth.reads_newest:
        yield from _in_place(problem, grown, at_front)
    kept = f"[{leading}{grown.by}:]" if growth.side == "end" else f"[{leading}:-{grown.by}]"
    for site in problem.sites:
        edit = changed_site(site, lambda text: call_method(text, kept))
        if edit is not None:
            yield Change((edit,), (at_end if growth.side == "end" else at_front,))


def _growing_axis(problem: LeafProblem) -> _Axis | None:
    before, after, provenance = problem.before.shape, problem.after.shape, problem.provenance
    if provenance is None or provenance.primitive not in ("concatenate", "pad"):
        return None
    axes = [i for i, (n, m) in enumerate(zip(before, after)) if n != m]
    if len(before) != len(after) or len(axes) != 1:
        return None
    (axis,) = axes
    by = after[axis] - before[axis]
    return _Axis(axis, before[axis], by) if isinstance(by, int) and by > 0 else None


def _buffer(problem: LeafProblem, shape: tuple[Any, ...], where: str) -> InitChange:
    """The initial carry as a buffer of zeros that begins or ends with what it was."""
    alias = problem.written.jnp
    code = f"{alias or 'jnp'}.zeros({shape!r}, {dtype_code(problem.before.dtype, alias)})"
    code = placed(code, problem.before, problem.written)
    if 0 not in problem.before.shape:
        code += f".at[{where}].set({problem.init})"
    return InitChange(problem.path, code)


def _in_place(problem: LeafProblem, grown: _Axis, buffer: InitChange) -> Iterator[Change]:
    for row in ("", "[0]"):
        for site in problem.sites:
            edit = changed_site(site, lambda text, row=row: _row_written(problem, grown, text, row))
            if edit is not None:
                yield Change((edit,), (buffer,))


def _row_written(problem: LeafProblem, grown: _Axis, text: str, row: str) -> str | None:
    """The call that joins the carry and a row, as a write of the row where the index says."""
    joined, where = two_arguments(text), row_at_index(problem.written.body, grown.start)
    if joined is None or where is None or grown.axis or grown.by != 1:
        return None
    carry, new = joined
    # A name is what the carry's part has been unpacked to.
    if not carry.isidentifier() and carry.replace('"', "'") != problem.parameter:
        return None
    value = operand(new) + row if row else new
    return f"{carry}.at[{where}].set({value})"


def row_at_index(body: LoopBody, start: int) -> str | None:
    """Which row a step adds to an array that starts with some, as code; None without an index.

    Example:
      >>> row_at_index(LoopBody(lambda i, c: c, first_index=2), 5)
      'i + 3'
    """
    index = "" if body.first_index is None else parameter_name(body.fun, 0)
    if not index or body.first_index is None:
        return None
    offset = start - body.first_index
    return f"{index} {'+' if offset > 0 else '-'} {abs(offset)}" if offset else index
