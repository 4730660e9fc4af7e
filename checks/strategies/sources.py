"""Loop programs as data: blocks of statements, printed as the Python source that runs.

What is run is the printed source, so a program that is shown is the program that was tested.
"""

import dataclasses
import functools
import linecache
import textwrap
from collections.abc import Iterator
from typing import Any

IMPORTS = "import jax\nimport jax.numpy as jnp\n"
INDENT = "    "


@dataclasses.dataclass(frozen=True)
class Block:
    """Statements, and the expressions that are their result."""

    statements: tuple["Statement", ...]
    results: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Assign:
    """`target = expression`."""

    target: str
    expression: str


@dataclasses.dataclass(frozen=True)
class Cond:
    """A conditional over two blocks that close over what they need."""

    name: str
    targets: tuple[str, ...]
    predicate: str
    on_true: Block
    on_false: Block


@dataclasses.dataclass(frozen=True)
class Carry:
    """The carry of a loop: its names inside the body, their initial values, and the container."""

    names: tuple[str, ...]
    inits: tuple[str, ...]
    container: str

    def pack(self, expressions: tuple[str, ...]) -> str:
        """The container with these expressions in it."""
        match self.container:
            case "list":
                return f"[{', '.join(expressions)}]"
            case "dict":
                pairs = (f'"{key}": {value}' for key, value in zip("abcdef", expressions))
                return f"{{{', '.join(pairs)}}}"
            case "leaf":
                return expressions[0]
            case _:
                return f"({', '.join(expressions)},)"

    def unpack(self, value: str, names: tuple[str, ...]) -> str:
        """An assignment of what is in a container to names."""
        if self.container == "dict":
            value = ", ".join(f'{value}["{key}"]' for key, _ in zip("abcdef", names))
            return f"{', '.join(names)} = {value}"
        return f"{self.pack(names)} = {value}"


@dataclasses.dataclass(frozen=True)
class Loop:
    """What the three loops share: the body's results are the new carry."""

    name: str
    carry: Carry
    targets: tuple[str, ...]
    body: Block
    wrapper: str = ""

    def body_function(self, parameters: str, ys: int = 0) -> Iterator[str]:
        """The lines of the body's definition; the last `ys` results are what a scan stacks."""
        results = self.body.results
        num_carry = len(results) - ys
        carry = self.carry.pack(results[:num_carry])
        result = f"{carry}, ({', '.join(results[num_carry:])},)" if ys else carry
        yield f"def {self.name}({parameters}):"
        yield INDENT + self.carry.unpack("carry", self.carry.names)
        yield from indented(statement_lines(self.body))
        yield f"{INDENT}return {result}"

    @property
    def function(self) -> str:
        """The body as it is handed to the loop."""
        return f"{self.wrapper}({self.name})" if self.wrapper else self.name

    @property
    def init(self) -> str:
        """The initial carry."""
        return self.carry.pack(self.carry.inits)


@dataclasses.dataclass(frozen=True)
class Scan(Loop):
    """A scan; `row` is the name of its x and the last `num_ys` results of its body are the ys."""

    row: str = "_"
    xs: str = "None"
    num_ys: int = 0
    ys_targets: tuple[str, ...] = ()
    options: str = ""

    def lines(self) -> Iterator[str]:
        """The source, line by line."""
        if self.num_ys:
            yield from self.body_function(f"carry, {self.row}", self.num_ys)
        else:
            # A scan's body gives a pair in any case.
            *lines, last = self.body_function(f"carry, {self.row}")
            yield from lines
            yield f"{last}, None"
        call = f"loops.scan({self.function}, {self.init}, {self.xs}{self.options})"
        yield f"{self.name}_out, {self.name}_ys = {call}"
        yield self.carry.unpack(f"{self.name}_out", self.targets)
        if self.num_ys:
            yield f"({', '.join(self.ys_targets)},) = {self.name}_ys"


@dataclasses.dataclass(frozen=True)
class Fori(Loop):
    """A fori_loop over the index `index`."""

    index: str = "i"
    lower: str = "0"
    upper: str = "0"
    options: str = ""

    def lines(self) -> Iterator[str]:
        """The source, line by line."""
        yield from self.body_function(f"{self.index}, carry")
        bounds = f"{self.lower}, {self.upper}"
        call = f"loops.fori_loop({bounds}, {self.function}, {self.init}{self.options})"
        yield f"{self.name}_out = {call}"
        yield self.carry.unpack(f"{self.name}_out", self.targets)


@dataclasses.dataclass(frozen=True)
class While(Loop):
    """A while_loop whose first carry is a counter, so that it ends."""

    predicate: str = "False"

    def lines(self) -> Iterator[str]:
        """The source, line by line."""
        yield f"def {self.name}_goes_on(carry):"
        yield INDENT + self.carry.unpack("carry", self.carry.names)
        yield f"{INDENT}return {self.predicate}"
        yield from self.body_function("carry")
        call = f"loops.while_loop({self.name}_goes_on, {self.function}, {self.init})"
        yield f"{self.name}_out = {call}"
        yield self.carry.unpack(f"{self.name}_out", self.targets)


Statement = Assign | Cond | Scan | Fori | While


def indented(lines: Iterator[str]) -> Iterator[str]:
    """Lines one level further in."""
    return (INDENT + line for line in lines)


def statement_lines(block: Block) -> Iterator[str]:
    """The source of a block's statements, line by line."""
    for statement in block.statements:
        match statement:
            case Assign(target, expression):
                yield f"{target} = {expression}"
            case Cond():
                yield from _cond_lines(statement)
            case _:
                yield from statement.lines()


def _cond_lines(cond: Cond) -> Iterator[str]:
    branches = ((f"{cond.name}_true", cond.on_true), (f"{cond.name}_false", cond.on_false))
    for name, block in branches:
        yield f"def {name}():"
        yield from indented(statement_lines(block))
        yield f"{INDENT}return {_tuple(block.results)}"
    names = ", ".join(name for name, _ in branches)
    yield f"{_tuple(cond.targets)} = jax.lax.cond({cond.predicate}, {names})"


def _tuple(expressions: tuple[str, ...]) -> str:
    return f"({', '.join(expressions)},)"


def function_source(name: str, parameters: str, block: Block, result: str) -> str:
    """A function around a block."""
    lines = [f"def {name}({parameters}):", *indented(statement_lines(block))]
    return "\n".join([*lines, f"{INDENT}return {result}", ""])


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A loop program: called with an implementation of the loops and arguments, it runs.

    Args:
      parameters: the names of its arrays.
      block: what it computes.
      args: the source of arguments to try it with, one for each parameter.

    Example:
      >>> import jax, loops
      >>> program = Program(("x",), Block((Assign("y", "x + 1.0"),), ("y",)), ("jnp.float32(2)",))
      >>> print(program)
      import jax
      import jax.numpy as jnp
      <BLANKLINE>
      def program(loops, x):
          y = x + 1.0
          return (y,)
      <BLANKLINE>
      args = (jnp.float32(2),)
      >>> program(loops, *program.arguments())
      (Array(3., dtype=float32),)
    """

    parameters: tuple[str, ...]
    block: Block
    args: tuple[str, ...]

    @functools.cached_property
    def source(self) -> str:
        """The Python source, which needs nothing but the loops that it is called with."""
        parameters = ", ".join(["loops", *self.parameters])
        body = function_source("program", parameters, self.block, _tuple(self.block.results))
        return f"{IMPORTS}\n{body}\nargs = {_tuple(self.args)}"

    @functools.cached_property
    def _namespace(self) -> dict[str, Any]:
        return run_source(self.source)

    def __call__(self, loops: Any, *args: Any) -> Any:
        """Run the program with the loops that `loops` has."""
        return self._namespace["program"](loops, *args)

    def arguments(self) -> tuple[Any, ...]:
        """The arguments to try it with."""
        return self._namespace["args"]

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<the program\n{textwrap.indent(self.source, INDENT)}\n>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        printer.text(repr(self))  # in the place of all fields, which Hypothesis would print


def run_source(source: str) -> dict[str, Any]:
    """The names that a source defines; tracebacks through the latest show its lines."""
    # One name for all: Hypothesis takes errors in different files for different errors.
    filename = "<generated by checks.strategies>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102  (the source is our own)
    return namespace
