"""Pallas: kernels whose bodies loop.

With `interpret=True` a kernel's Refs become values and XLA runs it, so our own rule for Refs serves
(JAX's loops forever where condition and body use one Ref, which it carries twice).

The lowerings for accelerators, and the interpreters that simulate one, are closed worlds: each
knows JAX's scan and while by name, and none asks a registry that all share. They all get their
kernel from the equation that calls it, so it is rewritten there, at the last moment. Until then a
kernel is differentiated and batched by our rules.

Pallas's fuser resolves its fusion types, which only a kernel has, before anything is lowered. Its
rules make JAX's loops of ours, and find the loops in their bodies by themselves.
"""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.interop.to_lax import COUNTERPARTS, rewrite_parameters
from loops.interop.when_imported import when_imported
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


def _register_interpreter(interpreter: Any) -> None:
    """Let the interpreter look into bodies for types that XLA has not, such as semaphores."""
    _jax.register_jaxprs_of_kernels(interpreter, scan_p, "jaxpr")
    _jax.register_jaxprs_of_kernels(interpreter, while_p, "cond_jaxpr", "body_jaxpr")


def _register_calls(module: Any) -> None:
    _jax.before_lowering(module.pallas_call_p, _rewrite_for_accelerators)


def _register_kernels_on_meshes(module: Any) -> None:
    _jax.before_lowering(module.mpmd_map_p, _rewrite_for_accelerators)


def _rewrite_for_accelerators(params: dict[str, Any]) -> dict[str, Any]:
    return params if params["interpret"] is True else rewrite_parameters(params)


def _register_fusion_types(module: Any) -> None:
    for ours, theirs in COUNTERPARTS.items():
        _jax.resolve_fusion_types_like(module, ours, theirs.primitive, theirs.change)


when_imported(_jax.PALLAS_INTERPRETER, _register_interpreter)
when_imported(_jax.PALLAS_CALL, _register_calls)
when_imported(_jax.PALLAS_MESH_CALL, _register_kernels_on_meshes)
when_imported(_jax.PALLAS_FUSION_TYPES, _register_fusion_types)
