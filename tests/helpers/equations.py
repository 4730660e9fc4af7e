"""Looking into jaxprs: the loop equations in them, and how their operands divide."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class ScanLayout(NamedTuple):
    """How many operands and results of a scan equation are of which kind."""

    consts: int
    carry: int
    xs: int
    ys: int


def equations(fun: Callable[..., Any], *args: Any, name: str) -> list[Any]:
    """All equations of that name in the function's jaxpr, inner ones after outer ones."""
    jaxpr = jax.make_jaxpr(fun)(*args)
    return [eqn for eqn in _walk(jaxpr.jaxpr) if eqn.primitive.name == name]


def the_equation(fun: Callable[..., Any], *args: Any, name: str) -> Any:
    """The only equation of that name in the function's jaxpr."""
    (eqn,) = equations(fun, *args, name=name)
    return eqn


def _walk(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _walk(open_jaxpr(inner))


def all_primitives(jaxpr: Any) -> Iterator[Any]:
    """The primitives of a program, with those in whatever its equations hold or are short for."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn.primitive
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns"):
                    yield from all_primitives(inner)
                if hasattr(inner, "expand"):  # a high-level primitive
                    yield from all_primitives(jax.make_jaxpr(inner.expand)(*inner.in_avals))


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr itself, whether or not the JAX version wraps it with its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def scan_layout(eqn: Any) -> ScanLayout:
    """Operands and results of a scan equation, ours or JAX's."""
    if "num_consts" in eqn.params:
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    else:  # newer releases of JAX keep trees of slots in place of numbers
        consts, carry, _ = (len(group) for group in eqn.params["ft_in"].unpack())
    xs = len(eqn.invars) - consts - carry
    return ScanLayout(consts, carry, xs, len(eqn.outvars) - carry)


def while_carry(eqn: Any) -> list[Any]:
    """The avals that a while equation carries."""
    return [var.aval for var in eqn.outvars]


def body_primitives(eqn: Any) -> list[str]:
    """The names of all primitives in the body of a scan or while equation."""
    body = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["body_jaxpr"]
    return [inner.primitive.name for inner in _walk(open_jaxpr(body))]


def stacked_outputs(eqn: Any) -> list[Any]:
    """The avals of the ys of a scan equation."""
    return [var.aval for var in eqn.outvars[scan_layout(eqn).carry :]]
