"""Whether two jaxprs compute the same, as far as equal expressions and zeros tell.

Each value gets a number: equal numbers mean that the two are computed alike of the same inputs
(value numbering; Alpern, Wegman and Zadeck, POPL 1988). Zeros are followed, so that a sum that
starts from zeros is what is added to them:

    x                  and   zeros(3) + x            the same
    x                  and   0.9 * zeros(3) + x      the same
    0.1 * x            and   maximum(zeros(3), x)    not the same
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import ShapedArray

from checks.jaxprs import called_jaxpr, is_literal, open_jaxpr

# Operations that make zeros of zeros, and those of two operands of which one that is zero suffices.
_KEEP_ZEROS = frozenset(
    (
        *("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose", "rev"),
        *("slice", "copy", "copy_p", "stop_gradient", "neg", "abs", "sign", "square", "sqrt"),
        *("sin", "tan", "tanh", "real", "imag", "conj", "reduce_sum", "cumsum"),
        *("add", "sub", "add_any", "reshard", "pvary", "pcast", "mesh_cast"),
    )
)
_ONE_ZERO_SUFFICES = frozenset(("mul", "dot_general"))
_SAME_IF_SAME_TYPE = ("convert_element_type", "reshape", "copy", "copy_p", "broadcast_in_dim")
_MOST_BYTES = 1 << 16


class ValueNumbers:
    """Numbers for the values of jaxprs that have the same inputs."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._zeros: set[int] = set()

    def of_outputs(self, jaxpr: Any, inputs: Sequence[int] | None = None) -> list[int]:
        """A number for each output.

        Args:
          jaxpr: the jaxpr, which may hold its constants.
          inputs: numbers of its inputs; by default those of a program's own.
        """
        inner = open_jaxpr(jaxpr)
        if inputs is None:
            inputs = [self._number(("input", i)) for i in range(len(inner.invars))]
        known = dict(zip(inner.invars, inputs))
        for variable, value in zip(inner.constvars, getattr(jaxpr, "consts", ())):
            known[variable] = self._of_constant(variable.aval, value)
        for eqn in inner.eqns:
            operands = [self._of_atom(known, atom) for atom in eqn.invars]
            known |= zip(eqn.outvars, self._of_equation(eqn, operands))
        return [self._of_atom(known, atom) for atom in inner.outvars]

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _zero(self, aval: Any) -> int:
        number = self._number(("zero", _type(aval)))
        self._zeros.add(number)
        return number

    def _of_atom(self, known: dict[Any, int], atom: Any) -> int:
        return self._of_constant(atom.aval, atom.val) if is_literal(atom) else known[atom]

    def _of_constant(self, aval: Any, value: Any) -> int:
        if not isinstance(value, np.ndarray | np.generic | int | float | complex):
            return self._number(("object", id(value)))
        array = np.asarray(value)
        if array.nbytes > _MOST_BYTES:
            return self._number(("object", id(value)))
        if not array.any():
            return self._zero(aval)
        return self._number(("constant", _type(aval), array.astype(aval.dtype).tobytes()))

    def _of_equation(self, eqn: Any, operands: list[int]) -> list[int]:
        name, avals = eqn.primitive.name, [v.aval for v in eqn.outvars]
        inner = called_jaxpr(eqn)
        if inner is not None:
            return self.of_outputs(inner, operands)
        are_zero = [operand in self._zeros for operand in operands]
        if (name in _KEEP_ZEROS and all(are_zero)) or (
            (name in _ONE_ZERO_SUFFICES and any(are_zero)) or (name == "div" and are_zero[0])
        ):
            return [self._zero(avals[0])]
        same = _operand_that_comes_out(eqn, are_zero)
        if same is not None:
            return [operands[same]]
        key = (name, str(eqn.params), tuple(operands))
        return [self._number((*key, i)) for i in range(len(avals))]


def _operand_that_comes_out(eqn: Any, are_zero: list[bool]) -> int | None:
    """Which operand an equation gives back: the other is zero, or it only has another name."""
    name, out = eqn.primitive.name, _type(eqn.outvars[0].aval)
    fits = [_type(operand.aval) == out for operand in eqn.invars]
    if name in _SAME_IF_SAME_TYPE and fits[0]:
        return 0
    if name in ("add", "add_any", "sub") and are_zero[1] and fits[0]:
        return 0
    return 1 if name in ("add", "add_any") and are_zero[0] and fits[1] else None


def _type(aval: Any) -> Any:
    return (aval.shape, aval.dtype) if isinstance(aval, ShapedArray) else str(aval)
