"""What the source of a body says: what it returns for a component, and where a key is added."""

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from checks.source import Place, Span, span_of, syntax_of
from checks.tracing import LoopBody


def python_function(fun: Callable[..., Any]) -> FunctionType | None:
    """The function written in Python that a callable ends up calling, if that can be told."""
    inner: Any = fun
    for _ in range(10):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif inspect.ismethod(inner):
            inner = inner.__func__
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        elif isinstance(inner, FunctionType):
            return inner
        else:
            inner = getattr(type(inner), "__call__", None)
    return None


def module_alias(fun: Callable[..., Any], module: ModuleType, usual: str) -> str | None:
    """The name by which a function's file calls a module: the usual one, another, or None."""
    function = python_function(fun)
    names = {} if function is None else function.__globals__
    if names.get(usual) is module:
        return usual
    return next((name for name, value in names.items() if value is module), None)


class WrittenBody:
    """The source of a loop's body, as far as it can be read."""

    def __init__(self, body: LoopBody) -> None:
        self.body = body
        function = python_function(body.fun)
        self.code: CodeType | None = None if function is None else function.__code__
        self.node = None if self.code is None else syntax_of(self.code)

    @functools.cached_property
    def jnp(self) -> str | None:
        """The name of jax.numpy in the body's file."""
        return module_alias(self.body.fun, jax.numpy, "jnp")

    @functools.cached_property
    def jax(self) -> str:
        """The name of jax in the body's file, or that which it should have."""
        return module_alias(self.body.fun, jax, "jax") or "jax"

    def place(self, node: ast.expr | ast.stmt) -> Place | None:
        """Where a node of the body's syntax tree stands."""
        if self.code is None:
            return None
        span = span_of(node)
        return Place(self.code.co_filename, span.line, self.code.co_qualname, span, self.code)

    def returned(self, path: tuple[Any, ...]) -> tuple[Place | None, bool]:
        """What the body returns for a component of the carry, and whether it is exactly that.

        A function with several returns is no help; where a display ends before the path does, it
        is the expression that holds the component.
        """
        node = self._returned_carry()
        if node is None:
            return self._anything_returned(), False
        for key in path:
            child = _child(node, key)
            if child is None:
                return self.place(node), False
            node = child
        return self.place(node), True

    def _returned_carry(self) -> ast.expr | None:
        values = list(self._returns())
        if len(values) != 1 or values[0] is None:
            return None
        (value,) = values
        if not self.body.returns_pair:
            return value
        is_pair = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == 2
        return value.elts[0] if is_pair else None  # pyrefly: ignore[missing-attribute]

    def _anything_returned(self) -> Place | None:
        values = [value for value in self._returns() if value is not None]
        if len(values) == 1 and self.node is not None:
            return self.place(values[0])
        if self.node is None:
            return None
        line = self.node.lineno
        span = Span(line, self.node.col_offset, line, self.node.col_offset)
        place = self.place(self.node)
        return None if place is None else place._replace(line=line, span=span)

    def _returns(self) -> Iterator[ast.expr | None]:
        if isinstance(self.node, ast.Lambda):
            yield self.node.body
        elif self.node is not None:
            yield from _returns(self.node.body)

    def writes_key(self, key: str) -> Place | None:
        """The only line that writes a key: in a display, as a keyword, or by an assignment."""
        if self.node is None:
            return None
        found = [node for node in ast.walk(self.node) if _writes(node, key)]
        return self.place(found[0]) if len(found) == 1 else None

    def calls(self, name: str) -> Place | None:
        """The only call of a function or class of that name."""
        if self.node is None:
            return None
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        found = [node for node in calls if ast.unparse(node.func).rpartition(".")[2] == name]
        return self.place(found[0]) if len(found) == 1 else None


def _returns(statements: list[ast.stmt]) -> Iterator[ast.expr | None]:
    for statement in statements:
        if isinstance(statement, ast.Return):
            yield statement.value
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody", "handlers"):
                inner = getattr(statement, name, [])
                yield from _returns(
                    [s for h in inner if isinstance(h, ast.ExceptHandler) for s in h.body]
                )
                yield from _returns([s for s in inner if isinstance(s, ast.stmt)])


def _child(node: ast.expr, key: Any) -> ast.expr | None:
    match node, key:
        case ast.Tuple(elts=elts) | ast.List(elts=elts), SequenceKey(idx=index):
            starred = any(isinstance(e, ast.Starred) for e in elts)
            return None if starred or index >= len(elts) else elts[index]
        case ast.Dict(keys=keys, values=values), DictKey(key=name):
            pairs = zip(keys, values)
            return next(
                (v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name), None
            )
        case ast.Call(keywords=keywords), GetAttrKey(name=name) | DictKey(key=name):
            return next((k.value for k in keywords if k.arg == name), None)
    return None


def _writes(node: ast.AST, key: str) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value=value), ctx=ast.Store()):
            return value == key
        case ast.keyword(arg=name):
            return name == key
        case ast.Call(func=ast.Attribute(attr="setdefault"), args=[ast.Constant(value=value), *_]):
            return value == key
        case ast.Dict(keys=keys):
            return any(isinstance(k, ast.Constant) and k.value == key for k in keys)
    return False
