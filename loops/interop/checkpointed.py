"""Interpreters that know plain loops get a checkpointed one written out as such loops.

What they do is then done to the loops that run: the checks of checkify are those of each step, the
terms of jet ride through them, and sparse arrays are constants, carry and xs of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from loops import _jax
from loops.interop.checkify import call_checks
from loops.passes.inline_calls import without_calls
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.checkpointed_lowering import run_checkpointed_loop
from loops.weak_types import as_weak_as


def written_out(avals: Sequence[Any], params: dict[str, Any]) -> Any:
    """A checkpointed loop as a jaxpr with plain loops: [*inputs] -> [*outputs]."""
    out_avals, _ = checkpointed_loop_p.abstract_eval(*avals, **params)

    def run(*args: Any) -> list[Any]:
        outputs = run_checkpointed_loop(*args, **params)
        return [as_weak_as(x, aval) for x, aval in zip(outputs, out_avals, strict=True)]

    names = _jax.without_names(params["forward_jaxpr"])
    return without_calls(_jax.trace_closed(run, list(avals), names))


def checkpointed_loop_checks(
    checks: _jax.Checks, error: Any, *args: Any, **params: Any
) -> tuple[Any, list[Any]]:
    """Check the plain loops."""
    avals = [jax.typeof(x) for x in args]
    return call_checks(checks, error, *args, call_jaxpr=written_out(avals, params))


_jax.register_error_check(checkpointed_loop_p, checkpointed_loop_checks)
