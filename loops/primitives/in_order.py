"""The primitive `in_order`: the identity, which XLA neither looks through nor computes in parts.

    in_order[]  [*values] -> [*values]

Whatever depends on one of its outputs comes after all that its inputs depend on. It is made when a
loop is lowered and lives no longer, so it has no rule but its lowering. It is an optimization
barrier; but XLA takes these away on the CPU before it decides what to fuse (up to JAX 0.11), so
there it is a call that is not to be inlined.
"""

from __future__ import annotations

from typing import Any

from jax import lax

from loops import _jax

in_order_p = _jax.Primitive("in_order")
in_order_p.multiple_results = True
in_order_p.def_abstract_eval(lambda *avals: list(avals))


def _barrier(*values: Any) -> list[Any]:
    return list(lax.optimization_barrier(values))


_jax.register_lowering(in_order_p, _jax.lower_function(_barrier, multiple_results=True))
_jax.register_lowering(in_order_p, _jax.lower_to_kept_call, platform="cpu")
