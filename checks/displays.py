"""Tuples, lists and dictionaries that are written out, rewritten as text."""

import ast
from typing import Any

from checks.rewriting import call_method, operand, parsed


def swapped(text: str, first: int, second: int) -> str | None:
    """A tuple or list with two elements exchanged; None for any other expression.

    Example:
      >>> swapped("(x + 1, c)", 0, 1), swapped("(a, b, c)", 0, 2)
      ('(c, x + 1)', '(c, b, a)')
    """
    node = parsed(text)
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    if second >= len(items) or any(isinstance(item, ast.Starred) for item in items):
        return None
    items[first], items[second] = items[second], items[first]
    return None if node is None else ast.unparse(node)


def with_other_key(text: str, key: Any, other: Any) -> str | None:
    """A dictionary written out, with one key by another name; None for any other expression.

    Example:
      >>> with_other_key("{'a': x, **rest}", "a", "b")
      "{'b': x, **rest}"
    """
    node = parsed(text)
    keys = node.keys if isinstance(node, ast.Dict) else []
    found = [k for k in keys if isinstance(k, ast.Constant) and k.value == key]
    if len(found) != 1 or node is None:
        return None
    found[0].value = other
    return ast.unparse(node)


def element(text: str, index: Any) -> str:
    """An element of a sequence or a dictionary: written out where that is, else indexed.

    Example:
      >>> element("(a + b, c)", 0), element("f(x)", 0), element("{'a': x}", "a")
      ('a + b', 'f(x)[0]', 'x')
    """
    node = parsed(text)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        found = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == index]
        return ast.unparse(found[0]) if len(found) == 1 else f"{text}[{index!r}]"
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    if items and not any(isinstance(item, ast.Starred) for item in items):
        return ast.unparse(items[index])
    return call_method(text, f"[{index!r}]")


def with_rest(text: str, rest: str, kind: type) -> str:
    """A tuple or list with more elements after its own.

    Example:
      >>> with_rest("(a + b,)", "c[1:]", tuple), with_rest("f(x)", "c[1:]", list)
      ('(a + b, *c[1:])', '[*f(x), *c[1:]]')
    """
    node = parsed(text)
    is_display = isinstance(node, ast.Tuple if kind is tuple else ast.List)
    items = node.elts if is_display and isinstance(node, ast.Tuple | ast.List) else []
    own = ", ".join(map(ast.unparse, items)) if is_display else f"*{operand(text)}"
    inner = f"{own}, *{rest}" if own else f"*{rest},"
    return f"({inner})" if kind is tuple else f"[{inner}]"


def as_arguments(text: str) -> str:
    """The elements of a sequence, as arguments of a call.

    Example:
      >>> as_arguments("(a + b, *c)"), as_arguments("f(x)"), as_arguments("a or b")
      ('a + b, *c', '*f(x)', '*(a or b)')
    """
    node = parsed(text)
    is_display = isinstance(node, ast.Tuple | ast.List)
    return ", ".join(map(ast.unparse, node.elts)) if is_display else f"*{operand(text)}"


def two_arguments(text: str) -> tuple[str, str] | None:
    """The two arrays that a call joins: `f(a, b)` or `f([a, b])`, with nothing but an axis besides.

    Example:
      >>> two_arguments("jnp.concatenate([c, x + 1])")
      ('c', 'x + 1')
    """
    node = parsed(text)
    if not isinstance(node, ast.Call):
        return None
    items = node.args
    if len(items) == 1 and isinstance(items[0], ast.Tuple | ast.List):
        items = items[0].elts
    if len(items) != 2 or any(isinstance(item, ast.Starred) for item in items):
        return None
    return ast.unparse(items[0]), ast.unparse(items[1])
