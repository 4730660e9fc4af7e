"""The errors of the carry contract, with what they found as data beside the text."""

from dataclasses import dataclass
from typing import Any, Literal

from jax.core import AbstractValue

from checks.advice import Suggestion
from checks.provenance import Provenance

MismatchKind = Literal[
    "shape",
    "dtype",
    "shape and dtype",
    "varying axes",
    "sharding",
    "memory space",
    "structure",
    "other",
]


@dataclass(frozen=True)
class CarryMismatch:
    """One component of a carry that comes out of a loop body other than it went in.

    Args:
      path: key path of the component inside the carry, empty for the carry itself.
      component: the component as the body's author would write it, such as `c['x'][0]`; without
        the parameter's name where that is unknown, so empty for an unknown root.
      input_type: aval of the leaf that goes in, `None` where there is no leaf.
      output_type: aval of the leaf that comes out, `None` where there is no leaf.
      kind: what differs. Where several things do, shape and dtype go before varying axes, these
        before the memory space, and that before the sharding.
      provenance: the equation and the line that changed it, where they are known.
      suggestion: what to write, where advice is known that has been tried.
    """

    path: tuple[Any, ...]
    component: str
    input_type: AbstractValue | None
    output_type: AbstractValue | None
    kind: MismatchKind
    provenance: Provenance | None = None
    suggestion: Suggestion | None = None


class CarryTypeError(TypeError):
    """The carry that a loop body returns has not the type of the carry that it takes.

    Args:
      message: the whole text.
      name: what was checked, such as `scan body`.
      mismatches: each component that differs.

    Example:
      >>> error = CarryTypeError("the carry differs", name="scan body")
      >>> error.name, error.mismatches
      ('scan body', ())
    """

    name: str
    mismatches: tuple[CarryMismatch, ...]

    # Only the message goes into `args`: pickle and copy call the class with `args` and then
    # restore the rest, notes included, from the instance's dictionary.
    def __init__(
        self, message: str, *, name: str = "", mismatches: tuple[CarryMismatch, ...] = ()
    ) -> None:
        super().__init__(message)
        self.name = name
        self.mismatches = mismatches


class CarryStructureError(CarryTypeError):
    """The carry that a loop body returns has not the pytree structure of the one it takes.

    Example:
      >>> issubclass(CarryStructureError, TypeError)
      True
    """
