"""jet: Taylor coefficients ride through the loop beside the values.

A value `x(t) = x_0 + x_1 t + ... + x_k t**k` is carried as its coefficients, and a step maps those
of its inputs to those of its outputs (Bettencourt, Johnson and Duvenaud, "Taylor-mode automatic
differentiation for higher-order derivatives in JAX", 2019, section 2). Only floating-point values
have terms, that is coefficients beyond the first. The number of steps does not depend on `t`, so
the condition of a while loop sees values alone.

    scan   before  [*consts, *carry, *x] -> [*carry, *y]
           after   [*consts, *terms, *carry, *terms, *x, *terms] -> [*carry, *terms, *y, *terms]
    while  before  [*consts, *carry] -> [*carry]
           after   [*consts, *terms, *carry, *terms] -> [*carry, *terms]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from loops import _jax
from loops.interop.checkpointed import written_out
from loops.interop.when_imported import when_imported
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.layout import cut, keep, merge, partition
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p

Sizes = tuple[int, ...]


class Expansion(NamedTuple):
    """Values, and a list of terms for each floating-point one among them."""

    values: list[Any]
    terms: list[list[Any]]

    def flat(self) -> list[Any]:
        """All values, then all terms."""
        return [*self.values, *(term for terms in self.terms for term in terms)]


def scan_jet(
    jet: Any,
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    *,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """Run one scan over values and terms."""
    order, num_xs = len(series[0]), len(primals) - num_consts - num_carry
    sizes_in, sizes_out = (num_consts, num_carry, num_xs), (num_carry, len(jaxpr.out_avals))
    consts, carry, xs = _divide(_expand(primals, series), jaxpr.in_avals, sizes_in)
    outputs = scan_p.bind(
        *consts.flat(),
        *carry.flat(),
        *xs.flat(),
        jaxpr=_jet_of_body(jaxpr, jet, order, sizes_in, sizes_out),
        num_consts=len(consts.flat()),
        num_carry=len(carry.flat()),
        **params,
    )
    return _results(jet, _collect(outputs, jaxpr.out_avals, sizes_out, order), jaxpr.out_avals)


def while_jet(
    jet: Any,
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    *,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> tuple[list[Any], list[Any]]:
    """Run one while loop over values and terms."""
    order, num_carry = len(series[0]), len(body_jaxpr.out_avals)
    sizes = (body_nconsts, num_carry)
    expansion = _expand(primals[cond_nconsts:], series[cond_nconsts:])
    body_consts, carry = _divide(expansion, body_jaxpr.in_avals, sizes)
    outputs = while_p.bind(
        *primals[:cond_nconsts],
        *body_consts.flat(),
        *carry.flat(),
        cond_jaxpr=_jax.with_unused_inputs(cond_jaxpr, _term_avals(body_jaxpr.out_avals, order)),
        cond_nconsts=cond_nconsts,
        body_jaxpr=_jet_of_body(body_jaxpr, jet, order, sizes, (num_carry,)),
        body_nconsts=len(body_consts.flat()),
    )
    expansion = _collect(outputs, body_jaxpr.out_avals, (num_carry,), order)
    return _results(jet, expansion, body_jaxpr.out_avals)


def checkpointed_jet(
    jet: Any, primals: Sequence[Any], series: Sequence[Sequence[Any]], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Run the plain loops that a checkpointed one is written out as over values and terms."""
    plain = written_out([jax.typeof(x) for x in primals], params)
    outputs = _run(plain, jet, _expand(primals, series), len(series[0]))
    return _results(jet, outputs, plain.out_avals)


@_jax.cached_by_jaxpr
def _jet_of_body(jaxpr: Any, jet: Any, order: int, sizes_in: Sizes, sizes_out: Sizes) -> Any:
    """A loop's body on expansions. The terms of each group of inputs or outputs stand behind it."""

    def body(*flat: Any) -> list[Any]:
        inputs = _collect(flat, jaxpr.in_avals, sizes_in, order)
        outputs = _run(jaxpr, jet, inputs, order)
        return [x for g in _divide(outputs, jaxpr.out_avals, sizes_out) for x in g.flat()]

    groups = cut(jaxpr.in_avals, sizes_in[:-1])
    avals = [aval for group in groups for aval in (*group, *_term_avals(group, order))]
    return _jax.trace_closed(body, avals, _jax.without_names(jaxpr))


def _run(jaxpr: Any, jet: Any, inputs: Expansion, order: int) -> Expansion:
    """Evaluate a jaxpr on expansions. What has no terms goes past jet, which knows no keys."""
    is_float, is_float_out = _marks(jaxpr.in_avals), _marks(jaxpr.out_avals)
    others, floats = partition(is_float, inputs.values)
    others_out: list[Any] = []

    def fun(*floats: Any) -> list[Any]:
        values = merge(is_float, others, floats)
        outputs = _jax.evaluate_jaxpr(jaxpr, *values)
        rest, floats_out = partition(is_float_out, outputs)
        others_out.extend(x.primal if isinstance(x, jet.JetTracer) else x for x in rest)
        return floats_out

    if floats:
        floats_out, terms = jet.jet(fun, floats, inputs.terms, factorial_scaled=False)
    else:  # jet takes the number of terms from its arguments
        floats_out = fun()
        terms = [[jnp.zeros_like(x)] * order for x in floats_out]
    return Expansion(merge(is_float_out, others_out, floats_out), terms)


def _marks(avals: Sequence[Any]) -> list[bool]:
    """Which types have terms."""
    return [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals]


def _term_avals(avals: Sequence[Any], order: int) -> list[Any]:
    return [a.update(weak_type=False) for a in keep(_marks(avals), avals) for _ in range(order)]


def _expand(values: Sequence[Any], series: Sequence[Sequence[Any]]) -> Expansion:
    """Values and the series that jet has for each of them, in the type of the value."""
    avals = [jax.typeof(x) for x in values]
    is_float = _marks(avals)
    expansion = Expansion(list(values), [])
    for aval, terms in zip(keep(is_float, avals), keep(is_float, series), strict=True):
        typed = [jnp.asarray(term).astype(aval.dtype) for term in terms]
        expansion.terms.append([jnp.broadcast_to(term, aval.shape) for term in typed])
    return expansion


def _results(jet: Any, expansion: Expansion, avals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Values and their series as jet wants them; a value without terms has the series zero."""
    is_float = _marks(avals)
    zeros = [jet.zero_series] * is_float.count(False)
    return expansion.values, merge(is_float, zeros, expansion.terms)


def _divide(expansion: Expansion, avals: Sequence[Any], sizes: Sizes) -> list[Expansion]:
    """Divide an expansion of values of the given types into groups."""
    terms = iter(expansion.terms)
    return [
        Expansion(values, [next(terms) for mark in _marks(group) if mark])
        for values, group in zip(
            cut(expansion.values, sizes[:-1]), cut(avals, sizes[:-1]), strict=True
        )
    ]


def _collect(flat: Sequence[Any], avals: Sequence[Any], sizes: Sizes, order: int) -> Expansion:
    """Put together the groups whose values and terms follow one another in `flat`."""
    rest = iter(flat)
    expansion = Expansion([], [])
    for group in cut(avals, sizes[:-1]):
        expansion.values.extend(next(rest) for _ in group)
        expansion.terms.extend(
            [next(rest) for _ in range(order)] for _ in range(sum(_marks(group)))
        )
    return expansion


def _register(jet: Any) -> None:
    jet.jet_rules[scan_p] = partial(scan_jet, jet)
    jet.jet_rules[while_p] = partial(while_jet, jet)
    jet.jet_rules[checkpointed_loop_p] = partial(checkpointed_jet, jet)


when_imported("jax.experimental.jet", _register)
