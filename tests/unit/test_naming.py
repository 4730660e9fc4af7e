"""The note that says which argument of a `fori_loop`'s body an error's components are."""

import functools

import jax
import jax.numpy as jnp
import pytest

from checks import CarryTypeError, explain_fori
from tests.helpers.carries import refusal


def fori_error(value, output, *, slot=1) -> CarryTypeError:
    """The error of a fori_loop's wrapper whose carry has `value` in a slot."""
    before = (0,) * slot
    return refusal((*before, value), (*before, output), body=lambda loop_carry: loop_carry)


def my_step(i, val):
    """A body for fori_loop."""
    return val


class Stepper:
    """A body that is an object."""

    def __call__(self, i, state):
        """The body."""
        return state

    def method(self, i, state):
        """A body that is a method."""
        return state


@pytest.mark.parametrize("slot", [1, 2])
def test_fori_note_names_the_users_argument(slot):
    """The note maps a component of loop_carry to the second parameter of the user's body."""
    error = fori_error({"x": jnp.zeros(1)}, {"x": jnp.zeros(2)}, slot=slot)
    explain_fori(error, my_step, slot)
    line = my_step.__code__.co_firstlineno
    (note,) = error.__notes__
    assert note == (
        f"for fori_loop: loop_carry[{slot}]['x'] is val['x'], the second argument of body "
        f"`my_step` (test_naming.py:{line})"
    )


@pytest.mark.parametrize(
    ("body", "argument", "name"),
    [
        (functools.partial(my_step, 0), "the second argument", "`my_step` (test_naming.py:"),
        (functools.partial(lambda k, i, s: s, 0), "s, the second", "`<lambda>` (test_naming.py:"),
        (Stepper(), "state, the second", "`Stepper` (test_naming.py:"),
        (Stepper().method, "state, the second", "`method` (test_naming.py:"),
        (jax.jit(my_step), "val, the second", "`my_step` (test_naming.py:"),
        (lambda *both: both[1], "both[1], the second", "`<lambda>` (test_naming.py:"),
        (lambda i, *rest: rest, "rest[0], the second", "`<lambda>` (test_naming.py:"),
        (lambda i: i, "the second argument", "`<lambda>` (test_naming.py:"),
        (max, "the second argument", "`max`"),
        (jnp.maximum, "args[1], the second", "`maximum`"),
    ],
)
def test_fori_note_takes_any_callable(body, argument, name):
    """Partial functions, objects, methods, jitted functions and builtins get a note too."""
    error = fori_error(jnp.zeros(1), jnp.zeros(2))
    explain_fori(error, body, 1)
    (note,) = error.__notes__
    assert note.startswith(f"for fori_loop: loop_carry[1] is {argument}")
    assert f"of body {name}" in note


def test_fori_note_is_left_out_where_it_has_nothing_to_say():
    """A mismatch outside the user's slot gets no note."""
    error = fori_error(jnp.zeros(1), jnp.zeros(2), slot=1)
    explain_fori(error, my_step, 2)
    assert not hasattr(error, "__notes__")
