"""Advice for a list or tuple that is longer after each step: an array with a row for each element.

    rows = rows + [x]      becomes     rows = rows.at[i].set(x)
    rows.append(x)         becomes     rows = rows.at[i].set(x)

where the body gets the index of its loop. Any other loop writes the last row and moves the others:

    rows = rows + [x]      becomes     rows = jnp.roll(rows, -1, 0).at[-1].set(x)

After the last step the rows are the elements that the list would have had. This is advice only
where the body does nothing with the list but make it longer.
"""

import ast
from collections.abc import Iterator
from itertools import count

from jax.core import ShapedArray
from jax.tree_util import tree_leaves, tree_unflatten

from checks.equal_values import ValueNumbers
from checks.growth_suggestions import row_at_index
from checks.leaf_problem import changed_site
from checks.rewriting import operand, parsed
from checks.structure_problem import StructureProblem
from checks.tracing import key_paths
from checks.trial import Change, InitChange, subtree_at, with_subtree
from checks.zeros_code import types_code


def growing_list_changes(problem: StructureProblem) -> Iterator[Change]:
    """Changes that make an array of a list that gets an element at each step."""
    buffer = _buffer(problem)
    if buffer is None or not _only_grows(problem):
        return
    appends = problem.written.appends()
    for site in [*problem.sites, *([] if appends is None else [appends])]:
        edit = changed_site(site, lambda text: _row_written(problem, text))
        if edit is not None:
            yield Change((edit,), (InitChange(problem.path, buffer),))


def _buffer(problem: StructureProblem) -> str | None:
    """Code of an array with the initial list as its rows, at its end where rows are moved."""
    row, steps = _new_row(problem), problem.written.body.steps
    if row is None or not isinstance(steps, int) or steps < 1:
        return None
    start = len(problem.before)
    zeros = types_code(ShapedArray((start + steps, *row.shape), row.dtype), problem.written)
    if not start or zeros is None:  # None for typed keys
        return zeros
    where = f"-{start}:" if _index(problem) is None else f":{start}"
    return f"{zeros}.at[{where}].set({problem.written.jnp or 'jnp'}.stack({problem.init}))"


def _new_row(problem: StructureProblem) -> ShapedArray | None:
    """The type of the new last element, if all of them are arrays of one type."""
    before, after = problem.before, problem.after
    if type(before) is not type(after) or type(before) not in (list, tuple):
        return None
    if len(after) != len(before) + 1 or not all(isinstance(item, ShapedArray) for item in after):
        return None
    return after[-1] if len({(item.shape, item.dtype) for item in after}) == 1 else None


def _index(problem: StructureProblem) -> str | None:
    return row_at_index(problem.written.body, len(problem.before))


def _row_written(problem: StructureProblem, text: str) -> str | None:
    """An expression that makes the list longer, as one that writes a row."""
    match parsed(text):
        case ast.Call(func=ast.Attribute(value=rows, attr="append"), args=[new], keywords=[]):
            target = f"{ast.unparse(rows)} = "
        case (
            ast.BinOp(left=rows, op=ast.Add(), right=ast.List(elts=[new]) | ast.Tuple(elts=[new]))
            | ast.List(elts=[ast.Starred(value=rows), new])
            | ast.Tuple(elts=[ast.Starred(value=rows), new])
        ):
            target = ""
        case _:
            return None
    if isinstance(new, ast.Starred):
        return None
    return target + _written(problem, operand(ast.unparse(rows)), ast.unparse(new))


def _written(problem: StructureProblem, rows: str, new: str) -> str:
    where = _index(problem)
    if where is not None:
        return f"{rows}.at[{where}].set({new})"
    return f"{problem.written.jnp or 'jnp'}.roll({rows}, -1, 0).at[-1].set({new})"


def _only_grows(problem: StructureProblem) -> bool:
    """Whether all else that the body returns is the same, however long the list is.

    It is traced with one element more, and each element gets another number.
    """
    try:
        numbers = ValueNumbers()
        shorter, longer = (_others(problem, numbers, extra) for extra in (0, 1))
    except Exception:  # noqa: BLE001  the user's body may fail in any way
        return False
    return shorter is not None and shorter == longer


def _others(problem: StructureProblem, numbers: ValueNumbers, extra: int) -> list[int] | None:
    """Numbers of the new element and of what is returned beside the list; None for another list."""
    rows = type(problem.before)([*problem.before, *problem.after[len(problem.after) - extra :]])
    carry = with_subtree(problem.carry, problem.path, rows)
    body = problem.written.body
    traced = body.trace_all(carry)
    is_element = [path[: len(problem.path)] == problem.path for path in key_paths(carry)]
    around = [[False] * len(tree_leaves(types)) for types in (body.before, body.after)]
    is_element = [*around[0], *is_element, *around[1]]
    # Numbers of inputs are negative, so that none is that of a computed value.
    elements, others = count(-1 - extra, -3), count(-3, -3)
    inputs = [next(elements if mark else others) for mark in is_element]
    outputs = tree_unflatten(traced.out_tree, numbers.of_outputs(traced.jaxpr, inputs))
    carry_out = outputs[0] if body.returns_pair else outputs
    *kept, new = subtree_at(carry_out, problem.path)
    if kept != [number for number, mark in zip(inputs, is_element) if mark]:
        return None
    beside = with_subtree(carry_out, problem.path, ())
    return [new, *tree_leaves(beside), *tree_leaves(outputs[1] if body.returns_pair else ())]
