"""The implementations of the loops that tests compare: ours, JAX's, and plain Python."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

import loops
from checks import python_loops


@dataclass(frozen=True)
class Implementation:
    """Four loops that claim to mean the same, and what the claim leaves out.

    `unrolls` is true of loops that are gone once traced: they leave no loop primitive in a jaxpr,
    need a concrete condition, and can be differentiated in reverse whatever their trip count.
    """

    name: str
    scan: Callable[..., Any]
    while_loop: Callable[..., Any]
    fori_loop: Callable[..., Any]
    map: Callable[..., Any]
    unrolls: bool = False

    def __repr__(self) -> str:
        return self.name


def _from_module(name: str, module: Any, *, unrolls: bool = False) -> Implementation:
    return Implementation(
        name, module.scan, module.while_loop, module.fori_loop, module.map, unrolls
    )


OURS = _from_module("loops", loops)
JAX = _from_module("jax.lax", jax.lax)
PYTHON = _from_module("python", python_loops, unrolls=True)

IMPLEMENTATIONS = (OURS, JAX, PYTHON)
