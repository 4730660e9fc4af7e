"""`replace_lax`: our loops in the place of JAX's, for as long as a `with` block lasts.

JAX's functions are names in modules: in `jax.lax`, and in every module of JAX that imported them.
Each such name is bound to ours, and afterwards to JAX's again. One module is left alone, the one
that defines JAX's loops: its rules run loops of their own (the lowering of a scan is a while loop),
and those are no program of the user's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import jax

from loops import _jax
from loops.fori_loop import fori_loop
from loops.map import map
from loops.scan import scan
from loops.while_loop import while_loop

OURS = {"scan": scan, "while_loop": while_loop, "fori_loop": fori_loop, "map": map}


@contextmanager
def replace_lax() -> Generator[None]:
    """Put our loops in the place of `jax.lax`'s: a context manager, or a decorator with `()`.

    Inside, `jax.lax` has our `scan`, `while_loop`, `fori_loop` and `map`, and so has JAX itself
    wherever it runs a loop, in `jax.random` or `jax.scipy` for instance. What took a function out
    of `jax.lax` before (`from jax.lax import scan`) keeps JAX's, unless it is a module of JAX.

    Afterwards all names are as they were, also after an exception. What JAX has traced or compiled
    is kept apart: a jitted function that was called before is traced again inside, and one that was
    called inside is traced again afterwards. For that, what had been compiled before the first use
    of this function in a process is compiled once more when it is called.

    Blocks may be nested, and several threads may be in one at a time. A module's names are the same
    for all threads, so a thread outside sees our loops too while another one is inside.

    Returns:
      The context manager.

    Example:
      >>> import jax, loops
      >>> with loops.replace_lax():
      ...     print(jax.lax.scan is loops.scan)
      True
      >>> print(jax.lax.scan is loops.scan)
      False
    """
    with _replacement, _traced_apart():
        yield


class Place(NamedTuple):
    """A name in a module of JAX, by the module's namespace."""

    space: dict[str, Any]
    name: str


class _Replacement:
    """Replaces at the first entry and restores at the last exit, whatever threads they are in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries = 0
        self.replaced: list[tuple[Place, str]] = []
        self.ours_before: set[tuple[int, str]] = set()

    def __enter__(self) -> None:
        with self.lock:
            if self.entries == 0:
                self._replace()
            self.entries += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.entries -= 1
            if self.entries == 0:
                self._restore()

    def _replace(self) -> None:
        self.ours_before = {(id(place.space), place.name) for place, _ in _places_of(OURS)}
        self.replaced = list(_places_of(_jax_loops()))
        for place, function in self.replaced:
            place.space[place.name] = OURS[function]

    def _restore(self) -> None:
        """Undo the replacement, also in modules that were loaded meanwhile and so took ours."""
        later = [
            (place, function)
            for place, function in _places_of(OURS)
            if (id(place.space), place.name) not in self.ours_before
        ]
        originals = _jax_loops()
        for place, function in [*later, *self.replaced]:
            place.space[place.name] = originals[function]


_replacement = _Replacement()


def _jax_loops() -> dict[str, Any]:
    """JAX's loops by name, from the module that defines them, where they are never replaced."""
    return {name: vars(_jax.lax_loops)[name] for name in OURS}


def _places_of(functions: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Each name in JAX's modules that stands for one of the functions, and for which one."""
    name_of = {id(function): name for name, function in functions.items()}
    for module_name, module in list(sys.modules.items()):
        is_jax = module_name == "jax" or module_name.startswith("jax.")
        if not is_jax or not isinstance(module, ModuleType) or module is _jax.lax_loops:
            continue
        space = vars(module)
        for name, value in list(space.items()):
            if id(value) in name_of:
                yield Place(space, name), name_of[id(value)]


_context: Any = None
_context_lock = threading.Lock()


def _traced_apart() -> Any:
    """A context that JAX's caches know, so that they never mix what is traced inside and outside.

    It is made at the first use, because JAX looks at none of its caches' older entries after that.
    """
    global _context  # noqa: PLW0603  (made once for the process)
    with _context_lock:
        if _context is None:
            _context = jax.make_user_context(False)
    return _context(True)
