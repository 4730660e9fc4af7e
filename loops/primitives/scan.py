"""The primitive `scan`: a body jaxpr run a fixed number of times over the leading axis of its xs.

    scan[jaxpr length reverse unroll num_consts num_carry]
        inputs   [*consts, *init, *xs]
        jaxpr    [*consts, *carry, *x] -> [*carry, *y]
        outputs  [*carry, *ys]

`jaxpr` is closed, `length` an integer or a symbolic dimension, `unroll` the number of steps that
one turn of the compiled loop runs (0: all of them). The carry's types going in equal those coming
out.
"""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.equal_programs import first_equal_program
from loops.primitives.layout import split_scan_inputs, split_scan_outputs

scan_p = _jax.Primitive("scan")
scan_p.multiple_results = True


def scan_abstract_eval(
    *avals: Any, jaxpr: Any, length: Any, num_consts: int, num_carry: int, **_: Any
) -> tuple[list[Any], Any]:
    """The types of the final carry and of the stacked ys, and the body's effects."""
    inputs = split_scan_inputs(avals, num_consts, num_carry)
    outputs = split_scan_outputs(jaxpr.out_avals, num_carry)
    if len(avals) != len(jaxpr.in_avals):
        raise _jax.JaxprTypeError(
            f"scan has {len(avals)} inputs but its body takes {len(jaxpr.in_avals)}"
        )
    for aval_in, aval_out in zip(inputs.carry, outputs.carry, strict=True):
        if not _jax.types_match(aval_in, aval_out):
            raise _jax.JaxprTypeError(
                f"scan carry has type {aval_in.str_short()} going in and {aval_out.str_short()} "
                "coming out of the body"
            )
    stacked = [_jax.unmapped_leading_aval(length, aval) for aval in outputs.ys]
    return [*outputs.carry, *stacked], _jax.positional_effects(jaxpr)


scan_p.def_effectful_abstract_eval(scan_abstract_eval)


def scan_eagerly(*args: Any, jaxpr: Any, **params: Any) -> list[Any]:
    """Compile a scan on its own and run it; equal bodies are compiled once."""
    return _jax.apply_primitive(scan_p, *args, jaxpr=first_equal_program(jaxpr), **params)


scan_p.def_impl(scan_eagerly)
scan_p.skip_canonicalization = True
scan_p.is_effectful = lambda params: bool(params["jaxpr"].effects)
