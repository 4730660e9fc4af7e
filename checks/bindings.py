"""Which assignment a name gets its value from where it is read.

    total = c["n"] + 1
    total = 0.5 * total
    return total            reads `0.5 * total`

The order of statements tells that, as long as no branch comes between.
"""

import ast
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def value_read(function: Function, name: ast.Name) -> ast.expr | None:
    """The expression that a name is bound to where it is read, if that can be told.

    Args:
      function: the function that reads it.
      name: the node that reads it.
    """
    if not isinstance(function, ast.Lambda):
        binding = last_binding(function.body, name)
        if isinstance(binding, ast.Assign) and (value := _value(binding, name.id)) is not None:
            return value
    bindings = [node for node in ast.walk(function) if _is_bound(node, name.id)]
    if len(bindings) != 1:
        return None
    assignments = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    return next((v for a in assignments if (v := _value(a, name.id)) is not None), None)


def last_binding(statements: Sequence[ast.stmt], name: ast.Name) -> ast.stmt | None:
    """The last statement before a name is read that may bind it; None for a parameter."""
    for block, position in reversed(list(_blocks_around(statements, name))):
        before, around = block[:position], block[position]
        in_loop = [around] if isinstance(around, ast.For | ast.While) else []  # its turn before
        for statement in reversed([*before, *in_loop]):
            if _may_bind(statement, name.id):
                return statement
    return None


def _blocks_around(
    statements: Sequence[ast.stmt], node: ast.AST
) -> Iterator[tuple[Sequence[ast.stmt], int]]:
    """The blocks that a node is in, the outermost first, and which statement of each it is in."""
    for position, statement in enumerate(statements):
        if any(inner is node for inner in ast.walk(statement)):
            yield statements, position
            for block in _blocks(statement):
                yield from _blocks_around(block, node)


def _blocks(statement: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):  # handlers of exceptions, cases of a match
            for inner in value:
                if isinstance(inner, ast.ExceptHandler | ast.match_case):
                    yield inner.body


def _may_bind(statement: ast.stmt, name: str) -> bool:
    return any(_is_bound(node, name) for node in ast.walk(statement))


def _is_bound(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _value(assignment: ast.Assign, name: str) -> ast.expr | None:
    match assignment:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
    return None
