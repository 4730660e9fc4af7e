"""Jitted functions inside a jaxpr written out in line, so that a rewrite sees through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loops import _jax


def inline_calls(jaxpr: Any, is_wanted: Callable[[Any], bool]) -> Any:
    """Replace the wanted equations that call a jaxpr by the equations of that jaxpr.

    Before: c = jit[f] a b    where f: [x, y] -> [z], z = mul x y
    After:  c = mul a b

    Only calls that ask for nothing of their own (a sharding, say) are replaced. It is the same
    object if there are none.
    """
    if not any(_is_plain_call(eqn) and is_wanted(eqn) for eqn in jaxpr.jaxpr.eqns):
        return jaxpr
    renamed: dict[Any, Any] = {}
    eqns: list[Any] = []

    def current(atom: Any) -> Any:
        return renamed.get(atom, atom) if isinstance(atom, _jax.Var) else atom

    for original in jaxpr.jaxpr.eqns:
        eqn = original.replace(invars=[current(atom) for atom in original.invars])
        if not (_is_plain_call(eqn) and is_wanted(eqn)):
            eqns.append(eqn)
            continue
        called, outputs = _with_new_variables(eqn)
        eqns.extend(called)
        renamed |= dict(zip(eqn.outvars, outputs, strict=True))
    outvars = [current(atom) for atom in jaxpr.jaxpr.outvars]
    return _jax.with_equations(jaxpr, eqns, outvars)


def _is_plain_call(eqn: Any) -> bool:
    """Whether an equation does nothing but call a pure jaxpr."""
    if eqn.primitive.name != "jit" or eqn.effects:
        return False
    params = eqn.params
    shardings = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    return (
        not params["jaxpr"].consts
        and all(s is _jax.UNSPECIFIED_SHARDING for s in shardings)
        and all(layout is None for layout in layouts)
        and params["compiler_options_kvs"] == ()
    )


def _with_new_variables(call: Any) -> tuple[list[Any], list[Any]]:
    """The equations of a called jaxpr on the inputs of the call, and its outputs.

    A jaxpr may be called twice, so every variable in it gets a new one.
    """
    inner = call.params["jaxpr"].jaxpr
    new_variable = _jax.variable_maker()
    names: dict[Any, Any] = dict(zip(inner.invars, call.invars, strict=True))

    def current(atom: Any) -> Any:
        return names[atom] if isinstance(atom, _jax.Var) else atom

    eqns = []
    for eqn in inner.eqns:
        invars = [current(atom) for atom in eqn.invars]
        names |= {v: new_variable(v.aval) for v in eqn.outvars}
        outvars = [names[v] for v in eqn.outvars]
        eqns.append(eqn.replace(invars=invars, outvars=outvars))
    return eqns, [current(atom) for atom in inner.outvars]
