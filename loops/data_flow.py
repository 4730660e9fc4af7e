"""Which outputs of a jaxpr depend on which inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loops import _jax
from loops.primitives.layout import keep


def depends_on(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """The outputs that depend on marked inputs, taking each equation as a whole.

    An equation that reads something marked marks its outputs, and the Refs that it may write to.
    """
    inner = jaxpr.jaxpr
    marked = set(keep(inputs, inner.invars))
    for eqn in inner.eqns:
        variables = [v for v in eqn.invars if isinstance(v, _jax.Var)]
        if not marked.isdisjoint(variables):
            marked.update(eqn.outvars, (v for v in variables if _jax.is_ref(v.aval)))
    return [isinstance(v, _jax.Var) and v in marked for v in inner.outvars]
