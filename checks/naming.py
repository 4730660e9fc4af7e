"""What the author of a loop body calls the components of its carry."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from jax.tree_util import SequenceKey, keystr

from checks.errors import CarryTypeError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameter_name(fun: Callable[..., Any], position: int) -> str:
    """The name under which a function takes a positional argument, or nothing.

    Args:
      fun: any callable.
      position: index of the argument, from 0.

    Returns:
      The parameter's name; `args[1]` for an argument that `*args` takes; the empty string where
      there is no signature or no such parameter.

    Example:
      >>> parameter_name(lambda carry, x: (carry, x), 0)
      'carry'
      >>> parameter_name(lambda *args: args, 1)
      'args[1]'
    """
    if isinstance(fun, functools.partial):  # whatever it says that it wraps
        fun = functools.partial(fun.func, *fun.args, **fun.keywords)
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # some builtins and callables have no signature
        return ""
    for index, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{position - index}]"
        if parameter.kind not in _POSITIONAL:
            return ""
        if index == position:
            return parameter.name
    return ""


def explain_fori(error: CarryTypeError, body_fun: Callable[..., Any], slot: int) -> None:
    """Adds a note that says which argument of the user's body the error's components are.

    `fori_loop` wraps the body in a function of one parameter, `loop_carry`, and the text names
    components of that.

    Args:
      error: the error, raised for the wrapper.
      body_fun: the user's `body_fun(i, val)`.
      slot: index of the user's value in `loop_carry`: 1 in a scan, whose carry is `(i, val)`, and
        2 in a while loop, whose carry is `(i, upper, val)`.

    Example:
      >>> from checks import CarryMismatch, CarryTypeError
      >>> mismatch = CarryMismatch((SequenceKey(1),), "loop_carry[1]", None, None, "shape")
      >>> error = CarryTypeError("they differ", name="scan body", mismatches=(mismatch,))
      >>> explain_fori(error, max, slot=1)
      >>> error.__notes__
      ['for fori_loop: loop_carry[1] is the second argument of body `max`']
    """
    if _came_through(error, body_fun):  # it is the error of a loop inside, which has said its part
        return
    parameter = parameter_name(body_fun, 1)
    components = [
        f"{mismatch.component} is {_in_words(parameter, mismatch.path[1:])}"
        for mismatch in error.mismatches
        if mismatch.path[:1] == (SequenceKey(slot),)
    ]
    if components:
        body = _describe(body_fun)
        error.add_note("\n".join(f"for fori_loop: {text} of body {body}" for text in components))


def _came_through(error: CarryTypeError, fun: Callable[..., Any]) -> bool:
    """Whether an error was raised while a function ran, and not after it had returned."""
    code, frame = _code(fun), error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is code:
            return True
        frame = frame.tb_next
    return False


def _in_words(parameter: str, path: tuple[Any, ...]) -> str:
    if parameter:
        return f"{parameter}{keystr(path)}, the second argument"
    return f"{keystr(path)} in the second argument" if path else "the second argument"


def function_name(fun: Callable[..., Any]) -> str:
    """What a function, or what is wrapped around one, is called."""
    inner = _unwrapped(fun)
    return getattr(inner, "__name__", type(inner).__name__)


def _describe(fun: Callable[..., Any]) -> str:
    """A function's name, with file and line where it is written in Python."""
    code, name = _code(fun), function_name(fun)
    if code is None:
        return f"`{name}`"
    return f"`{name}` ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _code(fun: Callable[..., Any]) -> CodeType | None:
    """The code of a function that is written in Python, or of what is called as one."""
    inner = _unwrapped(fun)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _unwrapped(fun: Callable[..., Any]) -> Any:
    inner: Any = fun
    while isinstance(inner := inspect.unwrap(inner), functools.partial):
        inner = inner.func
    return inner
