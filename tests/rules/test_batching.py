"""Lanes: what is the same for all of them stays single, and each lane stops when it should.

The types of a batched loop are JAX's, so each test runs on both implementations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.python_loops import map_by_hand
from tests.helpers.comparison import assert_same
from tests.helpers.equations import (
    body_primitives,
    open_jaxpr,
    scan_layout,
    the_equation,
    while_carry,
)
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

LANES = jnp.linspace(0.5, 2.0, 3, dtype=jnp.float32)
ROWS = jnp.arange(1.0, 5.0, dtype=jnp.float32)
TABLE = LANES[:, None] * ROWS[None, :]


def carried_shapes(eqn) -> list[tuple[int, ...]]:
    """The shapes of what a scan equation carries."""
    return [var.aval.shape for var in eqn.outvars[: scan_layout(eqn).carry]]


@primitives
def test_unbatched_carry_stays_unbatched(loops: Implementation):
    """A carry that no lane touches keeps its shape beside one that is batched."""

    def fun(x):
        step = lambda c, _: ((c[0] * 2.0, c[1] * x), c[0])
        return loops.scan(step, (jnp.float32(1.0), x), None, length=3)

    eqn = the_equation(jax.vmap(fun), LANES, name="scan")
    assert sorted(carried_shapes(eqn)) == [(), (3,)]
    (_, batched), ys = jax.vmap(fun)(LANES)
    assert_same(batched, LANES**4)
    assert ys.shape == (3, 3)


@primitives
def test_unbatched_results_have_no_lanes(loops: Implementation):
    """What no lane touches may be returned without a lane axis."""

    def fun(x):
        step = lambda c, _: ((c[0] * 2.0, c[1] * x), c[0])
        return loops.scan(step, (jnp.float32(1.0), x), None, length=3)

    out_axes = ((None, 0), None)
    (shared, _), ys = jax.vmap(fun, out_axes=out_axes)(LANES)
    assert float(shared) == 8.0
    assert ys.tolist() == [1.0, 2.0, 4.0]
    counter = lambda x: loops.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))
    assert int(jax.vmap(counter, out_axes=(None, 0))(LANES)[0]) == 3


@primitives
def test_batching_spreads_until_nothing_changes(loops: Implementation):
    """A carry that is reached by a batched one after two steps is batched too."""

    def fun(x):
        step = lambda c, _: ((c[0] * x, c[0] + c[1], c[1] + c[2], c[3] + 1.0), None)
        ones = (jnp.float32(1.0),) * 4
        return loops.scan(step, ones, None, length=3)[0]

    eqn = the_equation(jax.vmap(fun), LANES, name="scan")
    assert sorted(carried_shapes(eqn)) == [(), (3,), (3,), (3,)]
    assert_same(jax.vmap(fun)(LANES), map_by_hand(fun, LANES))


@primitives
def test_unbatched_operands_are_not_broadcast(loops: Implementation):
    """Constants and xs that are shared by the lanes go into the loop as they are."""

    def fun(x, w, rows):
        return loops.scan(lambda c, r: (c * w + r, c), x, rows)

    batched = jax.vmap(fun, (0, None, None))
    eqn = the_equation(batched, LANES, jnp.float32(0.5), ROWS, name="scan")
    assert sorted(var.aval.shape for var in eqn.invars) == [(), (3,), (4,)]


@primitives
@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
def test_counter_of_fori_stays_scalar(loops: Implementation, traced: bool):
    """Lanes with common bounds share one index, whichever road the loop takes."""
    fun = lambda row, n: loops.fori_loop(0, n, lambda i, c: c + row[i], jnp.float32(0.0))
    if traced:
        eqn = the_equation(jax.vmap(fun, (0, None)), TABLE, 4, name="while")
        shapes = [aval.shape for aval in while_carry(eqn)]
    else:
        eqn = the_equation(jax.vmap(lambda row: fun(row, 4)), TABLE, name="scan")
        shapes = carried_shapes(eqn)
    assert shapes.count((3,)) == 1
    assert set(shapes) == {(), (3,)}
    assert_same(jax.jit(jax.vmap(fun, (0, None)))(TABLE, 4), TABLE.sum(1))


@primitives
def test_shared_condition_stays_scalar(loops: Implementation):
    """A condition that is the same for all lanes needs no select."""

    def fun(x):
        return loops.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))

    eqn = the_equation(jax.vmap(fun), LANES, name="while")
    assert "select_n" not in body_primitives(eqn)
    assert [aval.shape for aval in while_carry(eqn)] == [(), (3,)]


@primitives
def test_lanes_stop_each_at_its_own_step(loops: Implementation):
    """With a condition for each lane those that are done keep their value."""

    def fun(x):
        body = lambda c: (c[0] + 1, c[1] * 2.0, c[2])
        return loops.while_loop(lambda c: c[1] < 5.0, body, (0, x, jnp.int8(3)))

    assert_same(jax.vmap(fun)(LANES), map_by_hand(fun, LANES))
    assert_same(jax.jit(jax.vmap(fun))(LANES), map_by_hand(fun, LANES))


@primitives
def test_condition_batched_by_a_constant(loops: Implementation):
    """A limit for each lane batches the condition and so all of the carry."""

    def fun(limit):
        body = lambda c: (c[0] + 1, c[1] * 1.5)
        return loops.while_loop(lambda c: c[1] < limit, body, (0, jnp.float32(0.1)))

    assert_same(jax.vmap(fun)(LANES), map_by_hand(fun, LANES))


@primitives
def test_condition_batched_through_the_carry(loops: Implementation):
    """A condition on an unbatched carry that the body batches is batched."""

    def fun(x):
        body = lambda c: (c[1], c[1] + x)
        return loops.while_loop(lambda c: c[0] < 3.0, body, (jnp.float32(0.0), jnp.float32(0.0)))

    assert_same(jax.vmap(fun)(LANES), map_by_hand(fun, LANES))


@primitives
def test_finished_lane_does_not_see_the_others_steps(loops: Implementation):
    """A lane that is done is not driven into a NaN by the lanes that go on."""

    def fun(x):
        return loops.while_loop(lambda c: c > 1.0, jnp.log, x)

    got = jax.vmap(fun)(jnp.float32([0.5, 2.0, 50.0]))
    assert not jnp.isnan(got).any()
    assert float(got[0]) == 0.5


@primitives
def test_no_lane_at_all_to_run(loops: Implementation):
    """When every lane's condition is false at once, the inits come out."""
    fun = lambda x: loops.while_loop(lambda c: c < 0.0, lambda c: c * 2.0, x)
    assert_same(jax.vmap(fun)(LANES), LANES)


@primitives
def test_axes_other_than_the_first(loops: Implementation):
    """A lane axis in the middle or at the end of xs gives what the first axis gives."""
    rows = jnp.arange(24.0, dtype=jnp.float32).reshape(4, 3, 2)  # steps, lanes, features
    fun = lambda c, xs: loops.scan(lambda c, x: (0.5 * c + x, c), c, xs)
    init = jnp.ones((2, 3), jnp.float32)
    got = jax.vmap(fun, (1, 1), 1)(init, rows)
    assert_same(got[0], jax.vmap(fun, (0, 1), 1)(init.T, rows)[0])
    want = [fun(init[:, lane], rows[:, lane]) for lane in range(3)]
    assert_same(got[1], jnp.stack([ys for _, ys in want], 1))


@primitives
def test_bounds_for_each_lane(loops: Implementation):
    """Lanes may run a different number of steps of a fori_loop."""

    def fun(start, stop):
        return loops.fori_loop(start, stop, lambda i, c: c + i, jnp.int32(0))

    starts, stops = jnp.int32([0, 2, 5]), jnp.int32([4, 3, 1])
    want = [sum(range(a, b)) for a, b in zip([0, 2, 5], [4, 3, 1], strict=True)]
    assert jax.vmap(fun)(starts, stops).tolist() == want
    assert jax.vmap(fun, (0, None))(starts, jnp.int32(6)).tolist() == [15, 14, 5]


@primitives
def test_batched_condition_with_keys(loops: Implementation):
    """A typed key in the carry of lanes that stop at their own steps stays what it was."""

    def fun(x):
        body = lambda c: (jax.random.split(c[0])[0], c[1] * 2.0)
        return loops.while_loop(lambda c: c[1] < 5.0, body, (jax.random.key(0), x))

    keys, values = jax.vmap(fun)(LANES)
    alone = [fun(x) for x in LANES]
    assert_same(keys, jnp.stack([key for key, _ in alone]))
    assert_same(values, jnp.stack([value for _, value in alone]))


@primitives
def test_named_axis_inside_the_body(loops: Implementation):
    """A body may talk to the other lanes through the axis's name."""

    def fun(x):
        step = lambda c, _: (c + jax.lax.psum(c, "lanes"), jax.lax.axis_index("lanes"))
        return loops.scan(step, x, None, length=2)

    got, indices = jax.vmap(fun, axis_name="lanes")(LANES)
    want = np.asarray(LANES)
    for _ in range(2):
        want = want + want.sum()
    assert np.allclose(got, want, rtol=1e-6)
    assert indices.tolist() == [[0, 0], [1, 1], [2, 2]]


@primitives
def test_batched_xs_keep_the_condition_unbatched(loops: Implementation):
    """The jaxpr of a batched loop's body has one batched operand where one is batched."""

    def fun(x):
        return loops.scan(lambda c, _: (c + 1.0, c * x), jnp.float32(0.0), None, length=3)

    eqn = the_equation(jax.vmap(fun), LANES, name="scan")
    body = open_jaxpr(eqn.params["jaxpr"])
    assert carried_shapes(eqn) == [()]
    assert [var.aval.shape for var in body.outvars] == [(), (3,)]
