"""While loops under vmap whose lanes end at different steps."""

import jax
import jax.numpy as jnp
import pytest

import loops

STEPS = jnp.array([1, 4, 0, 3])


def doubled(n, x):
    """The steps taken and x doubled n times, by a loop that counts."""
    return loops.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, x))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_each_lane_keeps_what_it_had_at_its_last_step(wrap):
    """Shared counters and values of lanes are those of the lane's own last step."""
    count, x = wrap(jax.vmap(doubled, (0, None)))(STEPS, jnp.float32(1))

    assert [1, 4, 0, 3] == count.tolist()
    assert [2.0, 16.0, 1.0, 8.0] == jnp.asarray(x).tolist()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_lane_that_is_done_never_runs_again(wrap):
    """A condition that holds again when the shared counter has moved on starts no lane anew."""

    def run(n):
        return loops.while_loop(lambda s: s[0] != n, lambda s: (s[0] + 1, s[1] * 2), (0, 1.0))

    count, x = wrap(jax.vmap(run))(STEPS)

    assert [1, 4, 0, 3] == count.tolist()
    assert [2.0, 16.0, 1.0, 8.0] == jnp.asarray(x).tolist()


def test_a_lane_that_is_done_is_not_started_by_another():
    """A condition that looks at other lanes starts no lane anew that it has ended."""

    def run(x):
        def cond(s):
            others = jax.lax.psum(s, "lanes") - s
            return jnp.where(jax.lax.axis_index("lanes") == 0, s < 3, others >= 2)

        return loops.while_loop(cond, lambda s: s + 1, x)

    assert [3, 0] == jax.vmap(run, axis_name="lanes")(jnp.array([0, 0])).tolist()


def test_a_condition_has_its_effects_once_a_step():
    """A print in the condition of two lanes comes as often as the condition is asked for."""
    asked = []

    def run(n):
        def cond(i):
            jax.debug.callback(lambda i: asked.append(int(i)), i, ordered=True)
            return i < n

        return loops.while_loop(cond, lambda i: i + 1, n * 0)

    jax.block_until_ready(jax.vmap(run)(jnp.array([1, 2])))
    jax.effects_barrier()

    assert [0, 0, 1, 1, 1, 2] == asked


def test_a_counter_that_depends_on_no_lane_stays_a_scalar():
    """The body reads and adds to one counter, and nothing is gathered lane by lane."""
    rows = jnp.ones((4, 6))
    sums = jax.vmap(lambda x, n: loops.fori_loop(0, n, lambda i, c: c + x[i], 0.0))
    (loop,) = [e for e in jax.make_jaxpr(sums)(rows, STEPS).eqns if e.primitive.name == "while"]
    carry = loop.params["body_jaxpr"].in_avals[loop.params["body_nconsts"] :]

    assert () == carry[0].shape
    assert [1.0, 4.0, 0.0, 3.0] == jnp.asarray(sums(rows, STEPS)).tolist()


def test_what_a_counter_was_is_dropped_where_nobody_asks():
    """Compiled, a loop whose counter is not used carries no copy of it for each lane."""
    text = jax.jit(jax.vmap(lambda n: doubled(n, 1.0)[1])).lower(STEPS).compile().as_text()
    assert text is not None
    loops_in_text = [line for line in text.splitlines() if " while(" in line]

    assert loops_in_text
    assert all(line.split("=")[1].count("s32[4]") <= 1 for line in loops_in_text)


@pytest.mark.parametrize(
    ("axes", "steps", "x"),
    [
        ((0, None), jnp.array([[0, 2], [3, 1]]), jnp.float32(1)),
        ((None, 0), jnp.array(2), jnp.ones((2, 2))),
    ],
    ids=["steps", "values"],
)
def test_two_batches_of_lanes(axes, steps, x):
    """A loop batched twice ends each lane of both batches at its own step."""
    count, doubled_x = jax.vmap(jax.vmap(doubled, axes), axes)(steps, x)

    expected = jnp.broadcast_to(steps, (2, 2))
    assert expected.tolist() == jnp.broadcast_to(count, (2, 2)).tolist()
    assert jnp.exp2(expected.astype(float)).tolist() == doubled_x.tolist()


def test_read_only_carry_is_not_batched_though_the_condition_reads_it():
    """A bound that rides in the carry stays one value, whichever lanes run."""

    def run(n, limit):
        step = lambda s: (s[0] + 1, s[1])
        return loops.while_loop(lambda s: (s[0] < n) & (s[0] < s[1]), step, (0, limit))

    batched = jax.vmap(run, (0, None))
    jaxpr = jax.make_jaxpr(batched)(STEPS, 2)
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "while"]

    assert jaxpr.jaxpr.invars[1] in loop.invars
    assert [1, 2, 0, 2] == batched(STEPS, 2)[0].tolist()
    assert [2] * 4 == jnp.broadcast_to(batched(STEPS, 2)[1], (4,)).tolist()


def test_derivatives_of_lanes():
    """jvp of vmap and vmap of jvp agree with the closed form n * x**(n - 1)."""

    def power(n, x):
        return loops.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), (0, 1.0))[1]

    x = jnp.float32(3)
    expected = [1.0, 4 * 27.0, 0.0, 3 * 9.0]
    inside = jax.vmap(lambda n: jax.jvp(lambda x: power(n, x), (x,), (1.0,))[1])(STEPS)
    outside = jax.jvp(lambda x: jax.vmap(power, (0, None))(STEPS, x), (x,), (jnp.float32(1),))[1]

    assert expected == inside.tolist()
    assert expected == outside.tolist()


def test_nan_after_a_lanes_end_is_never_seen():
    """Steps that run for other lanes make no NaN in a lane that is done, nor in its tangent."""

    def root(n, x):
        return loops.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sqrt(s[1] - 1)), (0, x)
        )[1]

    x = jnp.array([1.5, 40.0])
    values, tangents = jax.jvp(lambda x: jax.vmap(root)(jnp.array([1, 2]), x), (x,), (jnp.ones(2),))

    assert jnp.isfinite(values).all()
    assert jnp.isfinite(tangents).all()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_lane_that_is_done_writes_to_no_ref(wrap):
    """A Ref that the body adds to counts the steps of its own lane, beside a shared counter."""

    def count(n):
        ref = jax.new_ref(jnp.int32(0))

        def body(i):
            ref[...] += 1
            return i + 1

        loops.while_loop(lambda i: i < n, body, 0)
        return jax.freeze(ref)

    assert STEPS.tolist() == wrap(jax.vmap(count))(STEPS).tolist()
