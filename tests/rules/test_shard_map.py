"""Loops inside `jax.shard_map`: carries and predicates that vary over mesh axes, collectives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import loops
from checks import CarryTypeError, missing_varying_axes
from tests.helpers.comparison import assert_same
from tests.helpers.equations import equations

AXES = ("i", "j")
# The rows of each of the four devices are different, so that no two have the same result.
ROWS = jnp.linspace(-1.0, 2.0, 8, dtype=jnp.float32)


def mesh_of(axis_type: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    """Two by two devices."""
    return jax.make_mesh((2, 2), AXES, axis_types=(axis_type,) * 2)


def on_each_device(fun, *, check_vma: bool = True, axis_type: AxisType = AxisType.Auto):
    """`fun` of each device's two rows; each leaf of the result gets one row for each device."""
    mesh = mesh_of(axis_type)

    def local(rows):
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], fun(rows))

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=check_vma
    )
    return lambda rows: mapped(jax.device_put(rows, NamedSharding(mesh, P(AXES))))


def one_after_the_other(fun, rows):
    """What `on_each_device` should give, without a mesh."""
    results = [fun(local) for local in rows.reshape(4, 2)]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *results)


def scan_sum(lib, rows):
    """A float sum from a float zero."""
    return lib.scan(lambda c, x: (c + x, c * x), jnp.float32(0), rows)


def scan_weak(lib, rows):
    """A float sum from an integer zero: promoted and cast."""
    return lib.scan(lambda c, x: (c + x, None), 0, rows)[0]


def scan_numpy(lib, rows):
    """A sum from a scalar of NumPy, whose type has met no mesh."""
    return lib.scan(lambda c, x: (c + x, None), np.float32(0), rows)[0]


def scan_chain(lib, rows):
    """Three parts that feed each other: one more varies after each pass."""

    def body(carry, x):
        a, b, c = carry
        return (b, c, c + x), a

    zero = jnp.float32(0)
    return lib.scan(body, (zero, zero, zero), rows)


def scan_unrolled(lib, rows):
    """A product, unrolled and in reverse, that stacks its steps."""
    step = lambda c, x: (jnp.sin(c) * x, c)
    return lib.scan(step, jnp.float32(1), rows, reverse=True, unroll=2)


def while_counted(lib, rows):
    """A counter that varies over nothing beside a sum that varies."""
    carry = (0, jnp.float32(0))
    return lib.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + rows[0] * rows[1]), carry)


def fori_static(lib, rows):
    """Bounds that are known."""
    return lib.fori_loop(0, 2, lambda i, c: c * 2 + rows[i], jnp.float32(0))


def fori_dynamic(lib, rows):
    """An upper bound that is traced and the same on each device."""
    run = lambda n: lib.fori_loop(0, n, lambda i, c: c * 2 + rows[i], jnp.float32(0))
    return jax.jit(run)(2)


def nested(lib, rows):
    """A loop inside a loop, both of whose carries must be cast."""
    inner = lambda x: lib.fori_loop(0, 2, lambda _, d: d * x + 1, jnp.float32(0))
    return lib.scan(lambda c, x: (c + inner(x), c), jnp.float32(0), rows)


def gradient(lib, rows):
    """Reverse mode for what varies."""
    step = lambda c, x: (jnp.sin(c) + x * x, None)
    return jax.grad(lambda rows: lib.scan(step, jnp.float32(0), rows)[0])(rows)


def checkpointed_gradient(lib, rows):
    """The same through jax.checkpoint, in the body and around the loop."""
    step = jax.checkpoint(lambda c, x: (jnp.sin(c) + x * x, None))
    loss = lambda rows: lib.scan(step, jnp.float32(0), rows)[0]
    return jax.grad(jax.checkpoint(loss))(rows)


def tangent(lib, rows):
    """Forward mode through a while loop."""

    def run(x):
        step = lambda c: (c[0] + 1, c[1] * x + rows[0])
        return lib.while_loop(lambda c: c[0] < 3, step, (0, jnp.float32(1)))[1]

    return jax.jvp(run, (rows[1],), (rows[0],))


def batched(lib, rows):
    """vmap of a loop whose carry must be cast."""
    step = lambda w: lambda c, x: (c * w + x, c)
    run = lambda w: lib.scan(step(w), jnp.float32(0), rows)
    return jax.vmap(run)(jnp.arange(3, dtype=jnp.float32))


def batched_lanes(lib, rows):
    """vmap of a while loop with a predicate of its own in each lane."""

    def run(last):
        step = lambda c: (c[0] + 1, c[1] + rows[0])
        return lib.while_loop(lambda c: c[0] < last, step, (0, jnp.float32(0)))

    return jax.vmap(run)(jnp.arange(3))


def mapped(lib, rows):
    """`map`, which has no carry."""
    return lib.map(lambda x: x * x, rows)


SHORT = [scan_weak, scan_chain, while_counted, fori_static, gradient]
PROGRAMS = [
    *SHORT,
    *(scan_sum, scan_numpy, scan_unrolled, fori_dynamic, nested),
    *(checkpointed_gradient, tangent, batched, batched_lanes, mapped),
]
named = lambda fun: fun.__name__
few_programs = pytest.mark.parametrize("program", SHORT, ids=named)


@functools.cache
def wanted(program):
    """What a program gives on each device, by `jax.lax` and without a mesh."""
    return one_after_the_other(jax.jit(lambda rows: program(lax, rows)), ROWS)


@pytest.fixture(autouse=True)
def _standard_promotion():
    """A weakly typed integer that becomes a float is a promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_each_device_computes_what_it_would_alone(program):
    """An init that varies over nothing is cast where the body's output varies."""
    got = jax.jit(on_each_device(lambda rows: program(loops, rows)))(ROWS)
    assert_same(got, wanted(program), weak_types=False)


@few_programs
def test_explicit_mesh(program):
    """The same where the arrays' types carry their shardings."""
    explicit = on_each_device(lambda rows: program(loops, rows), axis_type=AxisType.Explicit)
    assert_same(jax.jit(explicit)(ROWS), wanted(program), weak_types=False)


@few_programs
def test_unchecked(program):
    """With `check_vma=False` no type varies, and nothing is cast."""
    unchecked = on_each_device(lambda rows: program(loops, rows), check_vma=False)
    assert not equations(unchecked, ROWS, name="pvary")
    assert_same(jax.jit(unchecked)(ROWS), wanted(program), weak_types=False)


@few_programs
def test_without_jit(program):
    """An eager `shard_map` runs each loop as one operation."""
    got = on_each_device(lambda rows: program(loops, rows))(ROWS)
    assert_same(got, wanted(program), weak_types=False)


@pytest.mark.parametrize("program", [scan_chain, while_counted, gradient], ids=named)
def test_step_by_step(program):
    """Under `jax.disable_jit` the same inits are cast."""
    with jax.disable_jit():
        got = on_each_device(lambda rows: program(loops, rows))(ROWS)
    assert_same(got, wanted(program), weak_types=False)


def traces_of(init) -> list[bool]:
    """Whether the carry varied, for each time that the body of a scan was traced."""
    seen = []

    def local(rows):
        def body(c, x):
            seen.append(bool(jax.typeof(c).mat.varying))
            return c + x, None

        return loops.scan(body, init(rows), rows)[0]

    jax.jit(on_each_device(local)).trace(ROWS)
    return seen


def test_a_cast_costs_one_trace():
    """The body is traced again after a cast, and once where the init varies already."""
    assert traces_of(lambda rows: jnp.float32(0)) == [False, True]
    assert traces_of(lambda rows: rows[0]) == [True]


def test_promotion_and_cast_share_a_trace():
    """A weak zero is promoted and cast in one pass."""
    assert traces_of(lambda rows: 0) == [False, True]


def test_the_cast_is_outside_the_loop():
    """The jaxpr has one cast before the loop and none inside, and none if the init varies."""

    def casts(init):
        fun = on_each_device(lambda rows: loops.scan(lambda c, x: (c + x, c), init(rows), rows))
        (loop,) = equations(fun, ROWS, name="scan")
        inside = [eqn.primitive.name for eqn in loop.params["jaxpr"].eqns]
        return len(equations(fun, ROWS, name="pvary")), inside.count("pvary")

    assert casts(lambda rows: jnp.float32(0)) == (1, 0)
    assert casts(lambda rows: rows[0]) == (0, 0)


def test_the_counter_of_a_loop_stays_the_same_everywhere():
    """A part of the carry that does not vary may leave shard_map as a replicated value."""
    fun = lambda rows: while_counted(loops, rows)[0]
    mapped = jax.shard_map(fun, mesh=mesh_of(), in_specs=P(AXES), out_specs=P())
    assert jax.jit(mapped)(ROWS) == 3


REFUSED = {
    "shape": (lambda c, x: (c + x[None], None), "shape"),
    "dtype": (lambda c, x: ((c + x).astype(jnp.bfloat16), None), "dtype"),
    "varies less": (lambda c, x: (lax.psum(c + x, AXES), None), "varying axes"),
}


@pytest.mark.parametrize(("body", "kind"), REFUSED.values(), ids=REFUSED)
def test_other_differences_are_refused(body, kind):
    """Where more differs than that the output varies over more axes, nothing is cast."""

    def local(rows):
        init = rows[0] if kind == "varying axes" else jnp.float32(0)
        return loops.scan(body, init, rows)[0]

    with pytest.raises(CarryTypeError) as caught:
        jax.jit(on_each_device(local)).trace(ROWS)
    assert caught.value.mismatches[0].kind == kind


def test_axes_that_are_missing():
    """The rule itself: axes in order, and none for equal types or where more differs."""
    found = []

    def local(rows):
        (x,) = rows[:1]
        one, more = jax.typeof(lax.psum(x, "j")), jax.typeof(x)
        plain = jax.typeof(jnp.float32(0))
        pairs = [(plain, more), (one, more), (more, one), (more, more)]
        pairs += [(jax.typeof(0.0), more), (jax.typeof(jnp.int32(0)), more)]
        pairs += [(jax.typeof(jnp.zeros(1)), more)]
        found.extend(missing_varying_axes(*zip(*pairs, strict=True)))
        return rows

    jax.jit(on_each_device(local)).trace(ROWS)
    assert found == [("i", "j"), ("j",), (), (), ("i", "j"), (), ()]


def uneven(step, init, make_predicate=lambda last: lambda c: c[0] < last):
    """A loop that runs for another number of steps on each device."""
    return lambda rows: loops.while_loop(make_predicate(rows[0]), step, init)


UNEVEN = {
    "doubled": uneven(lambda c: (c[0] + 1, c[1] * 2, c[2]), (-1.0, 1, 7)),
    "set": uneven(lambda c: (c[0] + 1, 5, c[2]), (-1.0, 1, 7)),
    "swapped": uneven(lambda c: (c[0] + 1, c[2], c[1]), (-1.0, 1, 7)),
    "fori_loop": lambda rows: loops.fori_loop(
        0, 1 + jnp.abs(rows[0] * 4).astype(int), lambda i, c: (c[0] * 2, i, c[2]), (1, 9, 7)
    ),
    "lanes": lambda rows: jax.vmap(
        lambda w: uneven(lambda c: (c[0] + w, c[1] * 2, c[2]), (-1.0, 1, 7))(rows)
    )(jnp.float32([0.5, 1.0])),
    "tangent": lambda rows: jax.jvp(
        lambda w: uneven(lambda c: (c[0] + 1, c[1] * w, c[2]), (-1.0, 1.0, 7.0))(rows)[1],
        (jnp.float32(2),),
        (jnp.float32(1),),
    ),
}


@pytest.mark.parametrize("fun", UNEVEN.values(), ids=UNEVEN)
def test_devices_may_leave_a_loop_at_steps_of_their_own(fun):
    """Each device has its own result, also in parts that one step treats alike everywhere."""
    want = one_after_the_other(jax.jit(fun), ROWS)
    assert_same(jax.jit(on_each_device(fun))(ROWS), want, weak_types=False)


def test_devices_may_leave_a_loop_at_steps_of_their_own_step_by_step():
    """The same under `jax.disable_jit`, where the condition has no one value."""
    fun = UNEVEN["doubled"]
    with jax.disable_jit():
        got = on_each_device(fun)(ROWS)
    assert_same(got, one_after_the_other(jax.jit(fun), ROWS), weak_types=False)


@pytest.mark.parametrize("position", [0, 1])
def test_an_uneven_result_is_not_taken_for_a_replicated_one(position):
    """Promising that all devices agree on such a result is refused, and not believed."""
    fun = lambda rows: UNEVEN["doubled"](rows)[position]
    mapped = jax.shard_map(fun, mesh=mesh_of(), in_specs=P(AXES), out_specs=P())
    with pytest.raises(ValueError, match="out_specs"):
        jax.jit(mapped).trace(ROWS)


def test_what_an_uneven_loop_only_hands_on_stays_replicated():
    """A part that no step changes is the same after any number of them."""
    fun = lambda rows: UNEVEN["doubled"](rows)[2]
    mapped = jax.shard_map(fun, mesh=mesh_of(), in_specs=P(AXES), out_specs=P())
    assert jax.jit(mapped)(ROWS) == 7


COLLECTIVES = {
    "psum": lambda c, x: (c + lax.psum(x, AXES), x - lax.pmean(c, "i")),
    "all_gather": lambda c, x: (c + lax.all_gather(x, "i").sum() * c, c),
    "ppermute": lambda c, x: (lax.ppermute(c + x, "j", [(0, 1), (1, 0)]), c),
    "axis_index": lambda c, x: (c * lax.axis_index("i") + x, None),
}


@pytest.mark.parametrize("body", COLLECTIVES.values(), ids=COLLECTIVES)
def test_collectives_in_a_body(body):
    """Collectives, and their gradients, are those of the loop written out."""

    def unrolled(init, rows):
        carry, ys = init, []
        for x in rows:
            carry, y = body(carry, x)
            ys.append(y)
        return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)

    def value_and_gradient(run):
        def loss(rows):
            carry, ys = run(rows[1] * 2, rows)
            return carry + sum(leaf.sum() for leaf in jax.tree.leaves(ys))

        return on_each_device(jax.value_and_grad(loss))

    got = jax.jit(value_and_gradient(lambda init, rows: loops.scan(body, init, rows)))(ROWS)
    assert_same(got, jax.jit(value_and_gradient(unrolled))(ROWS))


def test_a_psum_of_the_carry_decides_when_to_stop():
    """A condition with a collective runs all devices for the same number of steps."""

    def local(rows):
        total = lambda c: lax.psum(c[1], AXES)
        step = lambda c: (c[0] + 1, c[1] * 2)
        return loops.while_loop(lambda c: total(c) < 100, step, (0, jnp.abs(rows[0])))[0]

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P(AXES), out_specs=P())
    total, steps = float(jnp.abs(ROWS[::2]).sum()), 0
    while total < 100:
        total, steps = total * 2, steps + 1
    assert jax.jit(mapped)(ROWS) == steps
