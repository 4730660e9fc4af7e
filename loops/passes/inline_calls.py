"""Calls inside a jaxpr written out in line, so that rewrites and interpreters see through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loops import _jax

CALLS = ("jit", "cond", "closed_call", "eval_jaxpr")
"""The primitives whose jaxprs run where they stand: passes look into them."""


def inline_calls(jaxpr: Any, is_wanted: Callable[[Any], bool]) -> Any:
    """Replace the wanted equations that call a jaxpr by the equations of that jaxpr.

    Before: c = jit[f] a b    where f: [x, y] -> [z], z = mul x y
    After:  c = mul a b

    Only calls that ask for nothing of their own (a sharding, say) are replaced. It is the same
    object if there are none.
    """
    if not any(called_jaxpr(eqn) and is_wanted(eqn) for eqn in jaxpr.jaxpr.eqns):
        return jaxpr
    renamed: dict[Any, Any] = {}
    eqns: list[Any] = []

    def current(atom: Any) -> Any:
        return renamed.get(atom, atom) if isinstance(atom, _jax.Var) else atom

    for original in jaxpr.jaxpr.eqns:
        eqn = original.replace(invars=[current(atom) for atom in original.invars])
        inner = called_jaxpr(eqn)
        if inner is None or not is_wanted(eqn):
            eqns.append(eqn)
            continue
        called, outputs = _with_new_variables(inner.jaxpr, eqn.invars)
        eqns.extend(called)
        renamed |= dict(zip(eqn.outvars, outputs, strict=True))
    outvars = [current(atom) for atom in jaxpr.jaxpr.outvars]
    return _jax.with_equations(jaxpr, eqns, outvars)


def inline_deeply(jaxpr: Any, is_wanted: Callable[[Any], bool] = lambda _: True) -> Any:
    """The same, and so are the wanted calls in what was called, however deep."""
    before = None
    while jaxpr is not before:
        before, jaxpr = jaxpr, inline_calls(jaxpr, is_wanted)
    return jaxpr


@_jax.cached_by_jaxpr
def without_calls(jaxpr: Any) -> Any:
    """The same program for interpreters that know no calls but jitted functions.

    All other plain calls are written out in line, in loops, branches and jitted functions too.
    """
    jaxpr = inline_deeply(jaxpr, lambda eqn: eqn.primitive.name != "jit")
    return _jax.map_equations(_without_calls_inside, jaxpr)


def _without_calls_inside(eqn: Any) -> Any:
    if eqn.primitive.name not in ("jit", "cond", "scan", "while"):
        return eqn
    params = _jax.map_parameters(
        lambda value: without_calls(value) if _jax.is_closed_jaxpr(value) else value, eqn.params
    )
    return _jax.with_parameters(eqn, params)


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr of an equation that does nothing but call a pure one, else None."""
    jaxpr = _jax.called_jaxpr(eqn) or (
        _called_by_plain_jit(eqn) if eqn.primitive.name == "jit" else None
    )
    return None if jaxpr is None or jaxpr.consts or eqn.effects else jaxpr


def _called_by_plain_jit(eqn: Any) -> Any:
    params = eqn.params
    shardings = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    is_plain = (
        all(s is _jax.UNSPECIFIED_SHARDING for s in shardings)
        and all(layout is None for layout in layouts)
        and params["compiler_options_kvs"] == ()
    )
    return params["jaxpr"] if is_plain else None


def _with_new_variables(inner: Any, args: list[Any]) -> tuple[list[Any], list[Any]]:
    """The equations of a called jaxpr on the arguments of the call, and its outputs.

    A jaxpr may be called twice, so every variable in it gets a new one.
    """
    new_variable = _jax.variable_maker()
    names: dict[Any, Any] = dict(zip(inner.invars, args, strict=True))

    def current(atom: Any) -> Any:
        return names[atom] if isinstance(atom, _jax.Var) else atom

    eqns = []
    for eqn in inner.eqns:
        invars = [current(atom) for atom in eqn.invars]
        names |= {v: new_variable(v.aval) for v in eqn.outvars}
        outvars = [names[v] for v in eqn.outvars]
        eqns.append(eqn.replace(invars=invars, outvars=outvars))
    return eqns, [current(atom) for atom in inner.outvars]
