"""What a loop that keeps few carries stores: what its way back needs, if it has one.

Read from the parameters `recorded` (what a loop stores and returns) and `cached` (what it gets) of
the equations, so nothing is run.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from tests.helpers.equations import equations

BIG, SMALL = np.zeros(1000, np.float32), np.float32(0.5)
SLOTS = 3


def loops_in(fun, *args):
    """The parameters of all checkpointed loops in a function's program."""
    return [eqn.params for eqn in equations(fun, *args, name="checkpointed_loop")]


def stored(fun, *args):
    """The shapes of what the loops in a program hand on to their way back, positions left out."""
    shapes = []
    for eqn in equations(fun, *args, name="checkpointed_loop"):
        recorded = eqn.params["recorded"]
        if recorded is not None:
            outputs = eqn.outvars[len(eqn.outvars) - sum(recorded) :]
            shapes += [var.aval.shape for var in outputs]
    return shapes


def run(step, *init, steps=20):
    """The final carry of a scan that keeps three carries."""
    body = lambda c, _: (step(*c), None)
    return loops.scan(body, init, None, steps, checkpoints=SLOTS)[0]


def test_a_run_without_derivative_stores_nothing():
    """The program of a plain run has a loop without slots."""
    (params,) = loops_in(lambda x: run(lambda c: (jnp.sin(c),), x), SMALL)
    assert params["recorded"] is None
    assert params["backward_jaxpr"] is None


@pytest.mark.parametrize("forward", [jax.jacfwd, lambda f: lambda x: jax.jvp(f, (x,), (x,))])
def test_forward_mode_stores_nothing(forward):
    """Tangents ride along, and nothing is kept."""
    fun = lambda x: run(lambda c: (jnp.sin(c),), x)[0]
    for params in loops_in(forward(fun), SMALL):
        assert params["recorded"] is None
        assert params["backward_jaxpr"] is None


def test_linearize_stores_nothing():
    """Evaluating a linearization goes forwards, so it keeps no carry."""
    fun = lambda x: jax.linearize(lambda x: run(lambda c: (jnp.sin(c),), x)[0], x)[1](x)
    assert stored(fun, SMALL) == []


def test_slots_of_a_gradient():
    """A gradient keeps as many rows as there are checkpoints."""
    gradient = jax.grad(lambda x: run(lambda c: (jnp.sin(c),), x)[0].sum())
    assert stored(gradient, BIG) == [(SLOTS, 1000)]


def test_a_linear_part_is_not_stored():
    """The derivative of a sum needs neither the sum nor what is added to it."""

    def step(small, total):
        return jnp.sin(small), total + small

    gradient = jax.grad(lambda x: run(step, x, jnp.zeros(1000) + x)[1].sum())
    assert stored(gradient, SMALL) == [(SLOTS,)]


def test_what_no_gradient_reaches_is_not_stored():
    """A part of the carry that has no tangent and feeds none is left out of the slots."""

    def step(big, small):
        return jnp.sin(big), jnp.sin(small)

    gradient = jax.grad(lambda x: run(step, jnp.asarray(BIG), x)[1])
    assert stored(gradient, SMALL) == [(SLOTS,)]


def test_what_a_derivative_reads_is_stored():
    """A part without a tangent is stored if the derivative of another one reads it."""

    def step(i, small):
        return i + 1, small * i.astype(jnp.float32)

    gradient = jax.grad(lambda x: run(step, jnp.int32(0), x)[1])
    assert stored(gradient, SMALL) == [(SLOTS,)]  # the index, and not what is multiplied by it


def test_a_constant_part_is_not_carried():
    """A part of the carry that the body hands on unchanged becomes a constant."""

    def step(weights, small):
        return weights, jnp.sin(small * weights[0])

    gradient = jax.grad(lambda x: run(step, jnp.asarray(BIG), x)[1])
    assert stored(gradient, SMALL) == [(SLOTS,)]


def test_the_way_back_gets_what_was_stored():
    """The transposed loop begins with the cache of the first run and so has no condition."""
    fun = lambda x: loops.while_loop(lambda c: c < 0.9, jnp.cosh, x, checkpoints=SLOTS)
    there, back = loops_in(jax.grad(fun), SMALL)
    assert there["recorded"] == (True,)
    assert there["cond_jaxpr"] is not None
    assert back["cached"] == (True,)
    assert back["cond_jaxpr"] is None


@pytest.mark.parametrize("order", [1, 2, 3])
def test_slots_of_any_order(order):
    """However often it is differentiated, no loop stacks more rows than it has slots."""
    fun = lambda x: run(lambda c: (jnp.sin(c),), x)[0]
    for _ in range(order):
        fun = jax.grad(fun)
    for eqn in equations(fun, SMALL, name="checkpointed_loop"):
        assert all(var.aval.shape in ((), (SLOTS,)) for var in eqn.outvars)


def test_default_number_of_checkpoints():
    """`max_steps` alone keeps about the square root of twice as many carries."""
    fun = lambda x: loops.while_loop(lambda c: c < 0.9, jnp.cosh, x, max_steps=1000)
    assert {params["slots"] for params in loops_in(jax.grad(fun), SMALL)} == {44}


def test_no_more_slots_than_steps():
    """A number of checkpoints above that of the steps is cut to it."""
    fun = lambda x: run(lambda c: (jnp.sin(c),), x, steps=2)[0]
    assert {params["slots"] for params in loops_in(jax.grad(fun), SMALL)} == {2}


def test_without_the_arguments():
    """Loops that were given none of the new arguments are the plain primitives."""
    programs = {
        "scan": lambda x: loops.scan(lambda c, _: (jnp.sin(c), None), x, None, 3)[0],
        "while": lambda x: loops.while_loop(lambda c: c < 0.9, jnp.cosh, x),
        "fori": lambda x: loops.fori_loop(0, 3, lambda _, c: jnp.sin(c), x),
    }
    for fun in programs.values():
        assert not loops_in(fun, SMALL)
    assert not loops_in(jax.grad(programs["scan"]), SMALL)
