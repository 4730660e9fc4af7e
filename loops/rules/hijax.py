"""Hijax types: a loop over high-level values as a loop over the arrays that they are made of.

A body may also be high-level because of an equation inside, with plain arrays going in and out.
"""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.primitives.layout import (
    cut,
    split_scan_inputs,
    split_while_inputs,
)
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


def scan_to_lojax(
    *args: Any, jaxpr: Any, num_consts: int, num_carry: int, **params: Any
) -> list[Any]:
    """Run a scan on the arrays that its inputs are made of."""
    low = _jax.lower_high_jaxpr(jaxpr)
    arrays = split_scan_inputs(_jax.arrays_of(jaxpr.in_avals, args), num_consts, num_carry)
    outputs = scan_p.bind(
        *_flat(arrays.flat()),
        jaxpr=low.jaxpr,
        num_consts=len(_flat(arrays.consts)),
        num_carry=len(_flat(arrays.carry)),
        **params,
    )
    return low.raise_outputs(outputs)


def scan_is_high(*_: Any, jaxpr: Any, **__: Any) -> bool:
    """Whether the body has anything of a high-level type."""
    return _jax.is_high(jaxpr)


_jax.register_lojax(scan_p, scan_is_high, scan_to_lojax)


def while_to_lojax(
    *args: Any, cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int
) -> list[Any]:
    """Run a while loop on the arrays that its inputs are made of."""
    inputs = split_while_inputs(args, cond_nconsts, body_nconsts)
    const_avals, carry_avals = cut(body_jaxpr.in_avals, [body_nconsts])
    cond_consts = _flat(_jax.arrays_of(cond_jaxpr.in_avals[:cond_nconsts], inputs.cond_consts))
    body_consts = _flat(_jax.arrays_of(const_avals, inputs.body_consts))
    carry = _flat(_jax.arrays_of(carry_avals, inputs.carry))
    low_body = _jax.lower_high_jaxpr(body_jaxpr)
    outputs = while_p.bind(
        *cond_consts,
        *body_consts,
        *carry,
        cond_jaxpr=_jax.lower_high_jaxpr(cond_jaxpr).jaxpr,
        cond_nconsts=len(cond_consts),
        body_jaxpr=low_body.jaxpr,
        body_nconsts=len(body_consts),
    )
    return low_body.raise_outputs(outputs)


def while_is_high(*_: Any, cond_jaxpr: Any, body_jaxpr: Any, **__: Any) -> bool:
    """Whether condition or body has anything of a high-level type."""
    return _jax.is_high(cond_jaxpr) or _jax.is_high(body_jaxpr)


_jax.register_lojax(while_p, while_is_high, while_to_lojax)


def _flat(groups: list[list[Any]]) -> list[Any]:
    return [x for group in groups for x in group]
