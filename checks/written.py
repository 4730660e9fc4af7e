"""What the source of a body says: what it returns for a component, and where a key is added."""

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from checks.edits import method_called
from checks.source import Place, span_of, syntax_of
from checks.tracing import LoopBody


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

    def assigned(self, name: str) -> ast.expr | None:
        """The expression that a name is bound to, if only one statement binds it."""
        nodes = [] if self.node is None else list(ast.walk(self.node))
        bound = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
        if sum(isinstance(n.ctx, ast.Store) for n in bound) != 1:
            return None
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return value
        return None

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


class Returned(NamedTuple):
    """What a body returns for a component: `exact` expressions, and the innermost one known."""

    exact: tuple[Place, ...]
    place: Place | None


class WrittenBody:
    """The source of a loop's body, and of the functions that it returns the values of."""

    def __init__(self, body: LoopBody) -> None:
        self.body = body
        function = python_function(body.fun)
        self.function = None if function is None else WrittenFunction(function)

    @functools.cached_property
    def jnp(self) -> str | None:
        """The name of jax.numpy in the body's file."""
        return self.alias(jax.numpy, "jnp")

    @functools.cached_property
    def jax(self) -> str:
        """The name of jax in the body's file, or that which it should have."""
        return self.alias(jax, "jax") or "jax"

    @property
    def names(self) -> dict[str, Any]:
        """What names stand for where advice is pasted: those of the file, and what it imports."""
        written = {} if self.function is None else self.function.function.__globals__
        return {"jax": jax, "jnp": jax.numpy, "dataclasses": dataclasses, **written}

    def alias(self, thing: Any, usual: str) -> str | None:
        """The name of a module or class in the body's file, the usual one if it has that."""
        names = {} if self.function is None else self.function.function.__globals__
        if names.get(usual) is thing:
            return usual
        return next((name for name, value in names.items() if value is thing), None)

    def returned(self, path: tuple[Any, ...]) -> Returned:
        """What the body returns for a component of the carry.

        Names are followed to what they are bound to, and calls into the functions that are called,
        as far as both can be told; a function with several returns is no help.
        """
        whole = (SequenceKey(0), *path) if self.body.returns_pair else path
        if self.function is None:
            return Returned((), None)
        steps = list(_steps(self.function, whole))
        places = [function.place(node) for function, node, _ in steps]
        exact = [place for place, (_, _, left) in zip(places, steps) if not left]
        known = exact or places
        return Returned(tuple(exact), known[-1] if known else self._first_line())

    def returned_pair(self) -> Place | None:
        """The pair of carry and y that the body of a scan returns, where it is written as one."""
        if self.function is None or not self.body.returns_pair:
            return None
        values = self.function.returns()
        is_pair = len(values) == 1 and isinstance(values[0], ast.Tuple)
        return self.function.place(values[0]) if is_pair else None

    def _first_line(self) -> Place | None:
        if self.function is None:
            return None
        code = self.function.code
        return Place(code.co_filename, code.co_firstlineno, code.co_qualname)

    def elements_read(self, name: str) -> set[int] | None:
        """Which elements of a sequence the body reads, besides returning it; None if unsure."""
        nodes = [] if self.function is None else list(self.function.nodes())
        loads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
        loads = [n for n in loads if isinstance(n.ctx, ast.Load)]
        indices = []
        for node in nodes:
            match node:
                case ast.Subscript(value=ast.Name(id=of), slice=ast.Constant(value=int(index))):
                    indices += [index] if of == name else []
        return set(indices) if len(loads) == len(indices) + 1 else None

    def writes_key(self, key: str) -> Place | None:
        """The only expression that writes a key: in a display, as a keyword, or by assignment."""
        return self._only(lambda node: _writes(node, key))

    def removes_key(self, key: str) -> Place | None:
        """The only expression that takes a key out of a dictionary."""
        return self._only(lambda node: _removes(node, key))

    def appends(self) -> Place | None:
        """The only call that makes a list longer."""
        return self._only(
            lambda node: (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "extend", "insert")
            )
        )

    def calls(self, name: str) -> Place | None:
        """The only call of a function or class of that name."""
        return self._only(
            lambda node: (
                isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
            )
        )

    def _only(self, is_wanted: Callable[[ast.AST], bool]) -> Place | None:
        """The only expression of a kind in the functions whose values the body returns."""
        if self.function is None:
            return None
        functions = {f.code: f for f, _, _ in _steps(self.function, _ANY)}
        functions.setdefault(self.function.code, self.function)
        for function in reversed(functions.values()):
            found = [node for node in function.nodes() if is_wanted(node)]
            if len(found) == 1:
                (node,) = found
                node = node.value if isinstance(node, ast.keyword) else node
                return function.place(node)  # pyrefly: ignore[bad-argument-type]
        return None


_Path = tuple[Any, ...]
_ANY: _Path = (SequenceKey(0),)  # into the functions that are called, whatever they return


def _steps(
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
        case ast.Name(id=name):
            return function.assigned(name), path, function
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


def _removes(node: ast.AST, key: str) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value=value), ctx=ast.Del()):
            return value == key
        case ast.Call(func=ast.Attribute(attr="pop"), args=[ast.Constant(value=value), *_]):
            return value == key
    return False
