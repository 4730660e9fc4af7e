"""Names are followed to what they are bound to where they are read."""

import ast

import pytest

from checks.bindings import value_read


def read(source: str) -> str | None:
    """What the name that a function returns is bound to there."""
    function = ast.parse(source).body[0]
    (returned,) = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    name = returned.value
    assert isinstance(function, ast.FunctionDef)
    assert isinstance(name, ast.Name)
    value = value_read(function, name)
    return None if value is None else ast.unparse(value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("a = 1; return a", "1"),
        ("a = 1; a = a + 1; return a", "a + 1"),
        ("a, b = 1, 2; a = b; return a", "b"),
        ("a = 1; b = 2; return a", "1"),
        ("a = 1; (a, b) = f(); return a", None),
        ("a = 1; a += 1; return a", None),
        ("return a", None),
    ],
)
def test_the_last_statement_that_binds(body, value):
    """The nearest statement before counts; one that unpacks or adds to the name tells nothing."""
    assert value == read(f"def f(a, b): {body}")


def test_a_branch_that_may_bind():
    """Of two statements one may not have run; the only one is what must have been meant."""
    assert read("def f(c):\n    a = 1\n    if c:\n        a = 2\n    return a") is None
    assert "2" == read("def f(a, c):\n    if c:\n        a = 2\n    return a")
    assert "3" == read("def f(a, c):\n    if c:\n        a = 2\n    a = 3\n    return a")


def test_a_block_around():
    """A statement in the same block, or before the block."""
    assert "2" == read("def f(a):\n    a = 1\n    with c:\n        a = 2\n        return a")
    assert "1" == read("def f(a):\n    a = 1\n    with c:\n        b = 2\n        return a")


def test_a_loop_around():
    """What is bound later in a loop is read in its next turn."""
    assert read("def f(a):\n    a = 1\n    while a:\n        return a\n        a = 2") is None
