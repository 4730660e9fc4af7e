"""The examples in the docstrings run, and every public function has one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("checks", "diagnostics", "loops")


def module_names():
    """The dotted names of all modules of the three packages."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]


def public_functions():
    """The functions among the public names of the packages, as `package.name`."""
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name, value in sorted(vars(importlib.import_module(package)).items())
        if inspect.isroutine(value) and not name.startswith("_")
    ]


@pytest.mark.parametrize("name", module_names())
def test_examples_run(name, capsys):
    """Every example in the module's docstrings prints what it shows."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed = doctest.testmod(importlib.import_module(name), optionflags=flags).failed

    assert 0 == failed, capsys.readouterr().out


@pytest.mark.parametrize("name", public_functions())
def test_public_functions_have_an_example(name):
    """Whoever looks up a public function finds an example that has been run."""
    package, _, function = name.partition(".")
    examples = doctest.DocTestFinder().find(vars(importlib.import_module(package))[function])

    assert any(test.examples for test in examples)
