"""A fix to paste, for a component of a carry that comes out other than it went in."""

from dataclasses import dataclass

from checks.source import Place


@dataclass(frozen=True)
class Suggestion:
    """What to write, and where, so that the component keeps its type.

    It has been tried: the body with the change, traced for the changed initial carry, keeps the
    component's type and breaks no other's.

    Args:
      text: the advice in a sentence.
      code: what to write: an expression of the body, or, where `place` is None, the component of
        the initial carry, in which `init` is the initial carry as it is now.
      place: where in the body it goes, in place of `replaces`.
      replaces: the expression that stands there now.
      init_code: what goes with it where the initial carry must change as well; else empty.

    Example:
      >>> import jax.numpy as jnp
      >>> from checks import CarryTypeError, check_scan
      >>> try:
      ...     check_scan(lambda c, x: (c.sum(), None), jnp.ones(1), length=3)
      ... except CarryTypeError as error:
      ...     print(error.mismatches[0].suggestion.code)
      c.sum(keepdims=True)
    """

    text: str
    code: str
    place: Place | None = None
    replaces: str = ""
    init_code: str = ""

    def __str__(self) -> str:
        return self.text
