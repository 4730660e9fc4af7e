"""The slots that hold stored carries: in the device's memory, or in the host's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from loops.primitives.checkpointed_loop import Loop


def store(loop: Loop, slots: Sequence[Any], carry: Sequence[Any], slot: Any) -> list[Any]:
    """The slots with a carry written into one of them."""
    if loop.transfer_jaxpr is not None:
        carry = [jax.device_put(x, jax.memory.Space.Host) for x in carry]
    return [
        lax.dynamic_update_index_in_dim(buffer, x, slot, 0, allow_negative_indices=False)
        for buffer, x in zip(slots, carry, strict=True)
    ]


def restore(loop: Loop, slots: Sequence[Any], slot: Any) -> list[Any]:
    """The carry that a slot holds."""
    carry = [
        lax.dynamic_index_in_dim(buffer, slot, keepdims=False, allow_negative_indices=False)
        for buffer in slots
    ]
    if loop.transfer_jaxpr is not None:
        carry = [jax.device_put(x, jax.memory.Space.Device) for x in carry]
    return carry
