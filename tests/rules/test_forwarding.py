"""What need not go through the loop does not: unchanged carries and xs that become ys.

JAX's `scan` does the same, and its `while_loop` for carries that the condition does not read.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.equations import scan_layout, the_equation, while_carry
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ONE = jnp.float32(1.0)
ROWS = jnp.arange(1.0, 4.0, dtype=jnp.float32)


@primitives
def test_unchanged_carry_becomes_a_constant(loops: Implementation):
    """The loop carries one value fewer and has one constant more."""

    def fun(moving, fixed):
        return loops.scan(lambda c, _: ((c[0] * c[1], c[1]), None), (moving, fixed), None, length=3)

    layout = scan_layout(the_equation(fun, ONE, ONE, name="scan"))
    assert (layout.consts, layout.carry) == (1, 1)
    (moving, fixed), _ = fun(2.0 * ONE, 3.0 * ONE)
    assert (float(moving), float(fixed)) == (54.0, 3.0)


@primitives
def test_swapped_carries_stay_carries(loops: Implementation):
    """Two carries that change places are not unchanged."""

    def fun(first, second):
        return loops.scan(lambda c, _: ((c[1], c[0]), None), (first, second), None, length=3)[0]

    assert scan_layout(the_equation(fun, ONE, ONE, name="scan")).carry == 2
    assert [float(c) for c in fun(ONE, 2.0 * ONE)] == [2.0, 1.0]


@primitives
def test_row_that_goes_straight_to_ys_is_not_an_output(loops: Implementation):
    """The stacked y is the xs itself, and the loop does not copy it."""

    def fun(c, xs):
        return loops.scan(lambda c, x: (c * x, (x, c)), c, xs)

    layout = scan_layout(the_equation(fun, ONE, ROWS, name="scan"))
    assert (layout.xs, layout.ys) == (1, 1)
    _, (rows, _) = fun(ONE, ROWS)
    assert_same(rows, ROWS)


@primitives
@pytest.mark.parametrize("reverse", [False, True])
def test_forwarded_rows_keep_their_order(loops: Implementation, reverse: bool):
    """A row that goes straight to ys stays at its place, backwards too."""
    ys = loops.scan(lambda c, x: (c, (x, 2.0 * x)), ONE, ROWS, reverse=reverse)[1]
    assert_same(ys, (ROWS, 2.0 * ROWS))


@primitives
def test_every_output_forwarded(loops: Implementation):
    """A loop that changes nothing returns what it got, as arrays."""
    got = loops.scan(lambda c, x: (c, x), ONE, [1.0 * ROWS, 2.0 * ROWS])
    assert_same(got, (ONE, [ROWS, 2.0 * ROWS]))


@pytest.mark.parametrize("init", [1.0, np.float32(1.0)], ids=["Python", "numpy"])
def test_forwarded_results_are_arrays(init):
    """What a loop hands on unchanged comes out as an array of JAX's, as all its results do.

    Ours alone: JAX's loops give back the Python or numpy value itself.
    """
    carry, ys = OURS.scan(lambda c, x: (c, x), init, np.ones(3, np.float32))
    assert isinstance(carry, jax.Array)
    assert isinstance(ys, jax.Array)
    assert carry.weak_type == isinstance(init, float)
    assert isinstance(OURS.while_loop(lambda c: False, lambda c: c, init), jax.Array)


@primitives
def test_unchanged_carry_of_while_becomes_a_constant(loops: Implementation):
    """A carry that the condition does not read and the body hands on is not carried."""

    def fun(moving, fixed):
        body = lambda c: (c[0] * c[1], c[1])
        return loops.while_loop(lambda c: c[0] < 30.0, body, (moving, fixed))

    eqn = the_equation(fun, ONE, ONE, name="while")
    assert len(while_carry(eqn)) == 1
    assert eqn.params["body_nconsts"] == 1
    assert [float(c) for c in fun(ONE, 3.0 * ONE)] == [81.0, 3.0]


@primitives
def test_gradient_through_an_unchanged_carry(loops: Implementation):
    """The cotangent of the returned carry and of its uses in the loop add up."""

    def fun(fixed):
        step = lambda c, _: ((c[0] * c[1], c[1]), None)
        (moving, same), _ = loops.scan(step, (ONE, fixed), None, length=3)
        return moving + 10.0 * same

    assert float(jax.grad(fun)(2.0 * ONE)) == 3 * 2.0**2 + 10.0


@primitives
def test_gradient_through_forwarded_rows(loops: Implementation):
    """The cotangent of forwarded rows and of their uses in the loop add up."""

    def fun(xs):
        total, (rows, _) = loops.scan(lambda c, x: (c + x * x, (x, c)), ONE, xs)
        return total + (10.0 * rows).sum()

    assert_same(jax.grad(fun)(ROWS), 2.0 * ROWS + 10.0)
