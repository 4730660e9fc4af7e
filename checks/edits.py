"""Changes of a user's source, and the function that the changed source would give.

So advice can be tried before it is given: the body is compiled with the change, in memory, and
traced. Nothing of the user's is altered.
"""

import functools
import linecache
import types
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from checks.source import Span, nested_codes, text_at


class Edit(NamedTuple):
    """An expression in the user's source and what to write in its place."""

    file: str
    span: Span
    code: CodeType
    new: str

    @property
    def old(self) -> str:
        """What stands there now."""
        return text_at(self.file, self.span)


def with_edits(fun: Callable[..., Any], edits: Sequence[Edit]) -> Callable[..., Any] | None:
    """The function that `fun` would be if its source were changed.

    Helpers that it calls and wrappers around it are made anew where the change is in them.

    Args:
      fun: a function, or a partial, method, wrapper or jitted form of one.
      edits: the changes, which do not overlap.

    Returns:
      The function; None where a changed file does not compile, or where the changed code is not
      among what `fun` calls by name.
    """
    for file in dict.fromkeys(edit.file for edit in edits):
        wanted = [edit for edit in edits if edit.file == file]
        new_codes = _changed_codes(file, wanted)
        if new_codes is None:
            return None
        inside = {c for code in new_codes for c in nested_codes(code) if c is not code}
        for old, new in new_codes.items():
            if old in inside:  # changed together with the code around it
                continue
            changed = _with_code(fun, old, new, depth=4)
            if changed is None:
                return None
            fun = changed
    return fun


def edited_source(source: str, edits: Iterable[Edit]) -> str:
    """A file's text with changes made; the number of lines stays as it is."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = b"".join(lines)
    for edit in sorted(edits, key=lambda edit: edit.span, reverse=True):
        begin = starts[edit.span.line - 1] + edit.span.column
        end = starts[edit.span.end_line - 1] + edit.span.end_column
        missing = whole[begin:end].count(b"\n") - edit.new.count("\n")
        # The code of a function is found again by its line.
        new = f"({edit.new}{chr(10) * missing})" if missing > 0 else edit.new
        whole = whole[:begin] + new.encode() + whole[end:]
    return whole.decode()


def _changed_codes(file: str, edits: Sequence[Edit]) -> dict[CodeType, CodeType] | None:
    source = "".join(linecache.getlines(file))
    try:
        old = compile(source, file, "exec", dont_inherit=True)
        new = compile(edited_source(source, edits), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    before, after = list(nested_codes(old)), list(nested_codes(new))
    found: dict[CodeType, CodeType] = {}
    for code in {edit.code for edit in edits}:
        position = _position_of(code, before)
        if position is None:
            return None
        found[code] = after[position]
    return found


def _position_of(running: CodeType, compiled: Sequence[CodeType]) -> int | None:
    """Which of the compiled code objects a running function has, if that can be told."""
    # Test runners rewrite assertions and doctests compile each example alone; names and lines stay.
    alike = [
        i
        for i, code in enumerate(compiled)
        if (code.co_qualname, code.co_firstlineno, code.co_freevars)
        == (running.co_qualname, running.co_firstlineno, running.co_freevars)
    ]
    if len(alike) > 1:
        positions = list(running.co_positions())
        alike = [i for i in alike if list(compiled[i].co_positions()) == positions]
    return alike[0] if len(alike) == 1 else None


def _with_code(fun: Any, old: CodeType, new: CodeType, depth: int) -> Any:
    """`fun` with a code object replaced wherever it is reached from there; None if it is not."""
    if isinstance(fun, functools.partial):
        inner = _with_code(fun.func, old, new, depth)
        return inner and functools.partial(inner, *fun.args, **fun.keywords)
    if isinstance(fun, MethodType):
        inner = _with_code(fun.__func__, old, new, depth)
        return inner and MethodType(inner, fun.__self__)
    if isinstance(fun, FunctionType):
        return _with_code_in_function(fun, old, new, depth) if depth else None
    # Types are the same without jit and its kin.
    inside = getattr(fun, "__wrapped__", None) or method_called(fun)
    return None if inside is None else _with_code(inside, old, new, depth)


def method_called(fun: Any) -> MethodType | None:
    """The method, written in Python, that calling an object calls."""
    call = getattr(type(fun), "__call__", None)  # noqa: B004  of the class, or one it inherits from
    return MethodType(call, fun) if isinstance(call, FunctionType) else None


def _with_code_in_function(
    fun: FunctionType, old: CodeType, new: CodeType, depth: int
) -> FunctionType | None:
    replaced = _replaced(fun.__code__, old, new)
    if replaced is not None:
        return _rebuilt(fun, replaced, fun.__globals__, {})
    cells = dict(zip(fun.__code__.co_freevars, fun.__closure__ or ()))
    held = {name: cell.cell_contents for name, cell in cells.items() if _is_full(cell)}
    for name, value in held.items():
        changed = _with_code(value, old, new, depth - 1)
        if changed is not None:
            return _rebuilt(fun, fun.__code__, fun.__globals__, {name: changed})
    names = {name for code in nested_codes(fun.__code__) for name in code.co_names}
    for name in names & fun.__globals__.keys():
        value = fun.__globals__[name]
        if getattr(value, "__module__", None) == fun.__module__:
            changed = _with_code(value, old, new, depth - 1)
            if changed is not None:
                return _rebuilt(fun, fun.__code__, {**fun.__globals__, name: changed}, {})
    return None


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _replaced(code: CodeType, old: CodeType, new: CodeType) -> CodeType | None:
    """A code object with one inside it replaced; None if that is not inside."""
    if code == old:
        # A free variable more would have to come from somewhere.
        return new if set(new.co_freevars) <= set(old.co_freevars) else None
    changed = False
    constants = []
    for constant in code.co_consts:
        inner = _replaced(constant, old, new) if isinstance(constant, CodeType) else None
        changed = changed or inner is not None
        constants.append(constant if inner is None else inner)
    return code.replace(co_consts=tuple(constants)) if changed else None


def _rebuilt(
    fun: FunctionType, code: CodeType, names: dict[str, Any], replace: dict[str, Any]
) -> FunctionType:
    cells = dict(zip(fun.__code__.co_freevars, fun.__closure__ or ()))
    cells |= {name: types.CellType(value) for name, value in replace.items()}
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, names, fun.__name__, fun.__defaults__, closure)
    made.__kwdefaults__ = fun.__kwdefaults__
    return made
