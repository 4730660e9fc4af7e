"""Hypothesis strategies for small loop programs: straight-line bodies over a few carries.

A body is a list of instructions. Each takes values that exist already (carries, the row, constants
closed over, the index, results of earlier instructions) and adds one. At the end some values are
picked as the new carry and some as ys. Every float instruction keeps its result within two, so that
no number of steps makes a difference of rounding large.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from hypothesis import strategies as st

from tests.helpers.implementations import Implementation

FLOAT, INT = "float32", "int32"


class Operation(NamedTuple):
    """An instruction's types and what it computes."""

    operands: tuple[str, ...]
    result: str
    compute: Callable[..., Any]


OPERATIONS = {
    "mean": Operation((FLOAT, FLOAT), FLOAT, lambda a, b: 0.5 * (a + b)),
    "difference": Operation((FLOAT, FLOAT), FLOAT, lambda a, b: 0.5 * (a - b)),
    "product": Operation((FLOAT, FLOAT), FLOAT, lambda a, b: jnp.tanh(a * b)),
    "sine": Operation((FLOAT,), FLOAT, lambda a: 1.5 * jnp.sin(a)),
    "larger": Operation((FLOAT, FLOAT), FLOAT, jnp.maximum),
    "select": Operation((INT, FLOAT, FLOAT), FLOAT, lambda n, a, b: jnp.where(n % 2 == 0, a, b)),
    "scaled": Operation((INT,), FLOAT, lambda n: 0.2 * (n % 7).astype(FLOAT)),
    "literal": Operation((), FLOAT, lambda: 0.75),
    "next": Operation((INT,), INT, lambda n: n + 1),
    "sum": Operation((INT, INT), INT, lambda n, m: n + m),
    "times": Operation((INT, INT), INT, lambda n, m: n * m),
    "count": Operation((INT, FLOAT), INT, lambda n, a: jnp.where(jnp.any(a > 0.123), n + 1, n)),
}


class Instruction(NamedTuple):
    """An operation and the positions of its operands among the values so far."""

    operation: str
    operands: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Body:
    """A straight-line body. Values: carries, row, constant, index, then one per instruction.

    All floats have the same shape, all integers are scalars.
    """

    shape: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    new_carry: tuple[int, ...]
    ys: tuple[int, ...]

    def run(self, values: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The new carry and the ys, from the values that exist before the first instruction."""
        values = list(values)
        for name, operands in self.instructions:
            operation = OPERATIONS[name]
            value = operation.compute(*[values[i] for i in operands])
            shape = self.shape if operation.result == FLOAT else ()
            values.append(jnp.broadcast_to(value, shape))  # keeps a weak type weak
        pick = lambda positions: tuple(values[i] for i in positions)
        return pick(self.new_carry), pick(self.ys)


@dataclasses.dataclass(frozen=True)
class RandomLoop:
    """A body with the inits of its carries and how often it runs.

    An init is None where it is an argument of the program, and a number where it is part of it: a
    float for a weak one, an integer for an array of that integer, and a string for the integer that
    it spells as a weak one, which may stand in for a float.
    """

    kind: str
    body: Body
    carry_types: tuple[str, ...]
    inits: tuple[Any, ...]
    length: int
    reverse: bool
    unroll: int
    stops_early: bool

    @property
    def num_arguments(self) -> int:
        """The inits that are arguments, a constant and, for a scan, the rows."""
        return self.inits.count(None) + 1 + (self.kind == "scan")

    @property
    def has_promotable_init(self) -> bool:
        """Whether an init is a weak integer where the body may make floats."""
        return ("1" in self.inits) and FLOAT in self.carry_types

    def __call__(self, loops: Implementation, *args: Any) -> Any:
        """Run the program over one implementation."""
        rest = list(args)
        types = zip(self.inits, self.carry_types, strict=True)
        inits = tuple(rest.pop(0) if init is None else self._init(init, t) for init, t in types)
        return getattr(self, f"_{self.kind}")(loops, inits, *rest)

    def _init(self, init: float | str, carry_type: str) -> Any:
        value = int(init) if isinstance(init, str) else init
        if isinstance(init, int):
            value = jnp.int32(init)
        return jnp.broadcast_to(value, self.body.shape if carry_type == FLOAT else ())

    def _scan(self, loops: Implementation, inits: Any, const: Any, xs: Any) -> Any:
        step = lambda c, x: self.body.run([*c, x, const, jnp.int32(2)])
        return loops.scan(step, inits, xs, reverse=self.reverse, unroll=self.unroll)

    def _fori(self, loops: Implementation, inits: Any, const: Any) -> Any:
        body = lambda i, c: self.body.run([*c, const, const, i])[0]
        return loops.fori_loop(1, 1 + self.length, body, inits, unroll=self.unroll)

    def _while(self, loops: Implementation, inits: Any, const: Any) -> Any:
        def cond(carry: Any) -> Any:
            n, _ = carry
            if self.stops_early:  # one step sooner or later in each lane of a batch
                n = jnp.where(jnp.sum(const) > 0.123, n + 1, n)
            return n < self.length

        body = lambda carry: (carry[0] + 1, self.body.run([*carry[1], const, const, carry[0]])[0])
        return loops.while_loop(cond, body, (jnp.int32(0), inits))


@st.composite
def bodies(draw: st.DrawFn, carry_types: tuple[str, ...]) -> Body:
    """A body for carries of these types."""
    types = [*carry_types, FLOAT, FLOAT, INT]  # after the carries: the row, a constant, an integer
    of_type = lambda wanted: st.sampled_from([i for i, have in enumerate(types) if have == wanted])
    instructions = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        operands = tuple(draw(of_type(wanted)) for wanted in OPERATIONS[name].operands)
        instructions.append(Instruction(name, operands))
        types.append(OPERATIONS[name].result)
    new_carry = tuple(draw(of_type(wanted)) for wanted in carry_types)
    ys = tuple(draw(st.lists(st.integers(0, len(types) - 1), max_size=2)))
    shape = draw(st.sampled_from([(), (2,)]))
    return Body(shape, tuple(instructions), new_carry, ys)


# A program has weak floats or weak integers in the place of floats, not both: in strict mode
# JAX raises where a weak float meets a weak integer that changes places with it.
FLOAT_INITS = st.sampled_from([[None, None, 0.25], [None, None, "1"]])
INT_INITS = st.sampled_from([0, 3, "2"])


@st.composite
def random_loops(draw: st.DrawFn, kind: str) -> RandomLoop:
    """A loop program of that kind, with one to three carries."""
    some_types = st.lists(st.sampled_from([FLOAT, FLOAT, INT]), min_size=1, max_size=3)
    carry_types = tuple(draw(some_types))
    float_inits = st.sampled_from(draw(FLOAT_INITS))
    inits = tuple(draw(float_inits if t == FLOAT else INT_INITS) for t in carry_types)
    return RandomLoop(
        kind,
        draw(bodies(carry_types)),
        carry_types,
        inits,
        length=draw(st.integers(0, 3)),
        reverse=draw(st.booleans()),
        unroll=draw(st.sampled_from([1, 2, 0])),
        stops_early=draw(st.booleans()),
    )
