"""Carries that a loop body gives back otherwise than it got them, and the errors they get."""

from typing import Any

import jax
import pytest
from jax.core import AbstractValue

from checks import CarryTypeError, _check_carry_type


def avals_of(tree):
    """The treedef of a pytree and the avals of its leaves."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [x if isinstance(x, AbstractValue) else jax.typeof(x) for x in leaves]


def check(carry, output, *, body=lambda c, x: (c, x), name="scan body"):
    """Checks a carry against an output given by value."""
    _check_carry_type(name, body, carry, *avals_of(output))


def refusal(carry, output, **options) -> CarryTypeError:
    """The error that a carry and an output get."""
    with pytest.raises(CarryTypeError) as caught:
        check(carry, output, **options)
    return caught.value


@jax.tree_util.register_pytree_node_class
class Poly:
    """A value with a static degree, whose constructor refuses anything but arrays."""

    def __init__(self, value: Any, degree: Any):
        if not hasattr(value, "dtype"):
            message = "a Poly holds an array"
            raise TypeError(message)
        self.value, self.degree = value, degree

    def tree_flatten(self):
        """The value is the child, the degree metadata."""
        return (self.value,), self.degree

    @classmethod
    def tree_unflatten(cls, degree, children):
        """The constructor, called with what `tree_flatten` gave."""
        return cls(children[0], degree)
