"""What the second half of a split loop needs from the first, and where it comes from.

Linearization, partial evaluation and checkpointing all split a body in two: a part that runs now
and returns *residuals*, and a part that runs later and reads them. A residual computed at each step
must be stacked over all steps, which is what a gradient's memory is spent on. Many need not be:

* one that is an input of the body is there already: a constant as it is, an x as a row of the xs;
* one that equals a stacked output, or another residual, need not be stored twice;
* one that depends on constants alone has the same value at each step: what computes it moves out of
  the loop, and it is stored once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from loops import _jax
from loops.primitives.layout import ScanInputs, keep
from loops.primitives.scan import scan_p


class Place(enum.Enum):
    """Where a residual's value is found."""

    LITERAL = enum.auto()  # written in the jaxpr
    CONST = enum.auto()  # a constant of the loop
    ROW = enum.auto()  # a row of the xs
    HOISTED = enum.auto()  # computed once, before the loop
    OUTPUT = enum.auto()  # stacked by the loop


STACKED = (Place.ROW, Place.OUTPUT)


class Source(NamedTuple):
    """A residual's place, and its position there (or its value, for a literal)."""

    place: Place
    at: Any

    @property
    def is_stacked(self) -> bool:
        """Whether the value has a leading axis with a row for each step."""
        return self.place in STACKED


class ResidualPlan(NamedTuple):
    """A body that returns residuals, rearranged so that each is stored once.

    hoisted_jaxpr: [*held, *consts]                 -> [*hoisted]
    loop_jaxpr:    [*read, *carry, *x]              -> [*carry, *y, *stacked residuals]

    `held` are the constants inside the given jaxpr. `read` says which of [*held, *consts, *hoisted]
    the loop reads, in order.
    """

    hoisted_jaxpr: Any
    loop_jaxpr: Any
    held: list[Any]
    read: list[int]
    sources: list[Source]


class KnownRun(NamedTuple):
    """The first half of a split loop, run."""

    outputs: list[Any]
    residuals: list[Any]


@_jax.cached_by_jaxpr
def plan_residuals(
    jaxpr: Any, num_consts: int, num_carry: int, num_outputs: int, num_stacked: int = 0
) -> ResidualPlan:
    """Find where each residual of a body comes from, and take out of the loop what need not be in.

    Args:
      jaxpr: [*consts, *carry, *x] -> [*carry, *y, *residuals].
      num_consts: how many inputs are constants.
      num_carry: how many inputs are carry.
      num_outputs: how many outputs are no residuals.
      num_stacked: how many of the last residuals must be stacked whatever they are.
    """
    jaxpr, held = _jax.inputs_as_consts(jaxpr)
    inner = jaxpr.jaxpr
    first_carry = len(held) + num_consts
    constants, others = inner.invars[:first_carry], inner.invars[first_carry:]
    rows = others[num_carry:]
    outputs, residuals = inner.outvars[:num_outputs], inner.outvars[num_outputs:]
    free = residuals[: len(residuals) - num_stacked]

    invariant = _invariant_variables(constants, inner.eqns)
    computed_once = [
        v for v in dict.fromkeys(_variables(free)) if v in invariant and v not in constants
    ]
    outside, inside = _split_equations(inner.eqns, computed_once)
    made_outside = {v: None for eqn in outside for v in eqn.outvars}
    read_inside = {v for eqn in inside for v in _variables(eqn.invars)} | set(_variables(outputs))
    hoisted = dict.fromkeys([*computed_once, *(v for v in made_outside if v in read_inside)])
    sources, loop_outputs = _find_sources(
        free, residuals[len(free) :], constants, rows, list(hoisted), outputs, num_carry
    )

    available = [*constants, *hoisted]
    read_inside |= set(_variables(loop_outputs))
    read = [i for i, v in enumerate(available) if v in read_inside or _jax.is_ref(v.aval)]
    loop_inputs = [*(available[i] for i in read), *others]
    return ResidualPlan(
        hoisted_jaxpr=_jax.build_jaxpr(jaxpr, constants, list(hoisted), outside),
        loop_jaxpr=_jax.build_jaxpr(jaxpr, loop_inputs, loop_outputs, inside),
        held=held,
        read=read,
        sources=sources,
    )


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if isinstance(v, _jax.Var)]


def _invariant_variables(constants: Sequence[Any], eqns: Sequence[Any]) -> set[Any]:
    """The variables that have the same value at each step: made of constants, without effects."""
    invariant = {v for v in constants if not _jax.is_ref(v.aval)}
    for eqn in eqns:
        if not eqn.effects and all(v in invariant for v in _variables(eqn.invars)):
            invariant.update(eqn.outvars)
    return invariant


def _split_equations(eqns: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that the wanted variables need, and the others."""
    needed, outside, inside = set(wanted), [], []
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            inside.append(eqn)
        else:
            outside.append(eqn)
            needed.update(_variables(eqn.invars))
    return outside[::-1], inside[::-1]


def _find_sources(
    free: Sequence[Any],
    must_stack: Sequence[Any],
    constants: Sequence[Any],
    rows: Sequence[Any],
    hoisted: Sequence[Any],
    outputs: Sequence[Any],
    num_carry: int,
) -> tuple[list[Source], list[Any]]:
    """The source of each residual, and the loop's outputs with those that it has to stack."""
    once = {v: Source(Place.HOISTED, i) for i, v in enumerate(hoisted)}
    once |= {v: Source(Place.CONST, i) for i, v in enumerate(constants)}
    stacked = {
        v: Source(Place.OUTPUT, i)
        for i, v in enumerate(outputs)
        if i >= num_carry and isinstance(v, _jax.Var)
    }
    stacked |= {v: Source(Place.ROW, i) for i, v in enumerate(rows)}
    loop_outputs = list(outputs)

    def stack(v: Any) -> Source:
        if isinstance(v, _jax.Var) and v in stacked:
            return stacked[v]
        source = Source(Place.OUTPUT, len(loop_outputs))
        loop_outputs.append(v)
        if isinstance(v, _jax.Var):
            stacked[v] = source
        return source

    def find(v: Any) -> Source:
        if not isinstance(v, _jax.Var):
            return Source(Place.LITERAL, v.val)
        return once[v] if v in once else stack(v)

    return [*map(find, free), *map(stack, must_stack)], loop_outputs


def run_known(
    plan: ResidualPlan, inputs: ScanInputs, params: dict[str, Any], num_outputs: int
) -> KnownRun:
    """Run what is known: what was hoisted once, then the loop if anything of it is left."""
    constants = [*plan.held, *inputs.consts]
    hoisted = []
    if plan.hoisted_jaxpr.out_avals:
        # In line, because not every interpreter knows the equation that calls a jaxpr.
        hoisted = _jax.evaluate_jaxpr(plan.hoisted_jaxpr, *constants)
    available = [*constants, *hoisted]
    outputs = []
    if plan.loop_jaxpr.out_avals or plan.loop_jaxpr.effects:
        outputs = scan_p.bind(
            *(available[i] for i in plan.read),
            *inputs.carry,
            *inputs.xs,
            jaxpr=plan.loop_jaxpr,
            num_consts=len(plan.read),
            num_carry=len(inputs.carry),
            **params,
        )
    tables = {
        Place.CONST: constants,
        Place.ROW: inputs.xs,
        Place.HOISTED: hoisted,
        Place.OUTPUT: outputs,
    }
    residuals = [
        _as_array(s.at if s.place is Place.LITERAL else tables[s.place][s.at]) for s in plan.sources
    ]
    return KnownRun(list(outputs[:num_outputs]), residuals)


def _as_array(x: Any) -> Any:
    """A residual that the caller gave as a NumPy array or a Python number, as an array of JAX."""
    return jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic, int, float, complex)) else x


def residuals_around(jaxpr: Any, stacked: Sequence[bool]) -> Any:
    """Put a second half's residuals where a scan takes them.

    Before: [*residuals, *inputs]                             -> [*outputs]
    After:  [*constant residuals, *inputs, *stacked residuals] -> [*outputs]
    """
    num_residuals = len(stacked)
    positions = range(num_residuals)
    inputs = range(num_residuals, len(jaxpr.in_avals))
    constant = keep([not s for s in stacked], positions)
    return _jax.permute(jaxpr, [*constant, *inputs, *keep(stacked, positions)])
