"""Loops over hijax values: in the carry, xs, ys and constants; mutable boxes and logs."""

import importlib

import jax
import jax.numpy as jnp
import pytest

import checks
import loops
from tests.helpers.comparison import assert_same
from tests.helpers.hijax_types import Pair, pair, take_apart

# The mutable types are no public names, and gone with JAX 0.12.
BOXES = importlib.import_module("jax._src.hijax")
needs_boxes = pytest.mark.skipif(not hasattr(BOXES, "Box"), reason="this JAX has no mutable boxes")

X = Pair(jnp.float32(1.0), jnp.float32(2.0))
ROWS = Pair(jnp.arange(3.0), jnp.arange(5.0, 8.0))


def step(c, _):
    """A step of pairs, and an array for each."""
    first, second = take_apart(c)
    return pair(second, jnp.sin(first) * second), first


def step_of_arrays(c, _):
    """The same without pairs."""
    first, second = c
    return (second, jnp.sin(first) * second), first


def parts(x):
    """The arrays of a pair as a tuple."""
    return x.first, x.second


@pytest.mark.parametrize("jit", [False, True])
def test_carry_of_a_scan(jit):
    """A pair is carried as its two arrays are."""
    run = lambda x: loops.scan(step, x, length=4)
    carry, ys = (jax.jit(run) if jit else run)(X)

    assert_same((parts(carry), ys), loops.scan(step_of_arrays, parts(X), length=4))


@pytest.mark.parametrize("jit", [False, True])
def test_carry_of_a_while_loop(jit):
    """So it is in a while loop, whose condition reads it."""

    def run(x):
        is_small = lambda c: take_apart(c)[0] < 10
        return loops.while_loop(is_small, lambda c: pair(take_apart(c)[1] * 2, c_first(c)), x)

    def c_first(c):
        return take_apart(c)[0] + 1

    carry = (jax.jit(run) if jit else run)(X)
    expected = loops.while_loop(lambda c: c[0] < 10, lambda c: (c[1] * 2, c[0] + 1), parts(X))
    assert_same(parts(carry), expected)


@pytest.mark.parametrize("traced", [False, True])
def test_carry_of_a_fori_loop(traced):
    """So it is in a fori_loop, also where it becomes a while loop."""
    run = lambda n: loops.fori_loop(0, n, lambda i, c: step(c, None)[0], X)
    carry = jax.jit(run)(3) if traced else run(3)

    assert_same(parts(carry), loops.scan(step_of_arrays, parts(X), length=3)[0])


@pytest.mark.parametrize("disable_jit", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_xs_and_ys(reverse, disable_jit):
    """Rows of pairs are pairs, and pairs that are returned are stacked."""

    def swap(total, x):
        first, second = take_apart(x)
        return total + first * second, pair(second, first)

    with jax.disable_jit(disable_jit):
        total, ys = loops.scan(swap, 0.0, ROWS, length=3, reverse=reverse)

    assert_same(total, jnp.float32(6 + 14))
    assert_same(parts(ys), (ROWS.second, ROWS.first))


def test_constants():
    """A body may close over a pair, also one that is traced."""
    run = lambda x: loops.scan(lambda c, _: (c + take_apart(x)[1], None), 0.0, length=3)[0]

    assert_same([run(X), jax.jit(run)(X)], [jnp.float32(6.0)] * 2)


@pytest.mark.parametrize("run", [lambda x: loops.scan(step, x, length=4)[0], lambda x: x])
def test_what_need_not_go_through_the_loop(run):
    """A pair that no step changes comes out as the value that went in."""
    unchanged = lambda c, _: ((c[0], c[1] + 1), c[0])
    (x, steps), ys = loops.scan(unchanged, (run(X), 0), length=2)

    assert_same((parts(x), steps), (parts(run(X)), jnp.int32(2)), weak_types=False)
    assert_same(parts(ys), tuple(jnp.stack([part] * 2) for part in parts(run(X))))


def test_derivatives():
    """Every mode follows the arrays of a pair."""

    def total(run, make, take, a):
        return sum(take(loops.scan(run, make(a, 2 * a), length=3)[0]))

    ours = lambda a: total(step, pair, take_apart, a)
    expected = lambda a: total(step_of_arrays, lambda *c: c, tuple, a)
    a = jnp.float32(0.7)
    assert_same(jax.value_and_grad(ours)(a), jax.value_and_grad(expected)(a))
    assert_same(jax.jit(jax.grad(ours))(a), jax.grad(expected)(a))
    assert_same(jax.jvp(ours, (a,), (a,)), jax.jvp(expected, (a,), (a,)))


def test_cotangents_that_are_pairs():
    """The gradient for a pair is a pair, and so is that for stacked pairs."""
    (gradient,) = jax.vjp(lambda x: loops.scan(step, x, length=3)[0], X)[1](X)
    arrays = lambda x: loops.scan(step_of_arrays, x, length=3)[0]
    assert_same(parts(gradient), jax.vjp(arrays, parts(X))[1](parts(X))[0])

    add = lambda c, x: (c + take_apart(x)[0] ** 2, None)
    gradient = jax.grad(lambda xs: loops.scan(add, 0.0, xs, length=3)[0])(ROWS)
    assert_same(parts(gradient), (2 * ROWS.first, jnp.zeros(3)))


def test_disable_jit():
    """Step by step the results are the same, and so is the gradient."""
    is_small = lambda c: take_apart(c)[0] < 10
    double = lambda c: pair(take_apart(c)[1] * 2, take_apart(c)[0] + 1)
    last = lambda x: loops.scan(step, x, length=4)[0]
    want = parts(loops.while_loop(is_small, double, X)), parts(last(X))
    with jax.disable_jit():
        assert_same((parts(loops.while_loop(is_small, double, X)), parts(last(X))), want)


def test_the_length_of_pairs_must_be_given():
    """A pair shows no leading axis, and arrays beside it do."""
    with pytest.raises(ValueError, match="must provide `length` to `scan`, since the leading"):
        loops.scan(lambda c, x: (c, None), 0.0, ROWS)
    assert loops.scan(lambda c, x: (c + 1, None), 0, (ROWS, jnp.arange(3)))[0] == 3
    with pytest.raises(ValueError, match="disagrees with leading axis sizes") as error:
        loops.scan(lambda c, x: (c, None), 0.0, (ROWS, jnp.arange(3)), length=4)
    assert error.value.__notes__[:1] == ["The leading axis of each leaf of `xs`:\n  xs[1]: 3"]


def test_the_contract():
    """A body that returns the first array for the pair is refused."""
    with pytest.raises(checks.CarryTypeError, match=r"type Pair\[float32\[\]\] but") as error:
        loops.scan(lambda c, _: (take_apart(c)[0], None), X, length=4)
    (mismatch,) = error.value.mismatches
    assert "float32[]" in str(mismatch.output_type)


@pytest.mark.parametrize("extra", [{"checkpoints": 2}, {"until": lambda c: take_apart(c)[0] > 1}])
def test_loops_that_keep_few_carries_refuse_them(extra):
    """The error names the arguments and what to do."""
    with pytest.raises(NotImplementedError, match="takes no hijax values"):
        loops.scan(step, X, length=4, **extra)


@needs_boxes
@pytest.mark.parametrize("jit", [False, True])
def test_a_box_that_steps_set(jit):
    """Each step finds in a box what the step before left, and so does what follows the loop."""
    box = BOXES.Box({"a": jnp.float32(1.0), "b": jnp.int32(0)})

    def double(c, x):
        held = box.get()
        box.set({"a": held["a"] * 2, "b": held["b"] + x})
        return c + held["a"], held["b"]

    run = lambda: loops.scan(double, 0.0, jnp.arange(4, dtype="int32"))
    total, ys = (jax.jit(run) if jit else run)()

    assert_same((total, ys), (jnp.float32(15.0), jnp.array([0, 0, 1, 3], "int32")))
    assert_same(box.get(), {"a": jnp.float32(16.0), "b": jnp.int32(6)})


@needs_boxes
@pytest.mark.parametrize("jit", [False, True])
def test_a_box_in_a_while_loop(jit):
    """So it is in a while loop with constants on both sides of the box."""
    box, limit, factor = BOXES.Box(jnp.float32(1.0)), jnp.int32(5), jnp.float32(3.0)

    def run(limit, factor):
        def body(i):
            box.set(box.get() * factor)
            return i + 1

        return loops.while_loop(lambda i: i < limit, body, 0)

    steps = (jax.jit(run) if jit else run)(limit, factor)
    assert_same((steps, box.get()), (jnp.int32(5), jnp.float32(243.0)), weak_types=False)


@needs_boxes
def test_a_box_in_nested_loops():
    """The inner loop's steps reach the outer's, and an argument may be a box as well."""

    @jax.jit
    def run(box):
        inner = lambda i, c: box.set(box.get() + i) or c
        loops.fori_loop(0, 2, lambda _, c: loops.fori_loop(0, 3, inner, c), ())

    box = BOXES.Box(jnp.int32(0))
    run(box)
    assert box.get() == 6


@needs_boxes
def test_a_log():
    """What the steps of a scan log is stacked in the order of rows, also in a loop inside."""
    log, box = BOXES.Log(), BOXES.Box(jnp.int32(0))

    def inner(_, __):
        log.append("n", box.get())
        box.set(box.get() + 1)
        return (), ()

    def outer(c, x):
        log.append("x", 2 * x)
        return loops.scan(inner, c, length=2)[0], ()

    loops.scan(outer, (), jnp.arange(3), reverse=True)
    expected = {"x": [jnp.array([0, 2, 4])], "n": [jnp.array([[4, 5], [2, 3], [0, 1]])]}
    assert_same(dict(log._dct), expected)


@needs_boxes
def test_a_log_of_cotangents():
    """A backward rule may log what it gets at each step."""
    log = BOXES.Log()

    @jax.custom_vjp
    def seen(log, x):
        return x

    def backward(log, ct):
        log.append("ct", ct)
        return None, ct

    seen.defvjp(lambda log, x: (x, log), backward)
    loss = lambda c: loops.scan(lambda c, x: (seen(log, c) * x, ()), c, jnp.arange(1.0, 4.0))[0]

    assert jax.grad(loss)(jnp.float32(1.0)) == 6.0
    assert_same(dict(log._dct), {"ct": [jnp.array([6.0, 6.0, 3.0])]})


@needs_boxes
def test_boxes_that_are_refused():
    """A box that changes its type, or that no loop can carry, is refused with what to do."""
    box, log = BOXES.Box(None), BOXES.Log()
    fill = lambda c, _: (box.set(jnp.ones(3)) or c, None)
    with pytest.raises(
        TypeError, match=r"type-changing mutations not allowed in scan.*float32\[3\]"
    ):
        loops.scan(fill, 0.0, length=3)
    with pytest.raises(TypeError, match="type-changing mutations not allowed in while"):
        loops.while_loop(lambda i: i < 3, lambda i: box.set(jnp.ones(3)) or i + 1, 0)
    assert box.get() is None
    with pytest.raises(NotImplementedError, match="no hijax box in its carry or xs"):
        loops.scan(lambda c, _: (c, None), BOXES.Box(1.0), length=3)
    full = BOXES.Box(3)
    with pytest.raises(NotImplementedError, match="condition of a loop cannot read a hijax box"):
        loops.while_loop(lambda i: i < full.get(), lambda i: i + 1, 0)
    with pytest.raises(NotImplementedError, match="A while loop cannot add to a hijax log"):
        loops.while_loop(lambda i: i < 3, lambda i: log.append("i", i) or i + 1, 0)
