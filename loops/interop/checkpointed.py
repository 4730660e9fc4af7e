"""Interpreters that know plain loops get a checkpointed one written out as such loops.

What they do is then done to the loops that run: the checks of checkify are those of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from loops import _jax
from loops.interop.checkify import call_checks
from loops.interop.when_imported import when_imported
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.checkpointed_lowering import run_checkpointed_loop


def written_out(avals: Sequence[Any], params: dict[str, Any]) -> Any:
    """A checkpointed loop as a jaxpr with plain loops: [*inputs] -> [*outputs]."""
    return _jax.trace_closed(
        lambda *args: run_checkpointed_loop(*args, **params),
        list(avals),
        _jax.without_names(params["forward_jaxpr"]),
    )


def checkpointed_loop_checks(
    checks: _jax.Checks, error: Any, *args: Any, **params: Any
) -> tuple[Any, list[Any]]:
    """Check the plain loops."""
    avals = [jax.typeof(x) for x in args]
    return call_checks(checks, error, *args, call_jaxpr=written_out(avals, params))


_jax.register_error_check(checkpointed_loop_p, checkpointed_loop_checks)


def _refuse_jet(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "jet of a loop with `checkpoints`, `max_steps` or `until`. Leave these arguments out: jet "
        "goes forwards and stores nothing."
    )


def _register(jet: Any) -> None:
    jet.jet_rules[checkpointed_loop_p] = _refuse_jet


when_imported("jax.experimental.jet", _register)
