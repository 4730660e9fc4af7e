"""Functions made anew that are the same function, and functions that are not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loops.same_function import description


def over(value):
    """A function that closes over a value, made anew at each call."""
    return lambda c: (c, value)


class Method:
    """A class with a method."""

    def run(self, c):
        """Return what it gets."""
        return c


def recursive():
    """A function that closes over itself."""

    def fun(c):
        return fun(c)

    return fun


@pytest.mark.parametrize(
    "make",
    [
        lambda: over(1),
        lambda: over(None),
        lambda: over((1, [2.0, {"a": jnp.float32}])),
        lambda: over(over(2)),
        lambda: functools.partial(jnp.sum, axis=0),
        lambda: lambda c, k=1: c + k,
        lambda: lambda c, *, k=1: c + k,
        lambda: over(jnp.add),
        recursive,
    ],
)
def test_functions_of_equal_code_over_equal_values_are_the_same(make):
    """What matters is what a function is made of, not which object it is."""
    assert description(make()) == description(make())


ARRAY = jnp.ones(2)
METHOD = Method()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (over(1), over(2)),
        (over(1), over(True)),
        (over(0.0), over(-0.0)),
        (over((1,)), over([1])),
        (over({"a": 1}), over({"b": 1})),
        (over(over(1)), over(over(2))),
        (functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=1)),
        (lambda c: c, lambda c: c),
        (over(ARRAY), over(ARRAY + 0)),
        (over(np.ones(2)), over(np.ones(3))),
        (METHOD.run, Method().run),
        (over(iter([1])), over(iter([1]))),
    ],
)
def test_functions_over_other_values_are_others(one, other):
    """A value that differs, or cannot be compared, makes another function."""
    assert description(one) != description(other)
    assert description(one) == description(one)


def test_what_a_variable_holds_later_does_not_matter():
    """A description is of the moment in which it was made."""

    def functions():
        for k in range(2):
            yield description(lambda c: c + k)  # noqa: B023

    first, second = functions()
    again, _ = functions()

    assert first == again
    assert second != again


def test_a_variable_that_is_not_made_anew_is_the_same_one():
    """A counter outside of both functions does not tell them apart."""
    count = 0

    def function():
        nonlocal count
        count += 1
        return lambda c: c + count

    assert description(function()) == description(function())


def test_tracers_are_told_apart_by_their_types():
    """A trace depends on the type of a tracer alone."""
    descriptions = []

    def look(x, y, z):
        descriptions.extend(description(over(value)) for value in (x, y, z))
        return x

    jax.make_jaxpr(look)(jnp.float32(1), jnp.float32(2), 1.0)

    assert descriptions[0] == descriptions[1]
    assert descriptions[0] != descriptions[2]
