"""Strategies for whole loop programs: loops in loops, with consts, conds, updates in place, keys.

A program is drawn statement by statement. Each takes variables that exist already and adds some, so
a nested body closes over what lies around it. The variables have one of a few types: a float, a
vector of three floats, an integer, a boolean, a key. Every float operation keeps its result small,
so that no number of steps makes a difference of rounding large, and every `while_loop` counts.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from checks.strategies.operations import (
    BOOL,
    DRIFTED,
    FLOAT,
    INT,
    KEY,
    LITERALS,
    OPERATION_TYPES,
    OPERATIONS,
    OTHER,
    VECTOR,
    WEAK_LITERALS,
)
from checks.strategies.sources import Assign, Block, Carry, Cond, Fori, Program, Scan, While
from checks.strategies.validation import check_bool, check_choices, check_size

LOOPS = ("scan", "fori", "while")


class Sizes(NamedTuple):
    """Bounds of a program."""

    max_depth: int
    max_statements: int
    max_steps: int


class Choices(NamedTuple):
    """What a program may have in it."""

    kinds: tuple[str, ...]
    drift: bool
    weak_inits: bool


@st.composite
def loop_programs(
    draw: st.DrawFn,
    *,
    kinds: Any = LOOPS,
    max_depth: int = 3,
    max_statements: int = 4,
    max_steps: int = 3,
    drift: bool = False,
    weak_inits: bool = False,
) -> Program:
    """Whole programs with at least one loop, which end and can be printed.

    Shrinks towards a program with one `scan` of no steps.

    Args:
      draw: given by Hypothesis.
      kinds: some of `scan`, `fori` and `while`.
      max_depth: how deep loops are nested at most, at least 1.
      max_statements: how many statements a block has at most, besides its loop.
      max_steps: how many steps a loop runs at most.
      drift: whether a body may return another type than it took.
      weak_inits: whether every number that a loop starts with is Python's, so that most loops have
        to promote; by default some are.

    Returns:
      A strategy of `Program`, whose arguments are drawn with it.

    Raises:
      hypothesis.errors.InvalidArgument: a kind is unknown, a bound too small, or a flag no flag.

    Example:
      >>> import hypothesis
      >>> print(hypothesis.find(loop_programs(), lambda program: True))
      import jax
      import jax.numpy as jnp
      <BLANKLINE>
      def program(loops, a0):
          def loop0(carry, _):
              (v0,) = carry
              return (v0,), None
          loop0_out, loop0_ys = loops.scan(loop0, (a0,), None, length=0)
          (v1,) = loop0_out
          return (v1,)
      <BLANKLINE>
      args = (jnp.float32(0.0),)
    """
    check_choices(kinds, "kinds", LOOPS)
    check_size(max_depth, "max_depth", minimum=1)
    check_size(max_statements, "max_statements")
    check_size(max_steps, "max_steps")
    check_bool(drift, "drift")
    check_bool(weak_inits, "weak_inits")
    types = draw(st.lists(st.sampled_from(FLOAT + VECTOR + INT + KEY), min_size=1, max_size=4))
    if FLOAT not in types:
        types[0] = FLOAT
    parameters = tuple(f"a{i}" for i in range(len(types)))
    args = tuple(_argument(draw, t) for t in types)
    sizes = Sizes(max_depth, max_statements, max_steps)
    writer = _Writer(draw, Choices(tuple(kinds), drift, weak_inits), sizes)
    block = writer.block(list(zip(parameters, types)), depth=0)
    return Program(parameters, block, args)


def _argument(draw: st.DrawFn, type_: str) -> str:
    eighths = st.integers(-16, 16).map(lambda n: n / 8)
    match type_:
        case "F":
            return f"jnp.float32({draw(eighths)})"
        case "V":
            return f"jnp.array({draw(st.lists(eighths, min_size=3, max_size=3))}, jnp.float32)"
        case "I":
            return f"jnp.int32({draw(st.integers(-3, 5))})"
        case _:
            return f"jax.random.key({draw(st.integers(0, 3))})"


Scope = list[tuple[str, str]]  # names and types of the variables that exist, oldest first


class _Writer:
    """Draws statements, and knows which names are taken."""

    def __init__(self, draw: st.DrawFn, choices: Choices, sizes: Sizes) -> None:
        self.draw, self.choices, self.sizes = draw, choices, sizes
        self.names = 0
        self.loops = 0

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def count(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def new(self) -> str:
        self.names += 1
        return f"v{self.names - 1}"

    def value(self, scope: Scope, type_: str) -> str:
        """A variable of the type, more likely a new one than an old one, or a literal."""
        names = [name for name, have in reversed(scope) if have == type_]
        return self.pick([*names[:3], *names] or LITERALS[type_])

    def block(self, scope: Scope, depth: int) -> Block:
        """The whole program: statements, a loop, perhaps more, and what is returned."""
        scope = list(scope)
        statements = self.statements(scope)
        statements += self.loop(scope, depth)
        if self.flip():
            statements += self.loop(scope, depth)
        statements += self.statements(scope)
        results = self.results(scope)
        return Block(tuple(statements), tuple(results))

    def results(self, scope: Scope) -> list[str]:
        newest = [name for name, _ in reversed(scope)]
        return [newest[0], *self.draw(st.lists(st.sampled_from(newest), max_size=4, unique=True))]

    def statements(self, scope: Scope) -> list[Any]:
        """Straight-line statements, and conditionals."""
        return [self.statement(scope) for _ in range(self.count(0, self.sizes.max_statements))]

    def statement(self, scope: Scope) -> Any:
        if self.count(0, 9) == 9:
            return self.cond(scope)
        type_ = self.pick(FLOAT * 3 + VECTOR * 3 + INT * 2 + BOOL + KEY)
        expression = self.expression(scope, type_)
        name = self.new()
        scope.append((name, type_))
        return Assign(name, expression)

    def expression(self, scope: Scope, type_: str) -> str:
        """An operation on variables of the scope."""
        template = self.pick(OPERATIONS[type_])
        for operand in FLOAT + VECTOR + INT + BOOL + KEY:
            while f"{{{operand}}}" in template:
                value = self.value(scope, operand)
                template = template.replace(f"{{{operand}}}", value, 1)
        return template

    def cond(self, scope: Scope) -> Cond:
        """A conditional whose branches each compute values of the same types."""
        types = self.draw(st.lists(st.sampled_from(FLOAT + VECTOR + INT), min_size=1, max_size=2))
        branches = []
        for _ in range(2):
            inner = list(scope)
            statements = [self.statement(inner) for _ in range(self.count(0, 2))]
            results = [self._strong(self.value(inner, t), t) for t in types]
            branches.append(Block(tuple(statements), tuple(results)))
        predicate = self.value(scope, BOOL)
        targets = tuple(self.new() for _ in types)
        scope += zip(targets, types)
        return Cond(f"cond{targets[0][1:]}", targets, predicate, *branches)

    @staticmethod
    def _strong(value: str, type_: str) -> str:
        # Branches have to agree in weak types as well.
        return {FLOAT: f"jnp.float32({value})", INT: f"jnp.int32({value})"}.get(type_, value)

    def loop(self, scope: Scope, depth: int) -> list[Any]:
        """A loop, with what must be computed before it."""
        kind = self.pick(self.choices.kinds)
        name = f"loop{self.loops}"
        self.loops += 1
        types = self.draw(st.lists(st.sampled_from(OPERATION_TYPES), min_size=1, max_size=3))
        inits = tuple(self.init(scope, t) for t in types)
        names = tuple(self.new() for _ in types)
        write = {"scan": self.scan, "fori": self.fori, "while": self.while_}[kind]
        containers = (
            ("tuple", "list", "dict", "leaf") if len(types) == 1 else ("tuple", "list", "dict")
        )
        carry = Carry(names, inits, self.pick(containers))
        return [write(scope, depth, name, types, carry)]

    def init(self, scope: Scope, type_: str) -> str:
        """A variable or a literal."""
        if self.choices.weak_inits and type_ in WEAK_LITERALS:
            return self.pick(WEAK_LITERALS[type_])
        names = [name for name, have in reversed(scope) if have == type_]
        return self.pick([*names, *LITERALS[type_]])

    def body(
        self, scope: Scope, depth: int, types: list[str], inits: tuple[str, ...], more: Scope
    ) -> tuple[Block, Scope]:
        """Statements with perhaps a loop among them, and the new carry; returns the scope too."""
        inner = [*scope, *more]
        statements = self.statements(inner)
        if depth + 1 < self.sizes.max_depth and self.flip():
            statements += self.loop(inner, depth + 1)
        carry = [self.carry_result(inner, t, inits) for t in types]
        return Block(tuple(statements), tuple(carry)), inner

    def carry_result(self, scope: Scope, type_: str, inits: tuple[str, ...]) -> str:
        value = self.value(scope, type_)
        if type_ == FLOAT and "1" in inits:  # else the integer may come out for a float
            value = f"0.5 * {value}"
        if self.choices.drift and self.count(0, 4) == 4:
            return self.pick(DRIFTED[type_]).replace("{}", value)
        return value

    def wrapper(self) -> str:
        return self.pick(("", "", "jax.checkpoint", "jax.jit"))

    def finish(self, scope: Scope, types: list[str]) -> tuple[str, ...]:
        """Names for what comes out of a loop."""
        targets = tuple(self.new() for _ in types)
        scope += zip(targets, types)
        return targets

    def scan(self, scope: Scope, depth: int, name: str, types: list[str], carry: Carry) -> Scan:
        row, row_type, xs, length, options = self.rows(scope)
        more = list(zip(carry.names, types)) + ([(row, row_type)] if row_type else [])
        block, inner = self.body(scope, depth, types, carry.inits, more)
        ys = self.draw(st.lists(st.sampled_from(inner[::-1]), max_size=2))
        block = Block(block.statements, (*block.results, *(y for y, _ in ys)))
        targets = self.finish(scope, types)
        # Three floats stacked are a vector; what else is stacked can only be returned.
        y_types: list[str] = [VECTOR if (t, length) == (FLOAT, 3) else OTHER for _, t in ys]
        ys_targets = self.finish(scope, y_types)
        for flag in ("reverse=True", "unroll=2", "unroll=True"):
            if self.count(0, 3) == 3 and "unroll" not in options:
                options += f", {flag}"
        return Scan(
            name,
            carry,
            targets,
            block,
            self.wrapper(),
            row=row,
            xs=xs,
            num_ys=len(ys),
            ys_targets=ys_targets,
            options=options,
        )

    def rows(self, scope: Scope) -> tuple[str, str, str, int, str]:
        """Name and type of a row, what a scan runs over, its length and the options that say it."""
        length = self.count(0, self.sizes.max_steps)
        vectors = [name for name, type_ in reversed(scope) if type_ == VECTOR]
        choices = ["None", f"jnp.arange({length})", *(["vector"] if vectors and length else [])]
        match self.pick(choices):
            case "None":
                return "_", "", "None", length, f", length={length}"
            case "vector":
                length = min(length, 3)
                vector = self.pick(vectors)
                return (
                    self.new(),
                    FLOAT,
                    vector if length == 3 else f"{vector}[:{length}]",
                    length,
                    "",
                )
            case integers:
                return self.new(), INT, integers, length, ""

    def fori(self, scope: Scope, depth: int, name: str, types: list[str], carry: Carry) -> Fori:
        index = self.new()
        block, _ = self.body(
            scope, depth, types, carry.inits, [(index, INT), *zip(carry.names, types)]
        )
        steps = self.count(0, self.sizes.max_steps)
        traced = self.flip()
        some = self.value(scope, INT) if traced else ""
        upper = f"jnp.int32({some}) % {self.sizes.max_steps + 1}" if traced else str(steps)
        lower = self.pick(("0", "1", "-1"))
        if traced:
            # Whether JAX's index is weak depends on whether the bounds are known while tracing.
            strong = Assign(index, f"jnp.int32({index}_)")
            block = Block((strong, *block.statements), block.results)
            index = f"{index}_"
        options = "" if traced else self.pick(("", "", ", unroll=2"))
        targets = self.finish(scope, types)
        return Fori(
            name,
            carry,
            targets,
            block,
            self.wrapper(),
            index=index,
            lower=lower,
            upper=upper,
            options=options,
        )

    def while_(self, scope: Scope, depth: int, name: str, types: list[str], carry: Carry) -> While:
        counter = self.new()
        known = list(zip(carry.names, types))
        container = "tuple" if carry.container == "leaf" else carry.container
        carry = Carry(
            (counter, *carry.names), (self.pick(("0", "jnp.int32(0)")), *carry.inits), container
        )
        block, _ = self.body(scope, depth, types, carry.inits, [*known, (counter, INT)])
        block = Block(block.statements, (f"{counter} + 1", *block.results))
        predicate = f"{counter} < {self.count(0, self.sizes.max_steps)}"
        if self.flip():
            predicate = f"({predicate}) & ({self.expression([*scope, *known], BOOL)})"
        targets = self.finish(scope, [INT, *types])
        return While(name, carry, targets, block, self.wrapper(), predicate=predicate)
