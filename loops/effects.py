"""Effects that a loop cannot run in the right number and order: refused, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from checks.source import Place, places, shown
from loops import _jax


class UnsupportedEffectError(NotImplementedError):
    """A body or condition has effects that its loop cannot run as they are meant.

    Args:
      message: the whole text.
      effects: a description of each effect.
      place: the first line in the user's code that has one, if it is known.

    Example:
      >>> error = UnsupportedEffectError("no", ("IO",))
      >>> error.effects, error.place
      (('IO',), None)
    """

    def __init__(
        self, message: str, effects: tuple[str, ...] = (), place: Place | None = None
    ) -> None:
        super().__init__(message)
        self.effects = effects
        self.place = place


def refuse_forbidden_effects(loop: str, *jaxprs: Any) -> None:
    """Raise if steps have effects that no loop runs in the right number and order."""
    forbidden = {e for jaxpr in jaxprs for e in _jax.forbidden_effects(jaxpr.effects)}
    if forbidden:
        raise _unsupported(
            f"Effects not supported in `{loop}`",
            forbidden,
            "Move what has them out of the body.",
            jaxprs,
        )
    for jaxpr in jaxprs:
        for before, after in _jax.boxes_that_change_type(jaxpr):
            raise TypeError(
                f"type-changing mutations not allowed in {loop}: a step leaves a hijax box with "
                f"{after} that held {before}. Set it to a value of that type before the loop."
            )


def refuse_to_run_again(loop: str, *jaxprs: Any) -> None:
    """Raise if the way back of a loop, which runs steps again, must not run these, or cannot.

    That is so for effects that happen once, and for hijax values.
    """
    effects = {e for jaxpr in jaxprs for e in jaxpr.effects if not _jax.may_be_repeated(e)}
    if effects:
        raise _unsupported(
            f"Effects not supported in a `{loop}` with `checkpoints`, `max_steps` or `until`",
            effects,
            "The way back runs steps again, and these must not run again. Move what has them out "
            "of the loop, or leave those arguments out.",
            jaxprs,
        )
    if any(map(_jax.is_high, jaxprs)):
        raise NotImplementedError(
            f"A `{loop}` with `checkpoints`, `max_steps` or `until` takes no hijax values. Take "
            "them apart before the loop and carry the arrays, or leave those arguments out."
        )


def _unsupported(what: str, effects: Any, advice: str, jaxprs: Any) -> UnsupportedEffectError:
    described = tuple(sorted(set(map(_jax.describe_effect, effects))))
    kinds = set(map(type, effects))
    found = (_first_equation(jaxpr, lambda e: type(e) in kinds) for jaxpr in jaxprs)
    where = [place for eqn in found if eqn is not None for place in places(eqn)[:1]]
    at = f" at {where[0]}" if where else ""
    message = f"{what}: [{', '.join(described)}]{at}. {advice}"
    return UnsupportedEffectError(message, described, shown(where[0]) if where else None)


def _first_equation(jaxpr: Any, is_wanted: Callable[[Any], bool]) -> Any:
    """The innermost equation that has an effect of a kind, the first of them; None without one."""
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        if any(map(is_wanted, eqn.effects)):
            parameters = jax.tree.leaves(list(eqn.params.values()), is_leaf=_jax.is_jaxpr)
            inner = [_first_equation(p, is_wanted) for p in parameters if _jax.is_jaxpr(p)]
            return next((found for found in inner if found is not None), eqn)
    return None
