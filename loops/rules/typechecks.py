"""Typechecks, run by `jax.check_jaxpr` and under `jax_enable_checks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loops import _jax
from loops.primitives.layout import split_scan_inputs, split_while_inputs
from loops.primitives.scan import scan_abstract_eval, scan_p
from loops.primitives.while_loop import while_abstract_eval, while_p


def _check_compatible(loop: str, what: str, takes: Sequence[Any], gets: Sequence[Any]) -> None:
    for taken, got in zip(takes, gets, strict=True):
        if not _jax.types_compatible(taken, got):
            raise _jax.JaxprTypeError(
                f"{loop} takes {what} of type {taken.str_short()} but gets {got.str_short()}"
            )


def _check_param(loop: str, params: dict[str, Any], name: str, required: str) -> None:
    """Check one parameter: `required` is "bool" or "non-negative int"."""
    value = params[name]
    is_right = type(value) is bool if required == "bool" else type(value) is int and value >= 0
    if not is_right:
        raise _jax.JaxprTypeError(
            f"invalid {loop} param {name} of type {type(value).__name__}, "
            f"{required} required: {value}"
        )


def scan_typecheck(_: Any, *atoms: Any, **params: Any) -> tuple[list[Any], Any]:
    """Check that a scan's inputs have the types that its body takes, the xs row by row."""
    _check_param("scan", params, "reverse", "bool")
    for name in ("unroll", "num_consts", "num_carry"):
        _check_param("scan", params, name, "non-negative int")
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    avals = [x.aval for x in atoms]
    outputs = scan_abstract_eval(*avals, **params)
    takes = split_scan_inputs(params["jaxpr"].in_avals, num_consts, num_carry)
    gets = split_scan_inputs(avals, num_consts, num_carry)
    rows = [_jax.mapped_leading_aval(params["length"], aval) for aval in gets.xs]
    _check_compatible("scan", "constants", takes.consts, gets.consts)
    _check_compatible("scan", "an initial carry", takes.carry, gets.carry)
    _check_compatible("scan", "rows of xs", takes.xs, rows)
    return outputs


_jax.typecheck_rules[scan_p] = scan_typecheck


def while_typecheck(_: Any, *atoms: Any, **params: Any) -> tuple[list[Any], Any]:
    """Check that a while loop's inputs and carry have the types that its two jaxprs take."""
    for name in ("cond_nconsts", "body_nconsts"):
        _check_param("while", params, name, "non-negative int")
    avals = [x.aval for x in atoms]
    outputs = while_abstract_eval(*avals, **params)
    gets = split_while_inputs(avals, params["cond_nconsts"], params["body_nconsts"])
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    _check_compatible(
        "while", "in its condition values", cond.in_avals, [*gets.cond_consts, *gets.carry]
    )
    _check_compatible(
        "while", "in its body values", body.in_avals, [*gets.body_consts, *gets.carry]
    )
    _check_compatible("while", "from its body a carry", gets.carry, body.out_avals)
    return outputs


_jax.typecheck_rules[while_p] = while_typecheck
