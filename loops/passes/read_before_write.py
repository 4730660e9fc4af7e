"""Reads of a buffer put before the write that follows, so that the write happens in place.

    row  = dynamic_slice b i                 row      = dynamic_slice b i
    b'   = dynamic_update_slice b zero i     b1, row1 = in_order b row
    b''  = ... row ...                       b'       = dynamic_update_slice b1 zero i
                                             b''      = ... row1 ...

On the left XLA may compute the row where it is used, which is after the write; then it must copy
the whole buffer at each step of the loop. On the right the row is known before the write. Nothing
is done where all that a row is used for is what the write needs, because that orders the two, and
where the old buffer lives on anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from loops import _jax
from loops.passes.inline_calls import CALLS
from loops.primitives.in_order import in_order_p

WRITES = (
    lax.dynamic_update_slice_p,
    lax.scatter_p,
    lax.scatter_add_p,
    lax.scatter_sub_p,
    lax.scatter_mul_p,
    lax.scatter_min_p,
    lax.scatter_max_p,
)
CALLS_THAT_WRITE = (*CALLS, "scan", "while")

MIN_BUFFER = 256
"""Smaller buffers are left alone. Measured on a CPU, a copy of so many numbers takes 30 ns or more,
and to order a read none."""

TIMES_SMALLER = 4
"""So many times smaller than the buffer must be what is read of it."""


@_jax.cached_by_jaxpr
def read_before_write(jaxpr: Any) -> Any:
    """Order reads before writes; the same object where there is nothing to order.

    Before: [*in] -> [*out]
    After:  [*in] -> [*out], the same values
    """
    if not _may_write({eqn.primitive for eqn in jaxpr.jaxpr.eqns}):
        return jaxpr
    jaxpr = _jax.map_equations(_inside_equation, jaxpr)
    program = given = _Program(jaxpr.jaxpr.eqns, jaxpr.jaxpr.outvars)
    for buffer in dict.fromkeys(v for eqn in given.eqns for v in _written_buffers(eqn)):
        program = _with_order(program, buffer)
    return jaxpr if program is given else _jax.with_equations(jaxpr, *program)


def _may_write(primitives: set[Any]) -> bool:
    """Whether any of the primitives writes to a buffer, or holds a jaxpr that may."""
    names = {primitive.name for primitive in primitives}
    return not (primitives.isdisjoint(WRITES) and names.isdisjoint({*CALLS, *CALLS_THAT_WRITE}))


def _inside_equation(eqn: Any) -> Any:
    """Order what is in the jaxprs of an equation."""
    if eqn.primitive.name not in CALLS:  # a loop is ordered when it is lowered itself
        return eqn
    params = _jax.map_parameters(
        lambda value: read_before_write(value) if _jax.is_closed_jaxpr(value) else value,
        eqn.params,
    )
    return _jax.with_parameters(eqn, params)


class _Program(NamedTuple):
    """Equations, and what is returned."""

    eqns: Sequence[Any]
    outvars: Sequence[Any]

    def users(self, variable: Any) -> list[Any]:
        """The equations that take a variable."""
        return [eqn for eqn in self.eqns if any(atom is variable for atom in eqn.invars)]

    def leading_to(self, eqns: Sequence[Any]) -> set[int]:
        """The equations that the given ones depend on, by id."""
        needed, found = {v for eqn in eqns for v in _variables(eqn.invars)}, set()
        for eqn in reversed(self.eqns):
            if not needed.isdisjoint(eqn.outvars):
                needed.update(_variables(eqn.invars))
                found.add(id(eqn))
        return found


def _written_buffers(eqn: Any) -> list[Any]:
    """The large inputs that an equation may write to in place."""
    if eqn.primitive in WRITES:
        candidates = eqn.invars[:1]
    elif eqn.primitive.name in CALLS_THAT_WRITE:
        types = {v.aval for v in eqn.outvars}
        candidates = [v for v in eqn.invars if v.aval in types]
    else:
        return []
    return [v for v in dict.fromkeys(_variables(candidates)) if _size(v) >= MIN_BUFFER]


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if isinstance(v, _jax.Var)]


def _size(variable: Any) -> int:
    """The number of elements of an array of known shape; zero for anything else."""
    aval = variable.aval
    is_known = isinstance(aval, ShapedArray) and all(isinstance(n, int) for n in aval.shape)
    return aval.size if is_known and not jnp.issubdtype(aval.dtype, jax.dtypes.extended) else 0


def _with_order(program: _Program, buffer: Any) -> _Program:
    """Order the reads of a buffer before the write to it, where that helps.

    First come the reads that last and what they need, then all else; the other reads are of the
    buffer as it leaves the equation between, because XLA takes it for another buffer.
    """
    users = program.users(buffer)
    writes = [eqn for eqn in users if buffer in _written_buffers(eqn)]
    if len(writes) != 1 or len(users) == 1 or buffer in _variables(program.outvars):
        return program
    reads = [eqn for eqn in users if eqn is not writes[0]]
    if not all(_reads_little(eqn, buffer) for eqn in reads):
        return program
    outliving = _Outliving(program, writes[0])
    lasting = [eqn for eqn in reads if any(map(outliving.is_used, eqn.outvars))]
    first = program.leading_to(lasting).union(map(id, lasting))
    early = [eqn for eqn in program.eqns if id(eqn) in first]
    late = [eqn for eqn in program.eqns if id(eqn) not in first]
    if not lasting or id(writes[0]) in first or (_effects(early) and _effects(late)):
        return program
    rows = [v for eqn in reads if id(eqn) in first for v in eqn.outvars]
    return _tied(early, [buffer, *rows], late, program.outvars, lasting[0])


def _effects(eqns: Sequence[Any]) -> bool:
    return any(eqn.effects for eqn in eqns)


def _reads_little(eqn: Any, buffer: Any) -> bool:
    """Whether an equation makes only what is much smaller than a buffer that it takes."""
    limit = _size(buffer) // TIMES_SMALLER
    return all(0 < _size(v) <= limit for v in eqn.outvars)


class _Outliving:
    """What is used for something else than what a write needs."""

    def __init__(self, program: _Program, write: Any) -> None:
        self.program, self.write = program, write
        self.only_before = program.leading_to([write])
        self.returned = set(_variables(program.outvars))

    def is_used(self, variable: Any) -> bool:
        """Whether something that the write does not need is computed from a value."""
        to_do = [variable]
        while to_do:
            variable = to_do.pop()
            if variable in self.returned:
                return True
            for user in self.program.users(variable):
                if user is self.write:
                    continue
                if id(user) not in self.only_before:
                    return True
                to_do.extend(user.outvars)
        return False


def _tied(
    early: list[Any], values: list[Any], late: list[Any], outvars: Sequence[Any], like: Any
) -> _Program:
    """Two groups of equations with an equation between them that orders the given values."""
    new_variable = _jax.variable_maker()
    new = {v: new_variable(v.aval) for v in values}
    tie = like.replace(primitive=in_order_p, invars=values, outvars=list(new.values()), params={})

    def current(atoms: Sequence[Any]) -> list[Any]:
        return [new.get(atom, atom) if isinstance(atom, _jax.Var) else atom for atom in atoms]

    renamed = [eqn.replace(invars=current(eqn.invars)) for eqn in late]
    return _Program([*early, tie, *renamed], current(outvars))
