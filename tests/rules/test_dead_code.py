"""What nobody reads is no part of a loop: ys, carries, constants and xs; effects stay."""

import importlib

import jax
import jax.numpy as jnp
import pytest

import loops
from tests.helpers.equations import all_primitives, open_jaxpr, scan_layout

# No public name eliminates dead code from a jaxpr; `jax.jit` does it on its way.
dce_jaxpr = importlib.import_module("jax._src.interpreters.partial_eval").dce_jaxpr


def the_loop_left(fun, used, *args):
    """The one loop of a function's jaxpr when only some of its outputs are used."""
    live, _ = dce_jaxpr(open_jaxpr(jax.make_jaxpr(fun)(*args)), used)
    (eqn,) = [eqn for eqn in live.eqns if eqn.primitive.name in ("scan", "while")]
    return eqn


def test_ys_and_the_carries_that_only_they_need():
    """A y goes, and with it the carry that it was made of and the one which that was made of."""

    def fun(xs):
        def body(c, x):
            first, second, third = c
            return (first + x, second * third, third + 1), (jnp.sin(second), first)

        return loops.scan(body, (0.0, 1.0, 2.0), xs)[1]

    eqn = the_loop_left(fun, [False, True], jnp.arange(3.0))
    assert scan_layout(eqn) == (0, 1, 1, 1)
    assert "sin" not in {p.name for p in all_primitives(eqn.params["jaxpr"])}


def test_constants_and_xs():
    """Constants and xs that only an unused y reads are no inputs of what is left."""
    table = jnp.arange(5.0)

    def fun(xs, rows, w):
        return loops.scan(lambda c, x: (c * w + x[0], table @ x[1]), 0.0, (xs, rows))

    eqn = the_loop_left(fun, [True, False], jnp.arange(3.0), jnp.ones((3, 5)), 2.0)
    assert [v.aval.shape for v in eqn.invars] == [(), (), (3,)]


@pytest.mark.parametrize("used", [True, False])
def test_inputs_that_a_body_never_reads(used):
    """A row that no equation of a body reads is no input, whether all outputs are used or not."""

    def fun(xs, unread):
        return loops.scan(lambda c, x: (c + x[0], c * 2), 0.0, (xs, unread))

    eqn = the_loop_left(fun, [True, used], jnp.arange(3.0), jnp.ones((3, 7)))
    assert [v.aval.shape for v in eqn.invars] == [(), (3,)]
    assert len(open_jaxpr(eqn.params["jaxpr"]).invars) == 2


def test_carries_of_a_while_loop():
    """A carry that neither the condition nor a used carry needs goes."""

    def fun(x):
        body = lambda c: (c[0] + 1, jnp.sin(c[1]), c[2] * 2)
        return loops.while_loop(lambda c: c[0] < 5, body, (0, x, x))

    eqn = the_loop_left(fun, [False, False, True], 1.0)
    assert len(eqn.outvars) == 2
    assert "sin" not in {p.name for p in all_primitives(eqn.params["body_jaxpr"])}


def test_effects_stay():
    """A loop that prints stays, with what it prints, though no output of it is used."""

    def fun(x):
        def body(c, row):
            jax.debug.print("{}", jnp.cos(row))
            return c + 1, jnp.sin(c)

        loops.scan(body, 0.0, x)
        return x

    eqn = the_loop_left(fun, [True], jnp.arange(3.0))
    names = {p.name for p in all_primitives(eqn.params["jaxpr"])}
    assert "cos" in names
    assert "sin" not in names
