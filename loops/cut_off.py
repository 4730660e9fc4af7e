"""How a caller learns that a loop stopped at `max_steps` although its condition still held.

What the loop returns is right as far as it ran, so it is no error, and nothing is put in its place:
an iteration that has nearly converged is of use. But it must not go unnoticed. So there is a
warning, which Python can turn into an error, or hide.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from loops import _jax


class MaxStepsWarning(RuntimeWarning):
    """A loop stopped at `max_steps` although its condition still held.

    What it returns is right as far as it ran.
    """


def ask_whether_cut_off(loop: str, max_steps: int, still_holds: Callable[[], Any]) -> None:
    """Warn if a loop's condition still holds after all the steps it may take.

    Where the answer is known, outside of jit, the warning comes from the call of the loop. Else the
    running program gives it, by a callback. A warnings filter that ignores `MaxStepsWarning` keeps
    the question out of a program that is traced under it.
    """
    if _is_ignored(MaxStepsWarning):
        return
    message = (
        f"{loop} stopped at max_steps={max_steps} although its condition still held. What it "
        "returns is right as far as it ran; allow more steps, or make it converge."
    )
    where = _users_line()
    answer = still_holds()
    if isinstance(answer, bool) or _jax.is_concrete(answer):
        if answer:
            _warn(message, where)
        return

    def warn_if(is_cut_off: Any) -> None:
        if is_cut_off:
            _warn(message, where)

    # Only if there is something to say is Python called, except under vmap, where a branch is run
    # for all lanes: so the callback looks again.
    jax.lax.cond(answer, lambda x: jax.debug.callback(warn_if, x), lambda _: None, answer)


def _is_ignored(category: type[Warning]) -> bool:
    """Whether the first of Python's warning filters for a category ignores it."""
    for action, message, kind, module, line in warnings.filters:
        if issubclass(category, kind) and message is None and module is None and not line:
            return action == "ignore"
    return False


class _Line(NamedTuple):
    filename: str
    line: int


def _users_line() -> _Line:
    """The innermost line outside of this package and of JAX."""
    frame = sys._getframe(1)  # noqa: SLF001  (inspect reads the source of each frame)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return _Line(frame.f_code.co_filename, frame.f_lineno)


def _is_internal(filename: str) -> bool:
    return filename.startswith((_PACKAGE, _JAX))


_PACKAGE = str(Path(__file__).parent)
_JAX = str(Path(jax.__file__).parent)


def _warn(message: str, where: _Line) -> None:
    warnings.warn_explicit(message, MaxStepsWarning, where.filename, where.line)
