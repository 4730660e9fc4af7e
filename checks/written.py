"""What the source of a body says: what it returns for a component, and where a key is added."""

import ast
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.tree_util import SequenceKey

from checks.bindings import last_binding
from checks.source import Place, span_of
from checks.tracing import LoopBody
from checks.written_function import WrittenFunction, python_function, steps

_ANY = (SequenceKey(0),)  # into the functions that are called, whatever they return


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

    @functools.cached_property
    def dataclasses(self) -> str:
        """The name of dataclasses in the body's file, or that which it should have."""
        return self.alias(dataclasses, "dataclasses") or "dataclasses"

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
        found = list(steps(self.function, whole))
        places = [function.place(node) for function, node, _ in found]
        exact = [place for place, (_, _, left) in zip(places, found) if not left]
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

    def elements_read(self, name: str, num_elements: int) -> set[int] | None:
        """Which elements of a sequence the body reads, besides returning it; None if unsure.

        Args:
          name: what the body calls the sequence where it returns it.
          num_elements: how many it has.
        """
        reads = [] if self.function is None else _reads_after_binding(self.function, name)
        subscripts = [node for node in reads if isinstance(node, ast.Subscript)]
        found = [_elements(node, num_elements) for node in subscripts]
        if len(reads) != len(subscripts) + 1 or None in found:
            return None
        return {element for elements in found if elements is not None for element in elements}

    def mentions(self, key: Any) -> int:
        """How often a key is written out in the body."""
        nodes = [] if self.function is None else self.function.nodes()
        return sum(isinstance(node, ast.Constant) and node.value == key for node in nodes)

    def writes_key(self, key: str) -> Place | None:
        """The only expression that writes a key: in a display, as a keyword, or by assignment."""
        return self._only(lambda node: _writes(node, key))

    def writes_any_key(self) -> Place | None:
        """The only assignment to a key that is computed."""
        return self._only(
            lambda node: (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and not isinstance(node.slice, ast.Constant)
            )
        )

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
        functions = {f.code: f for f, _, _ in steps(self.function, _ANY)}
        functions.setdefault(self.function.code, self.function)
        for function in reversed(functions.values()):
            found = [node for node in function.nodes() if is_wanted(node)]
            if len(found) == 1:
                (node,) = found
                node = node.value if isinstance(node, ast.keyword) else node
                return function.place(node)  # pyrefly: ignore[bad-argument-type]
        return None


def _reads_after_binding(function: WrittenFunction, name: str) -> list[ast.expr]:
    """Where a name is read as it is bound in the end: the subscripts, else the name itself."""
    nodes = list(function.nodes())
    loads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
    loads = sorted((n for n in loads if isinstance(n.ctx, ast.Load)), key=span_of)
    if not loads or function.node is None or isinstance(function.node, ast.Lambda):
        return []
    binding = last_binding(function.node.body, loads[-1])
    start = 0 if binding is None else binding.end_lineno or binding.lineno
    subscripts = {id(n.value): n for n in nodes if isinstance(n, ast.Subscript)}
    return [subscripts.get(id(load), load) for load in loads if load.lineno > start]


def _elements(node: ast.Subscript, num_elements: int) -> range | None:
    """Which elements a subscript with constants reads."""
    rows = range(num_elements)
    try:
        if isinstance(node.slice, ast.Slice):
            bounds = (node.slice.lower, node.slice.upper, node.slice.step)
            return rows[slice(*(None if b is None else ast.literal_eval(b) for b in bounds))]
        index = rows[ast.literal_eval(node.slice)]
    except (IndexError, TypeError, ValueError):
        return None
    return range(index, index + 1)


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
