"""Every core program under every interpreter, setting and tool: it gives what it gives without."""

import jax
import pytest

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS
from tests.helpers.programs import CORE, Program
from tests.rules.interpreters import INTERPRETERS
from tests.rules.transformations import Transformation


@pytest.mark.parametrize("entry", CORE, ids=lambda entry: entry.name)
@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda interpreter: interpreter.name)
def test_interpreter(interpreter: Transformation, entry: Program) -> None:
    """A program gives JAX's results, whatever runs it."""
    args = entry.arguments()
    got = interpreter.apply(entry.bind(OURS), args)
    assert_same(got, entry.bind(JAX)(*args), rtol=entry.rtol, weak_types=False)


@pytest.mark.parametrize("entry", CORE, ids=lambda entry: entry.name)
def test_replace_lax(entry: Program) -> None:
    """A program that calls JAX's loops by name runs ours where they are replaced."""
    args, names = entry.arguments(), ("scan", "while_loop", "fori_loop", "map")
    by_name = {name: lambda *a, _name=name, **k: getattr(jax.lax, _name)(*a, **k) for name in names}
    with loops.replace_lax():
        got = entry.fun(type("ByName", (), by_name), *args)
    assert_same(got, entry.bind(JAX)(*args), rtol=entry.rtol)
