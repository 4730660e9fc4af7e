"""Rules that are registered when the module that they are for is loaded."""

import importlib
import importlib.machinery
import subprocess
import sys
from pathlib import Path

import pytest

from loops.interop.when_imported import _Finder, when_imported

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """The name of a module with an empty registry, not loaded yet."""
    name = f"module_of_{request.node.name}"  # each has its own, as registrations stay
    (tmp_path / f"{name}.py").write_text("rules = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_registered_after_the_import(module):
    """A rule that is registered before the module is loaded is there after its import."""
    when_imported(module, lambda m: m.rules.update(ours=1))

    assert module not in sys.modules
    assert {"ours": 1} == importlib.import_module(module).rules


def test_registered_at_once(module):
    """A rule for a module that is loaded already is registered at once."""
    loaded = importlib.import_module(module)
    when_imported(module, lambda m: m.rules.update(ours=1))

    assert {"ours": 1} == loaded.rules


def test_registered_again_after_a_reload(module):
    """A module that is executed again, with an empty registry, gets its rules again."""
    when_imported(module, lambda m: m.rules.update(ours=1))
    loaded = importlib.import_module(module)
    del loaded.rules["ours"]

    assert {"ours": 1} == importlib.reload(loaded).rules


def test_the_import_leaves_no_trace(module):
    """The module's loader is the usual one, as it is without a registration."""
    when_imported(module, lambda m: m.rules.update(ours=1))
    spec = importlib.import_module(module).__spec__
    assert spec is not None
    loader = spec.loader

    assert "exec_module" not in vars(loader)
    assert type(loader) is importlib.machinery.SourceFileLoader


def test_a_module_that_fails(module, tmp_path):
    """A module that raises while it is loaded raises that, and is waited for all the same."""
    (tmp_path / f"{module}.py").write_text("raise KeyError('its own')\n")
    when_imported(module, lambda m: m.rules.update(ours=1))
    with pytest.raises(KeyError, match="its own"):
        importlib.import_module(module)
    (tmp_path / f"{module}.py").write_text("rules = {}  # mended\n")

    assert {"ours": 1} == importlib.import_module(module).rules


def test_other_modules_are_not_looked_for():
    """The finder leaves every module that nobody waits for to the other finders."""
    assert _Finder.find_spec("json", None) is None


def test_importing_loops_loads_no_optional_interpreter():
    """`import loops` loads none of the modules that it waits for."""
    code = (
        "import loops, sys; from loops.interop.when_imported import _registrations as waits; "
        "print(len(waits), *(set(waits) & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    number, *loaded = run.stdout.split()

    assert int(number) > 0
    assert [] == loaded
