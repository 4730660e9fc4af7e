"""checkify around vmap and shard_map: whose error it is, and a lane that is done has none."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from checks.python_loops import map_by_hand
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, Implementation

ALL = checkify.all_checks

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)


def checked(fun, *args, errors=ALL, compile_=jax.jit):
    """What checkify says of a call, and what the call returns."""
    error, out = compile_(checkify.checkify(fun, errors=errors))(*args)
    return error.get(), out


def count_to(limit, start=0, check=checkify.check):
    """A loop whose checks hold in each of its steps and in none after them."""

    def body(state):
        i, total = state
        check(i < limit, "step {i} of {limit}", i=i, limit=limit)
        row = jnp.ones(4, jnp.float32).at[i].get(mode="promise_in_bounds")
        return i + 1, total + row / (limit - i).astype(jnp.float32)

    return OURS.while_loop(lambda s: s[0] < limit, body, (start, jnp.float32(0.0)))


def counted(*batches):
    """What `count_to` makes of each lane, lane by lane and unchecked."""
    return map_by_hand(lambda *lane: count_to(*lane, check=lambda *_, **__: None), *batches)


def fails_at(step, limit):
    """A loop that reports itself at one of its steps."""

    def body(i):
        checkify.check(i != step, "lane to {limit} at step {i}", i=i, limit=limit)
        return i + 1

    return OURS.while_loop(lambda i: i < limit, body, 0)


@primitives
def test_vmap_of_a_checked_loop(loops: Implementation):
    """Checked first and batched then, each lane has an error of its own."""

    def body(i, c):
        checkify.check(c < 5, "at {c}", c=c)
        return c + 1

    error, _ = jax.vmap(checkify.checkify(lambda c: loops.fori_loop(0, 3, body, c)))(jnp.arange(5))
    assert error.get() == "\n".join(
        f"at mapped index {lane}: at 5 (`check` failed)" for lane in (3, 4)
    )


def test_vmap_of_a_checked_loop_over_lanes():
    """Checked first and batched then, a lane that is done reports nothing."""
    error, out = jax.vmap(checkify.checkify(count_to, errors=ALL))(jnp.array([2, 0, 4]))
    assert error.get() is None
    assert_same(out, counted(jnp.array([2, 0, 4])))


@primitives
def test_checks_of_a_batched_scan(loops: Implementation):
    """Batched first and checked then, the first step with a lane that fails reports."""

    def step(c, x):
        checkify.check(c < 5.0, "at {c}", c=c)
        return c + x, None

    fun = jax.vmap(lambda c: loops.scan(step, c, jnp.ones(3, jnp.float32))[0])
    assert checked(fun, jnp.float32([0.0, 4.0, 1.0]))[0] == "at 5.0 (`check` failed)"
    assert checked(fun, jnp.float32([0.0, 1.0, 2.0]))[0] is None


@pytest.mark.parametrize("compile_", [jax.jit, lambda fun: fun], ids=["jit", "eager"])
@pytest.mark.parametrize("limits", [[1, 3], [4, 2, 0], [0, 0]], ids=str)
def test_finished_lanes_report_nothing(limits, compile_):
    """A lane that is done, or never runs, meets none of the errors of a step too many."""
    limits = jnp.array(limits)
    message, out = checked(jax.vmap(count_to), limits, compile_=compile_)
    assert message is None
    assert_same(out, counted(limits))


@pytest.mark.parametrize("errors", [checkify.user_checks, ALL], ids=["user", "all"])
@pytest.mark.parametrize(
    ("step", "limits", "message"),
    [
        (1, [1, 0, 3], "lane to 3 at step 1"),
        (0, [0, 2, 0], "lane to 2 at step 0"),
        (4, [4, 2], None),
    ],
)
def test_running_lanes_report(errors, step, limits, message):
    """A lane that runs reports its error, though others are done."""
    fun = jax.vmap(lambda limit: fails_at(step, limit))
    got, out = checked(fun, jnp.array(limits), errors=errors)
    assert got == (message and f"{message} (`check` failed)")
    assert_same(out, jnp.array(limits), weak_types=False)


def test_first_failing_step_of_all_lanes():
    """Of errors in several lanes the one of the earliest step reports, whatever its kind."""

    def fun(start, divisor):
        def cond(state):
            checkify.check(state[1] < 6.0, "six or more")
            return state[0] > 0

        def body(state):
            checkify.check(state[1] >= 0.0, "negative: {}", state[1])
            return state[0] - 1, state[1] - 1.0 + 0.0 / state[1]

        return OURS.while_loop(cond, body, (start, divisor))

    once = jax.jit(checkify.checkify(jax.vmap(fun), errors=ALL))

    def run(*divisors):
        return once(jnp.array([1, 3, 4]), jnp.float32(divisors))[0].get()

    assert run(5.0, 4.0, 5.0) is None
    assert run(5.0, 1.0, 5.0) == "division by zero"
    assert run(5.0, 2.0, -4.0) == "negative: -4.0 (`check` failed)"
    assert run(6.0, 2.0, -4.0) == "six or more (`check` failed)"
    assert run(0.5, 2.0, 2.0) == "division by zero"


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_constants_with_lanes_along_any_axis(axis):
    """A lane that never runs is given another's constants, wherever their batch axis is."""
    tables = jnp.moveaxis(jnp.float32([[[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 2.0]]]), 0, axis)

    def fun(limit, table):
        body = lambda s: (s[0] + 1, s[1] + 1.0 / table[0, s[0]])
        return OURS.while_loop(lambda s: s[0] < limit, body, (0, jnp.float32(0.0)))

    batched = jax.vmap(fun, (0, axis))
    message, (_, sums) = checked(batched, jnp.array([0, 1, 2]), tables)
    assert message is None
    assert_same(sums, jnp.float32([0.0, 1.0, 1.5]))
    assert checked(batched, jnp.array([0, 2, 2]), tables)[0] == "division by zero"


def test_lanes_of_two_vmaps():
    """Lanes of nested vmaps are done each on its own, whichever axes they have."""
    limits, starts = jnp.array([[0, 1, 3], [4, 0, 2]]), jnp.array([[0, 2, 1], [1, 1, 1]])
    want = map_by_hand(counted, limits, starts)
    for axis in (0, 1):
        fun = jax.vmap(jax.vmap(count_to), axis, axis)
        message, out = checked(fun, limits, starts)
        assert message is None
        assert_same(out, want)
    along_one = jax.vmap(jax.vmap(count_to, (None, 0)), (0, None))
    limits, starts = jnp.array([0, 2, 4]), jnp.array([3, 1])
    message, out = checked(along_one, limits, starts)
    assert message is None
    grid = jnp.broadcast_arrays(limits[:, None], starts[None, :])
    assert_same(out, map_by_hand(counted, *grid))


@pytest.mark.parametrize(
    "transform",
    [
        lambda fun: lambda x: jax.jvp(fun, (x,), (jnp.ones_like(x),))[1],
        jax.jacfwd,
        lambda fun: jax.grad(lambda x: jnp.sum(x * jax.lax.stop_gradient(fun(x)))),
        lambda fun: lambda x: OURS.scan(lambda c, _: (c + fun(x), None), x, None, length=2)[0],
        jax.checkpoint,
    ],
    ids=["jvp", "jacfwd", "grad", "scan", "checkpoint"],
)
def test_lanes_under_a_further_transformation(transform):
    """What is done after vmap leaves lanes that are done silent."""

    def loop(x):
        body = lambda s: (s[0] + 1.0, s[1] + x / (x - s[0]))
        return OURS.while_loop(lambda s: s[0] < x, body, (0.0 * x, x))[1]

    fun = transform(jax.vmap(loop))
    message, out = checked(fun, jnp.float32([0.0, 3.0]))
    assert message is None
    assert_same(out, jax.jit(fun)(jnp.float32([0.0, 3.0])))


def test_bodies_traced_before_without_checks():
    """A body that a cache keeps from a call without checkify is batched anew for one with it."""

    def step(c, limits):
        return c, jax.vmap(lambda n: count_to(n, check=lambda *_, **__: None))(limits)

    fun = lambda limits: OURS.scan(step, 0.0, limits)[1]
    limits = jnp.array([[0, 1, 3], [4, 0, 2]])
    plain = fun(limits)
    message, out = checked(fun, limits)
    assert message is None
    assert_same(out, plain)


def test_jits_traced_before_without_checks():
    """Where JAX keeps a whole jit from before, checks that could be wrong are refused."""

    def loop(n):
        cond = lambda s: (s[0] < n) & (1.0 / (9.0 - s[0]) > 0.0)
        body = lambda s: (s[0] + 1.0, s[1] + 1.0 / (n - s[0]))
        return OURS.while_loop(cond, body, (0.0, 0.0))

    fun = jax.jit(jax.vmap(loop))
    limits = jnp.float32([0, 1, 3])
    plain = fun(limits)
    with pytest.raises(NotImplementedError, match="traced before without checkify"):
        checked(fun, limits)
    assert checked(fun, limits, errors=checkify.user_checks)[0] is None
    jax.clear_caches()
    message, out = checked(fun, limits)
    assert message is None
    assert_same(out, plain)


def test_debug_checks_traced_before():
    """A loop with checks that only checkify runs is batched for them, whoever traces it first."""

    def fun(limit):
        def body(i):
            checkify.debug_check(i < limit, "step {i} of {limit}", i=i, limit=limit)
            return i + 1

        return OURS.while_loop(lambda i: i < limit, body, 0)

    batched = jax.jit(jax.vmap(fun))
    limits = jnp.array([0, 1, 3])
    assert_same(batched(limits), limits, weak_types=False)
    message, out = checked(batched, limits, errors=checkify.user_checks)
    assert message is None
    assert_same(out, limits, weak_types=False)


def test_unchecked_loops_over_lanes_pass():
    """A loop over lanes without enabled checks is left as it is, whatever it does."""
    fun = lambda x: OURS.while_loop(
        lambda c: c < 3.0, lambda c: c + jax.lax.psum(1.0, "lanes") / 3.0, x
    )
    batched = jax.vmap(fun, axis_name="lanes")
    xs = jnp.float32([0.0, 1.0, 5.0])
    message, out = checked(batched, xs, errors=checkify.user_checks)
    assert message is None
    assert_same(out, batched(xs))


def collective(limit):
    """A loop whose lanes add up what they have."""
    body = lambda i: i + 1 + jax.lax.pmax(0 * i, "lanes") // (limit - i)
    return OURS.while_loop(lambda i: i < limit, body, 0)


def knows_its_lane(limit):
    """A loop that reads which lane it is."""
    body = lambda i: i + 1 + 0 // (limit - i - jax.lax.axis_index("lanes") * 0)
    return OURS.while_loop(lambda i: i < limit, body, 0)


def closes_over_a_ref(limit):
    """A loop that counts its steps in a Ref."""
    steps = jax.new_ref(0)

    def body(i):
        steps[...] += 1
        return i + 1 + 0 // (limit - i)

    return OURS.while_loop(lambda i: i < limit, body, 0)


def product_of_two(limit):
    """A loop in two vmaps that closes over one value of each."""

    def inner(start, more):
        body = lambda i: i + 1 + 0 // (limit - i) + 0 // (more - i)
        return OURS.while_loop(lambda i: i < jnp.minimum(limit, more), body, start)

    return jax.vmap(inner, (0, 0))(limit * jnp.arange(2), jnp.array([3, 4]))


@pytest.mark.parametrize(
    ("fun", "reason"),
    [
        (collective, "its body has a collective over the lanes"),
        (knows_its_lane, "its body has a collective over the lanes"),
        (closes_over_a_ref, "its body closes over a Ref"),
        (product_of_two, "values that it closes over differ along different vmaps"),
    ],
)
def test_loops_over_lanes_that_are_refused(fun, reason):
    """Where a lane that is done could report an error, the loop is refused and says why."""
    with pytest.raises(NotImplementedError, match=reason) as raised:
        checked(jax.vmap(fun, axis_name="lanes"), jnp.array([1, 2]))
    assert "jax.vmap(checkify.checkify(fun))" in str(raised.value)


# ---------------------------------------------------------------- devices, types and Refs


def test_errors_of_devices():
    """Inside shard_map each device has its own first error; JAX's scan is refused there."""
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))

    @jax.shard_map(mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))
    def fun(rows):
        def step(c, row):
            checkify.check(row < 6.0, "row {row}", row=row)
            return c + row, row / (row - 2.0)

        return OURS.scan(step, 0.0, rows)[1]

    message, _ = checked(fun, jnp.arange(8.0))
    assert message == (
        "at mapped index 1: division by zero\nat mapped index 3: row 6.0 (`check` failed)"
    )


def test_shard_map_in_a_body():
    """A shard_map inside a loop reports by device, beside an error from before the loop."""
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))
    spec = PartitionSpec("data")

    @jax.shard_map(mesh=mesh, in_specs=spec, out_specs=spec)
    def step(row):
        checkify.check(row[0] < 5.0, "row {row}", row=row[0])
        return row + 1.0

    def fun(rows, limit):
        checkify.check(limit > 0, "before")
        return OURS.fori_loop(0, 3, lambda _, rows: step(rows), rows)

    message, _ = checked(fun, jnp.arange(4.0), 1)
    assert message == "at mapped index 3: row 5.0 (`check` failed)"
    assert "before" in checked(fun, jnp.arange(4.0), 0)[0]


def test_values_in_a_message():
    """A message may hold a random key, or an array with explicit sharding."""

    def step(c, i):
        key, row = c
        checkify.check(i < 1, "{data} {row}", key, data=jax.random.key_data(key), row=row)
        return (jax.random.fold_in(key, i), row + 1.0), None

    mesh = jax.make_mesh((4,), ("data",), (AxisType.Explicit,))
    with jax.set_mesh(mesh):
        row = jax.device_put(jnp.zeros(4), NamedSharding(mesh, PartitionSpec("data")))
        fun = lambda key, row: OURS.scan(step, (key, row), jnp.arange(3))[0][1]
        message, _ = checked(fun, jax.random.key(0), row)
    data = jax.random.key_data(jax.random.fold_in(jax.random.key(0), 0))
    assert message == f"{data} [1. 1. 1. 1.] (`check` failed)"


@primitives
def test_refs_in_a_checked_loop(loops: Implementation):
    """A body may read and write a Ref in its checks."""

    def fun(limit):
        total = jax.new_ref(0.0)

        def body(i):
            total[...] += 1.0
            checkify.check(total[...] < 2.5, "total {t}", t=total[...])
            return i + 1

        return loops.while_loop(lambda i: i < limit, body, 0), total[...]

    message, (_, total) = checked(fun, 4)
    assert (message, float(total)) == ("total 3.0 (`check` failed)", 4.0)


def test_sixty_four_bits(x64):
    """With 64-bit types codes and values of errors keep one type each."""
    step = lambda c, i: (c / (2.0 - i.astype(float)), checkify.check(i < 3, "step {i}", i=i))
    assert checked(lambda c: OURS.scan(step, c, jnp.arange(4))[0], 1.0)[0] == "division by zero"
