"""Rules for modules that `import jax` does not load, registered when something else loads them.

The registries of the optional interpreters (jet, sparse, key reuse, ...) live in the modules of
those interpreters. Importing them only to register rules would make `import loops` take several
times as long, and nothing that runs while a loop is traced comes before every look into them. So a
finder in front of the import system waits for the few modules by name. It finds nothing itself: it
asks the finders behind it, and adds the registration to the execution of what they found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Register = Callable[[ModuleType], None]

_registrations: dict[str, list[Register]] = {}


def when_imported(name: str, register: Register) -> None:
    """Call `register(module)` each time the module has been loaded, and now if it is loaded."""
    _registrations.setdefault(name, []).append(register)
    if name in sys.modules:
        register(sys.modules[name])


class _Finder:
    """Finds what the other finders find, and calls those who wait for it."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _registrations:
            return None
        others = (f.find_spec for f in sys.meta_path if f is not _Finder)
        spec = next((s for find in others if (s := find(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            _register_after_execution(spec.loader, name)
        return spec


def _register_after_execution(loader: Any, name: str) -> None:
    """Let this loader, which is made anew for each module, register once it has run."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the loader is as its class made it again
        execute(module)
        for register in _registrations[name]:
            register(module)

    loader.exec_module = exec_module


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
