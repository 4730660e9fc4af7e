"""`assert_carry_contract` passes good bodies, and finds each way in which one can be bad."""

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import loops
from checks import CarryStructureError, CarryTypeError, assert_carry_contract
from checks.strategies import arrays, avals, bodies, carries, inits, shapes, xs

# The assertion draws carries of its own; with one example for each that costs little.
inner_given = hypothesis.settings(
    max_examples=10, suppress_health_check=[hypothesis.HealthCheck.nested_given]
)
FLOAT = jnp.float32(0)
floats = inits(FLOAT)
rows = xs(FLOAT)


def fails(body: Any, error: type[BaseException] = AssertionError, **changes: Any) -> Any:
    """The error that a body gets."""
    options: dict[str, Any] = {"carries": floats, "xs": rows} | changes
    with pytest.raises(error) as caught:
        assert_carry_contract(body, **options)
    return caught.value


@pytest.mark.parametrize("impl", [None, loops, jax.lax], ids=["none", "loops", "jax.lax"])
@pytest.mark.parametrize(
    ("loop", "body"),
    [
        ("scan", lambda c, x: (0.5 * jnp.sin(c) + x, c)),
        ("while", lambda c: 0.5 * jnp.sin(c)),
        ("fori", lambda i, c: 0.5 * jnp.sin(c) + i.astype(c.dtype)),
    ],
)
def test_a_good_body_passes(impl, loop, body):
    """All promises at once, of a body that keeps them."""
    assert_carry_contract(
        body,
        carries=floats,
        xs=rows if loop == "scan" else None,
        loop=loop,
        loops=impl,
        finite=True,
        gradient=True,
        weak_types=True,
    )


@pytest.mark.parametrize("loop", ["scan", "while", "fori"])
@inner_given
@hypothesis.given(data=st.data())
def test_drawn_bodies_pass(loop, data):
    """A body that keeps the contract by construction passes for its own carry."""
    body = data.draw(bodies(loop=loop, max_statements=3))
    once = hypothesis.settings(max_examples=1)
    row = xs(body.x) if loop == "scan" else None
    assert_carry_contract(body, carries=st.just(body.carry), xs=row, loop=loop, settings=once)


@pytest.mark.parametrize("drift", ["dtype", "shape", "structure", "weak"])
@inner_given
@hypothesis.given(data=st.data())
def test_drawn_drifts_fail(drift, data):
    """A body with a drift fails, and the error says where."""
    body = data.draw(bodies(drift=drift, max_statements=3))
    once = hypothesis.settings(max_examples=1)
    error = fails(
        body,
        CarryTypeError,
        carries=st.just(body.carry),
        xs=xs(body.x),
        weak_types=drift == "weak",
        settings=once,
    )

    assert body.path == error.mismatches[0].path


def test_promotion_is_no_drift():
    """A weak init that the body promotes passes, unless weak types are asked for."""
    body = lambda c, x: (c + x, None)
    assert_carry_contract(body, carries=inits(0), xs=rows)
    error = fails(body, CarryTypeError, carries=inits(0), weak_types=True)

    assert "carry" in str(error)


def test_a_body_that_branches_on_values_is_checked_step_by_step():
    """The type of each step is checked as well as that of the traced body."""

    def body(c, x):
        if isinstance(c, jax.core.Tracer) or c < 5:
            return c + 1.0, None
        return c.astype(jnp.int32), None

    error = fails(body, CarryTypeError, xs=None, jit=False, vmap=False)

    assert "int32" in str(error)


def test_infinities_are_found():
    """A float that becomes infinite, in the carry or a y, is named."""
    inverse = lambda c, x: ({"a": 1 / jnp.float32(0 * c["a"])}, x)
    error = fails(inverse, carries=inits({"a": FLOAT}), finite=True)

    assert "carry['a'] is inf after step 0" in str(error)

    error = fails(lambda c, x: (c, jnp.exp(200 + 0 * c)), finite=True)

    assert "y is inf after step 0" in str(error)


def test_a_difference_under_jit_is_found():
    """A body that does something else when it is compiled."""
    error = fails(lambda c, x: (c + float(isinstance(c, jax.core.Tracer)), None))

    assert "compiled" in str(error)


def test_a_difference_in_lanes_is_found():
    """A body whose result in a batch is not that of each lane alone."""

    @jax.custom_batching.custom_vmap
    def step(c):
        return c

    @step.def_vmap
    def _(axis_size, in_batched, c):
        return c + 1, True

    error = fails(lambda c, x: (step(c), None), jit=False)

    assert "batched" in str(error)


def test_a_wrong_derivative_is_found():
    """A custom rule that is off by a factor, forward."""

    @jax.custom_jvp
    def square(c):
        return c * c

    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 3 * tangents[0]))

    error = fails(lambda c, x: (square(c), None), gradient=True)

    assert "differences" in str(error)


@pytest.mark.parametrize("corner", [jnp.abs, jax.nn.relu, lambda c: jnp.where(c > 0, c, -2 * c)])
def test_a_corner_is_no_wrong_derivative(corner):
    """Where a body has a corner either side's derivative is right."""
    assert_carry_contract(lambda c, x: (corner(c), None), carries=floats, xs=rows, gradient=True)


def test_a_loop_that_does_something_else_is_found():
    """An implementation whose scan forgets the last step."""

    class Short:
        @staticmethod
        def scan(f, init, xs, length):
            short = jax.tree.map(lambda x: x[:-1] if length else x, xs)
            carry, ys = loops.scan(f, init, short, max(length - 1, 0))
            return carry, jax.tree.map(lambda y: jnp.resize(y, (length, *y.shape[1:])), ys)

    error = fails(lambda c, x: (c + 1, None), loops=Short)

    assert "in a loop" in str(error)


def test_unknown_loops_are_refused():
    """The name of the loop is checked."""
    with pytest.raises(ValueError, match="loop must be one of"):
        assert_carry_contract(abs, carries=floats, loop="for")


def training_step(state, batch):
    """A body of thirty lines with a drift: the clipping widens narrow vectors."""
    params, momentum, count = state["params"], state["momentum"], state["count"]

    def loss(some):
        total = jnp.float32(0)
        for leaf in jax.tree.leaves(some):
            wide = leaf.astype(jnp.float32)
            total = total + jnp.sum(wide * wide) * batch
        return total

    def clipped(gradient, limit):
        norm = jnp.sqrt(jnp.sum(gradient.astype(jnp.float32) ** 2))
        scale = jnp.minimum(1.0, limit / (norm + 1e-6))
        if gradient.ndim == 1:
            return gradient.astype(jnp.float32) * scale
        return gradient * scale.astype(gradient.dtype)

    def moved(leaf, velocity):
        step = jnp.asarray(0.1, leaf.dtype) * velocity.astype(leaf.dtype)
        return leaf - step

    def averaged(velocity, gradient):
        kept = jnp.asarray(0.9, velocity.dtype) * velocity
        return kept.astype(gradient.dtype) + gradient

    value, gradients = jax.value_and_grad(loss)(params)
    gradients = jax.tree.map(lambda g: clipped(g, 1.0), gradients)
    momentum = jax.tree.map(averaged, momentum, gradients)
    params = jax.tree.map(moved, params, momentum)
    count = count + 1
    new_state = {"params": params, "momentum": momentum, "count": count}
    return new_state, {"loss": value, "count": count}


@st.composite
def training_states(draw):
    """States whose parameters are any tree of floats."""
    dtypes = st.sampled_from([np.dtype("float32"), np.dtype(jnp.bfloat16), np.dtype("float16")])
    leaves = arrays(avals=avals(dtypes=dtypes, shapes=shapes(min_side=1), weak=False))
    params = draw(carries(leaves))
    momentum = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "momentum": momentum, "count": jnp.int32(0)}


def test_a_planted_drift_is_found_and_shrinks_to_a_minimal_carry():
    """Within 200 examples, down to one leaf: a narrow vector of one zero."""
    options = {"max_examples": 200, "derandomize": True, "database": None}
    error = fails(
        training_step,
        CarryTypeError,
        carries=training_states(),
        xs=rows,
        jit=False,
        vmap=False,
        settings=hypothesis.settings(**options),
    )

    (mismatch,) = error.mismatches
    assert "dtype" == mismatch.kind
    assert "state['momentum']" == mismatch.component
    assert ((1,), "bfloat16") == (mismatch.input_type.shape, mismatch.input_type.dtype.name)
    assert any("'params': Array([0], dtype=bfloat16)" in note for note in error.__notes__)


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_drift_is_found_from_any_seed(seed):
    """It takes fewer than 200 examples each time."""
    counted = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=200, derandomize=False, database=None, phases=[hypothesis.Phase.generate]
    )
    @hypothesis.given(training_states())
    def look(state):
        nonlocal counted
        counted += 1
        jax.eval_shape(lambda: loops.scan(training_step, state, jnp.ones(1)))

    with pytest.raises(CarryTypeError):
        look()
    assert counted <= 200


def test_structures_that_differ_are_the_contracts_error():
    """A tuple that becomes a list."""
    fails(lambda c, x: (list(c), None), CarryStructureError, carries=inits((FLOAT,)))


def test_the_error_says_which_line_did_it():
    """What the static checks know of the smallest carry is on the error that is shown."""

    def body(c, x):
        total = c.sum(axis=1)
        return total, None

    error = fails(body, CarryTypeError, carries=inits(jnp.zeros((2, 1))), xs=None)

    (mismatch,) = error.mismatches
    assert "for `c.sum(axis=1)`" in "\n".join(error.__notes__)
    assert mismatch.provenance is not None
