"""Weak types for values that an operation of ours has made strong, or the other way round."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def as_weak_as(x: Any, aval: Any) -> Any:
    """The same value, weakly typed if and only if `aval` is."""
    weak_type = getattr(aval, "weak_type", False)
    if getattr(jax.typeof(x), "weak_type", False) == weak_type:
        return x
    # No function of jax.numpy makes a strong type weak; the primitive under astype does.
    return lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=weak_type, sharding=None)
