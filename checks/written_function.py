"""The source of a function: what it returns, what its names stand for, which others it calls."""

import ast
import functools
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from checks.bindings import value_read
from checks.edits import method_called
from checks.source import Place, span_of, syntax_of


def python_function(fun: Any) -> FunctionType | None:
    """The function written in Python that a callable ends up calling, if that can be told."""
    for _ in range(10):
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif inspect.ismethod(fun):
            fun = fun.__func__
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        elif isinstance(fun, FunctionType):
            return fun
        else:
            fun = method_called(fun)
    return None


class WrittenFunction:
    """A function and its syntax tree, which is None where the source cannot be read."""

    def __init__(self, function: FunctionType) -> None:
        self.function, self.code = function, function.__code__
        self.node = syntax_of(self.code)

    def place(self, node: ast.expr) -> Place:
        """Where a node of the syntax tree stands."""
        span = span_of(node)
        return Place(self.code.co_filename, span.line, self.code.co_qualname, span, self.code)

    def returns(self) -> list[ast.expr]:
        """What the function's return statements return."""
        if isinstance(self.node, ast.Lambda):
            return [self.node.body]
        return [] if self.node is None else list(_returns(self.node.body))

    def assigned(self, name: ast.Name) -> ast.expr | None:
        """The expression that a name is bound to where it is read, if that can be told."""
        return None if self.node is None else value_read(self.node, name)

    def called(self, node: ast.expr) -> "WrittenFunction | None":
        """The Python function that a call of a plain name calls."""
        value = self.value_of(node) if isinstance(node, ast.Name) else None
        function = python_function(value) if callable(value) else None
        # A class is called like a function, and returns nothing itself.
        return None if function is None or isinstance(value, type) else WrittenFunction(function)

    def argument(self, node: ast.expr, key: Any) -> ast.expr | None:
        """The positional argument of a call of a class that becomes the field of a key."""
        if not (isinstance(node, ast.Call) and isinstance(key, GetAttrKey)):
            return None
        made = self.value_of(node.func)
        fields = getattr(made, "_fields", None) or getattr(made, "__dataclass_fields__", ())
        names = list(fields) if isinstance(made, type) else []
        position = names.index(key.name) if key.name in names else len(node.args)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        return None if starred or position >= len(node.args) else node.args[position]

    def value_of(self, node: ast.expr) -> Any:
        """What a name stands for outside of the function, or an attribute of such; else None."""
        if isinstance(node, ast.Attribute):
            return getattr(self.value_of(node.value), node.attr, None)
        if not isinstance(node, ast.Name):
            return None
        closure = inspect.getclosurevars(self.function)
        return {**closure.globals, **closure.nonlocals}.get(node.id)

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the function's body; its decorators are not part of it."""
        body = [] if self.node is None else self.node.body
        for node in body if isinstance(body, list) else [body]:
            yield from ast.walk(node)


_Path = tuple[Any, ...]


def steps(
    function: WrittenFunction, path: _Path, depth: int = 8
) -> Iterator[tuple[WrittenFunction, ast.expr, _Path]]:
    """The expressions on the way from a function's return to a component of what it returns."""
    values = function.returns()
    node: ast.expr | None = values[0] if len(values) == 1 else None
    while node is not None and depth:
        depth -= 1
        yield function, node, path
        node, path, function = _next(function, node, path)


def _next(
    function: WrittenFunction, node: ast.expr, path: _Path
) -> tuple[ast.expr | None, _Path, WrittenFunction]:
    if path and (child := _child(node, path[0]) or function.argument(node, path[0])) is not None:
        return child, path[1:], function
    match node:
        case ast.Name():
            return function.assigned(node), path, function
        case ast.Subscript(value=value, slice=ast.Constant(value=int() | str() as key)):
            step = SequenceKey(key) if isinstance(key, int) else DictKey(key)
            return value, (step, *path), function
        case ast.Call(func=called):
            inner = function.called(called)
            values = [] if inner is None else inner.returns()
            if inner is not None and len(values) == 1:
                return values[0], path, inner
    return None, path, function


def _returns(statements: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in statements:
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield statement.value
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, [])
            for handler in inner:
                yield from _returns(getattr(handler, "body", []) if name == "handlers" else [])
            yield from _returns([s for s in inner if isinstance(s, ast.stmt)])


def _child(node: ast.expr, key: Any) -> ast.expr | None:
    match node, key:
        case ((ast.Tuple(elts=elts) | ast.List(elts=elts)), SequenceKey(idx=index)):
            starred = any(isinstance(e, ast.Starred) for e in elts)
            return None if starred or index >= len(elts) else elts[index]
        case ast.Dict(keys=keys, values=values), DictKey(key=name):
            pairs = zip(keys, values)
            found = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name]
            return found[-1] if found else None
        case ast.Call(keywords=keywords), (GetAttrKey(name=name) | DictKey(key=name)):
            return next((k.value for k in keywords if k.arg == name), None)
    return None
