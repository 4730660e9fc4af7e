"""Placement while nobody knows how many steps there will be."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from loops.reverse.placement import LARGEST, Tables


class OnlinePlacement:
    """TEMPORARY: fills the slots with the first steps."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def start(self) -> list[Any]:
        return [jnp.int32(0)]

    def place(self, memory: list[Any], positions: Any, t: Any) -> tuple[Any, Any, list[Any]]:
        (count,) = memory
        stop = jnp.where(count + 1 < self.tables.slots, t + 1, LARGEST).astype(jnp.int32)
        return count, stop, [count + 1]
