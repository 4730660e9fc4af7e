"""Where in the user's code an equation of a jaxpr was written, down to the expression."""

import ast
import functools
import linecache
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import jax

# Frames of these folders are no places where a user can change anything: JAX, and our packages.
_OURS = Path(__file__).resolve().parents[1]
_NOT_THE_USERS = tuple(
    f"{folder}/"
    for folder in (
        Path(jax.__file__).resolve().parent,
        *(_OURS / package for package in ("checks", "loops", "diagnostics")),
    )
)
_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class Span(NamedTuple):
    """Where an expression stands in a file, as Python counts: lines from 1, columns in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int

    def overlaps(self, other: "Span") -> bool:
        """Whether the two have a character in common."""
        return self[:2] < other[2:] and other[:2] < self[2:]


class Place(NamedTuple):
    """A place in the user's code: the file, the line, the function, and the expression if known."""

    file: str
    line: int
    function: str
    span: Span | None = None
    code: CodeType | None = None

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.line}"

    @property
    def text(self) -> str:
        """The expression as it is written, or nothing where the source is not known."""
        return "" if self.span is None else text_at(self.file, self.span)


def shown(place: Place) -> Place:
    """A place as errors carry it: without the code object, which cannot be pickled."""
    return place._replace(code=None)


def shown_path(file: str) -> str:
    """A file's name from the working directory on, if it lies in there."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def text_at(file: str, span: Span) -> str:
    """What a file says between two positions; nothing if the file cannot be read."""
    lines = [line.encode() for line in linecache.getlines(file)[span.line - 1 : span.end_line]]
    if len(lines) != span.end_line - span.line + 1:
        return ""
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"".join(lines).decode()


def span_of(node: ast.expr | ast.stmt) -> Span:
    """Where a node of a syntax tree stands."""
    end_line, end_column = node.end_lineno, node.end_col_offset
    if end_line is None or end_column is None:  # only nodes that were made by hand have none
        end_line, end_column = node.lineno, node.col_offset
    return Span(node.lineno, node.col_offset, end_line, end_column)


def places(eqn: Any) -> list[Place]:
    """The frames of the user's code that an equation was made in, the innermost first.

    Frames of installed libraries and of the standard library come last: whoever reads the message
    wants the line of their own that called those. The list ends at the function that the jaxpr was
    traced from; it is empty for an equation that JAX or a loop made by itself.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    if traceback is None:
        return []
    codes, offsets = traceback.raw_frames()
    found = [_place(code, offset) for code, offset in zip(codes, offsets) if _is_the_users(code)]
    return sorted(found, key=lambda place: place.file.startswith(_INSTALLED))


@functools.cache
def _resolved(file: str) -> str:
    return file if file.startswith("<") else str(Path(file).resolve())


def _is_the_users(code: CodeType) -> bool:
    file = _resolved(code.co_filename)
    return not file.startswith((*_NOT_THE_USERS, "<frozen"))


def _place(code: CodeType, offset: int) -> Place:
    positions = list(code.co_positions())
    span = _span(positions[offset // 2])
    line = positions[offset // 2][0] or code.co_firstlineno
    return Place(code.co_filename, line, code.co_qualname, span, code)


_Position = tuple[int | None, int | None, int | None, int | None]


def _span(position: _Position) -> Span | None:
    """A position as code objects have it, line and end line first; None where a part is unknown."""
    match position:
        case int(line), int(end_line), int(column), int(end_column):
            return Span(line, column, end_line, end_column)
    return None


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def syntax_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    """The syntax tree of the function that a code object was compiled from, if it can be told."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    starts = list(_spans(code))
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
        and all(_covers(span_of(node), span) for span in starts)
    ]
    # A lambda inside another on the same line: the inner one covers only its own instructions.
    return max(found, key=lambda node: span_of(node)[:2], default=None)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _spans(code: CodeType) -> Iterator[Span]:
    for span in map(_span, code.co_positions()):
        # The instructions that start a function carry its first line and no columns of note.
        if span is not None and span.column != span.end_column:
            yield span


def _covers(outer: Span, inner: Span) -> bool:
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
