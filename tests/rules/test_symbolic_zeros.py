"""What has no tangent costs none: no carry, no constant and no x is doubled for nothing.

JAX's loops do the same, so each test runs on both, save the last, which JAX 0.10 fails at.
"""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.equations import equations, scan_layout, the_equation, while_carry
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ONE = jnp.float32(1.0)
ROWS = jnp.arange(3.0, dtype=jnp.float32)


def push(fun, *primals):
    """The jvp of `fun`, as a function of primals and tangents."""
    return lambda *tangents: jax.jvp(fun, primals, tangents)


@primitives
def test_carry_without_tangent_is_not_doubled(loops: Implementation):
    """A carry that the perturbed one never reaches has no tangent carry."""

    def fun(x):
        step = lambda c, _: ((c[0] * 2.0, jnp.sin(c[1])), None)
        return loops.scan(step, (x, ONE), None, length=3)[0]

    eqn = the_equation(push(fun, ONE), ONE, name="scan")
    assert scan_layout(eqn).carry == 3


@primitives
def test_tangent_spreads_until_nothing_changes(loops: Implementation):
    """A tangent that needs two steps to reach the third carry does reach it."""

    def fun(x):
        step = lambda c, _: ((c[0] * 2.0, c[0] + c[1], c[1] * c[2], c[3] + 1.0), None)
        return loops.scan(step, (x, ONE, ONE, ONE), None, length=3)[0]

    eqn = the_equation(push(fun, ONE), ONE, name="scan")
    assert scan_layout(eqn).carry == 4 + 3


@primitives
def test_integer_carry_has_no_tangent(loops: Implementation):
    """An integer carry stays alone, and its tangent comes out as float0."""

    def fun(x):
        return loops.scan(lambda c, _: ((c[0] * 2.0, c[1] + 1), None), (x, 0), None, length=3)[0]

    eqn = the_equation(lambda t: push(fun, ONE)(t)[1][0], ONE, name="scan")
    assert scan_layout(eqn).carry == 3
    assert jax.jvp(fun, (ONE,), (ONE,))[1][1].dtype == jax.dtypes.float0


@primitives
def test_consts_and_xs_without_tangent_are_not_doubled(loops: Implementation):
    """Of two constants and two xs, only the perturbed ones get a partner."""

    def fun(w, x):
        step = lambda c, v: (c * w * ROWS.sum() + v[0] * v[1], None)
        return loops.scan(step, ONE, (x, ROWS))[0]

    plain = scan_layout(the_equation(fun, ONE, ROWS, name="scan"))
    layout = scan_layout(the_equation(push(fun, ONE, ROWS), ONE, ROWS, name="scan"))
    assert layout.consts == plain.consts + 1
    assert layout.xs == plain.xs + 1


@primitives
def test_output_without_tangent_is_a_zero_outside_the_loop(loops: Implementation):
    """The tangent of an output that does not depend on the input is not computed by the loop."""

    def fun(x):
        step = lambda c, _: ((c[0] * 2.0, jnp.sin(c[1])), (c[0], c[1]))
        return loops.scan(step, (x, ONE), None, length=3)

    eqn = the_equation(push(fun, ONE), ONE, name="scan")
    layout = scan_layout(eqn)
    assert (layout.carry, layout.ys) == (3, 3)
    (_, still), (_, still_rows) = push(fun, ONE)(ONE)[1]
    assert float(still) == 0.0
    assert not still_rows.any()


@primitives
def test_gradient_for_one_carry_leaves_the_others_alone(loops: Implementation):
    """The backward loop carries one cotangent where only one carry is differentiated."""

    def fun(x):
        step = lambda c, _: ((c[0] * c[1], jnp.sin(c[1])), None)
        return loops.scan(step, (x, ONE), None, length=3)[0][0]

    forward, backward = equations(jax.grad(fun), ONE, name="scan")
    assert scan_layout(forward).carry == 2
    assert scan_layout(backward).carry == 1


@primitives
def test_while_carry_without_tangent_is_not_doubled(loops: Implementation):
    """A counter and an unperturbed carry of a while loop have no tangent."""

    def fun(x):
        body = lambda c: (c[0] + 1, c[1] * 2.0, jnp.sin(c[2]))
        return loops.while_loop(lambda c: c[0] < 3, body, (0, x, ONE))

    tangent = lambda t: push(fun, ONE)(t)[1][1]
    assert len(while_carry(the_equation(tangent, ONE, name="while"))) == 4


@primitives
def test_while_tangent_spreads_until_nothing_changes(loops: Implementation):
    """In a while loop too a tangent reaches a carry that is two steps away."""

    def fun(x):
        body = lambda c: (c[0] + 1, c[1] * 2.0, c[1] + c[2], c[2] * c[3])
        return loops.while_loop(lambda c: c[0] < 3, body, (0, x, ONE, ONE))

    tangent = lambda t: push(fun, ONE)(t)[1][1:]
    assert len(while_carry(the_equation(tangent, ONE, name="while"))) == 4 + 3


@primitives
def test_perturbed_condition_adds_nothing(loops: Implementation):
    """A tangent on what only the condition reads is dropped."""

    def fun(limit, x):
        return loops.while_loop(lambda c: c < limit, lambda c: c + 1.0, x)

    eqn = the_equation(lambda t: push(fun, ONE, ONE)(t, jnp.float32(0.0)), ONE, name="while")
    assert len(while_carry(eqn)) == 2
    primal, tangent = jax.jvp(lambda limit: fun(limit, ONE), (4.0 * ONE,), (ONE,))
    assert (float(primal), float(tangent)) == (4.0, 0.0)


def test_a_cotangent_that_stays_zero_meets_no_nan():
    """Rows to which a custom rule hands no cotangent are left out of the transposed loop."""

    @jax.custom_vjp
    def final_only(carry, rows):
        return carry

    final_only.defvjp(lambda carry, rows: (carry, None), lambda _, ct: (ct, None))

    def fun(x):
        carry, rows = OURS.scan(lambda c, _: (2.0 * c, jnp.nan * c), x, None, length=3)
        return final_only(carry, rows)

    assert jax.grad(fun)(ONE) == 8.0
    assert jax.grad(jax.jit(fun))(ONE) == 8.0
