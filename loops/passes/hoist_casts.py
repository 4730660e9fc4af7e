"""Casts of constants to types that vary over mesh axes, moved out of a loop.

Inside `jax.shard_map` a constant that is the same on all devices is cast where it meets a value
that varies. The transpose of that cast is a sum over devices. In a loop that runs for another
number of steps on each device, such a sum in a step would wait for devices that have left the loop.

    Before: loop: v = pvary w; y = mul x v        After: v = pvary w
                                                         loop: y = mul x v

What is computed from constants alone before such a cast moves out with it, and so do casts in the
scans inside a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.inline_calls import inline_deeply
from loops.primitives.scan import scan_p


class Hoisted(NamedTuple):
    """A step with more constants, and how they are computed.

    outside: [*consts] -> [*casts]
    jaxpr:   [*consts, *casts, *others] -> what it was
    """

    outside: Any
    jaxpr: Any


@_jax.cached_by_jaxpr
def hoist_casts(jaxpr: Any, num_consts: int) -> Hoisted | None:
    """Move casts of the first inputs out of a jaxpr: [*consts, *others]; None if there are none."""
    jaxpr = inline_deeply(jaxpr)
    jaxpr = _jax.with_equations(jaxpr, [new for eqn in jaxpr.jaxpr.eqns for new in _inside(eqn)])
    jaxpr = inline_deeply(jaxpr)
    inner = jaxpr.jaxpr
    consts, others = inner.invars[:num_consts], inner.invars[num_consts:]
    of_consts, casts, eqns = _divide(inner.eqns, consts)
    if not casts:
        return None
    outputs = [eqn.outvars[0] for eqn in casts]
    outside = _jax.build_jaxpr(jaxpr, consts, outputs, [*of_consts, *casts])
    everything = [True] * len(outputs)
    return Hoisted(
        _jax.eliminate_dead_code(outside, everything, [True] * num_consts).jaxpr,
        _jax.build_jaxpr(jaxpr, [*consts, *outputs, *others], inner.outvars, eqns),
    )


def _divide(eqns: Sequence[Any], consts: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """What is computed from constants alone, the casts of that, and all but the casts."""
    known, of_consts, casts, rest = set(consts), [], [], []
    for eqn in eqns:
        variables = [v for v in eqn.invars if isinstance(v, _jax.Var)]
        is_known = bool(variables) and known.issuperset(variables) and not eqn.effects
        if is_known and eqn.primitive.name == "pvary":
            casts.append(eqn)
            continue
        rest.append(eqn)
        if is_known:
            of_consts.append(eqn)
            known.update(eqn.outvars)
    return of_consts, casts, rest


def _inside(eqn: Any) -> list[Any]:
    """A scan, after an equation that computes what its body casts of its constants."""
    if eqn.primitive is not scan_p:
        return [eqn]
    num_consts = eqn.params["num_consts"]
    hoisted = hoist_casts(eqn.params["jaxpr"], num_consts)
    if hoisted is None:
        return [eqn]
    new_variable = _jax.variable_maker()
    casts = [new_variable(aval) for aval in hoisted.outside.out_avals]
    consts, others = eqn.invars[:num_consts], eqn.invars[num_consts:]
    params = eqn.params | {"jaxpr": hoisted.jaxpr, "num_consts": num_consts + len(casts)}
    return [
        _jax.staged_call_equation(hoisted.outside, consts, casts, eqn),
        eqn.replace(invars=[*consts, *casts, *others], params=params),
    ]
