"""Loops that read and write Refs (mutable arrays), beside the same loops written in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from tests.helpers.comparison import assert_same

XS = np.arange(1.0, 5.0, dtype=np.float32)


def like(x):
    """The xs in the type of another number."""
    return XS.astype(x.dtype)


class Row:
    """A row of a Ref, which JAX 0.10 gives only while tracing."""

    def __init__(self, ref, position):
        self.ref, self.position = ref, position

    def __getitem__(self, index):
        return self.ref[self.position][index]

    def __setitem__(self, index, value):
        assert index is ...
        self.ref[self.position] = value


class InPython:
    """The loops as Python runs them, on values and Refs outside jit."""

    @staticmethod
    def scan(body, carry, xs, reverse=False, unroll=1):
        """Stacks the ys in the order of the xs."""
        del unroll
        ys = {}
        for i in reversed(range(len(xs))) if reverse else range(len(xs)):
            carry, ys[i] = body(carry, xs[i] if isinstance(xs, np.ndarray) else Row(xs, i))
        return carry, jnp.stack([ys[i] for i in range(len(xs))])

    @staticmethod
    def while_loop(cond, body, carry):
        """Asks the condition before each step."""
        while cond(carry):
            carry = body(carry)
        return carry

    @staticmethod
    def fori_loop(lower, upper, body, carry):
        """Counts in Python."""
        for i in range(lower, upper):
            carry = body(i, carry)
        return carry


def sums_of_a_scan(impl, x):
    """Adds up what it carries in a Ref that the body closes over."""
    ref = jax.new_ref(jnp.zeros(2))

    def body(c, x):
        ref[...] = ref[...] + c * x
        return c + 1, ref[0]

    return impl.scan(body, x, like(x), reverse=True, unroll=3), ref[...]


def rows_of_a_ref(impl, x):
    """Scans over the rows of a Ref and writes to each."""
    ref = jax.new_ref(jnp.arange(8.0).reshape(4, 2) * x)

    def body(c, row):
        row[...] = jnp.sin(row[...]) * c
        return c + row[1], row[0]

    return impl.scan(body, x, ref), ref[...]


def counted_steps(impl, x):
    """Counts the steps of a while loop in a Ref."""
    ref = jax.new_ref(jnp.int32(0))

    def body(c):
        ref[...] += 1
        return c * 2

    return impl.while_loop(lambda c: c < 100, body, x), ref[...]


def bound_in_a_ref(impl, x):
    """Compares with what a Ref holds, which only the condition reads."""
    ref = jax.new_ref(jnp.float32(50))
    return impl.while_loop(lambda c: c < ref[...], lambda c: c * 3, x), ref[...]


def counted_tests(impl, x):
    """Counts in a Ref how often the condition is asked."""
    ref = jax.new_ref(jnp.int32(0))

    def cond(c):
        ref[...] += 1
        return c < 100

    return impl.while_loop(cond, lambda c: c * 2, x), ref[...]


def one_ref_in_both(impl, x):
    """Stops by what the body has written to the Ref that the condition reads."""
    ref = jax.new_ref(jnp.int32(0))

    def body(c):
        ref[...] += 1
        return c * 2

    return impl.while_loop(lambda _: ref[...] < 3, body, x), ref[...]


def local_refs(impl, x):
    """Makes a Ref at each step."""

    def body(c, x):
        ref = jax.new_ref(c)
        ref[...] *= x
        return jnp.sin(ref[...]), jax.freeze(ref)

    return impl.scan(body, x, like(x))


def one_ref_in_a_nest(impl, x):
    """Writes from an inner loop to a Ref made around the outer one."""
    ref = jax.new_ref(x)

    def outer(i, c):
        def inner(j, c):
            ref[...] = jnp.sin(ref[...]) + c * c
            return c + 1

        return impl.fori_loop(0, 2, inner, c)

    return impl.fori_loop(0, 3, outer, x), ref[...]


LOOPS_WITH_REFS = [
    sums_of_a_scan,
    rows_of_a_ref,
    counted_steps,
    bound_in_a_ref,
    counted_tests,
    one_ref_in_both,
    local_refs,
    one_ref_in_a_nest,
]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("fun", LOOPS_WITH_REFS)
def test_as_in_python(fun, wrap):
    """Results and what the Refs hold afterwards are those of the loop written in Python."""
    got = wrap(lambda x: fun(loops, x))(jnp.float32(1.5))

    assert_same(got, fun(InPython, jnp.float32(1.5)), weak_types=False)


@pytest.mark.parametrize("fun", [rows_of_a_ref, local_refs, one_ref_in_a_nest, sums_of_a_scan])
def test_derivatives_of_loops_with_local_refs(fun, x64):
    """Gradient and tangent agree with each other and with a difference quotient."""

    def total(x):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(fun(loops, x)))

    x, step = jnp.float64(0.7), jnp.float64(1e-5)
    gradient = jax.grad(total)(x)
    _, tangent = jax.jvp(total, (x,), (jnp.float64(1),))

    np.testing.assert_allclose(gradient, tangent, rtol=1e-5)
    quotient = (total(x + step) - total(x - step)) / (2 * step)
    np.testing.assert_allclose(gradient, quotient, rtol=1e-6)


LOOPS_THAT_CARRY_A_REF = {
    "scan": lambda ref: loops.scan(lambda c, x: (c, x), {"a": ref}, XS),
    "fori_loop": lambda ref: loops.fori_loop(0, 3, lambda i, c: c, (ref, 1.0)),
    "while_loop": lambda ref: loops.while_loop(lambda c: True, lambda c: c, ref),
}


@pytest.mark.parametrize("name", LOOPS_THAT_CARRY_A_REF)
def test_a_ref_in_the_carry_is_refused(name):
    """The error names the body and the place, and a note says what to do instead."""
    with pytest.raises(ValueError, match=f"<lambda> at .* for {name[:5]}.*cannot be ret") as error:
        LOOPS_THAT_CARRY_A_REF[name](jax.new_ref(jnp.float32(0)))

    assert any("Let the body close over it" in note for note in error.value.__notes__)


def test_a_ref_that_is_closed_over_and_given():
    """The error says so, even where the body breaks its contract as well."""
    ref, rows = jax.new_ref(jnp.float32(0)), jax.new_ref(jnp.zeros(3))
    with pytest.raises(ValueError, match="closed over and passed as the argument c"):
        loops.scan(lambda c, _: (ref[...] + c[...], None), ref, length=1)
    with pytest.raises(ValueError, match="closed over and passed as the argument row"):
        loops.scan(lambda c, row: (c + rows[0] + row[...], None), 0.0, rows)


# ---------------------------------------------------------------- lanes that end at other steps


STEPS = jnp.array([1, 3, 0])


def doubled_into_ref(n, ref, c):
    """Doubles c n times and what a Ref holds with it."""

    def body(s):
        i, c = s
        ref[...] = ref[...] * 2 + 1
        return i + 1, c * 2

    return loops.while_loop(lambda s: s[0] < n, body, (0, c))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("where", ["condition", "body"])
def test_lanes_read_one_ref(where, wrap):
    """A Ref without lanes that is only read stays one value for all."""

    def sums(steps):
        table = jax.new_ref(jnp.array([5.0, 7.0, 9.0, 11.0]))

        def lane(n):
            limit = lambda i: table[i] < 100 if where == "condition" else i < 100
            step = lambda s: (s[0] + 1, s[1] + (table[s[0]] if where == "body" else 5.0))
            return loops.while_loop(lambda s: (s[0] < n) & limit(s[0]), step, (0, 0.0))[1]

        return jax.vmap(lane)(steps)

    expected = [5.0, 15.0, 0.0] if where == "condition" else [5.0, 21.0, 0.0]
    assert expected == wrap(sums)(STEPS).tolist()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("axis", [0, 1])
def test_lanes_along_any_axis_of_a_ref(axis, wrap):
    """Each lane's part of a square Ref is what it was at the lane's last step."""

    def run(steps, start):
        ref = jax.new_ref(start)
        lane = lambda n, ref: doubled_into_ref(n, ref, 1.0)
        return jax.vmap(lane, in_axes=(0, axis))(steps, ref), jax.freeze(ref)

    start = jnp.arange(9.0).reshape(3, 3)
    doubled, got = wrap(run)(STEPS, start)

    after = jnp.exp2(STEPS.astype(jnp.float32))
    factor = jnp.expand_dims(after, 1 - axis)
    assert after.tolist() == jnp.asarray(doubled).tolist()
    assert (jnp.broadcast_to(factor, (3, 3)) * (start + 1) - 1).tolist() == got.tolist()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_lanes_of_lanes_with_a_ref(wrap):
    """The inner lanes end at steps of their own, whichever axis the outer ones are."""

    def lane(n, x):
        ref = jax.new_ref(x)
        doubled_into_ref(n, ref, 1.0)
        return jax.freeze(ref)

    start = jnp.arange(9.0).reshape(3, 3)
    got = wrap(jax.vmap(jax.vmap(lane), in_axes=(None, 0)))(STEPS, start)

    assert (jnp.exp2(STEPS.astype(jnp.float32))[None] * (start + 1) - 1).tolist() == got.tolist()


def test_lanes_share_no_copy_of_a_ref_that_condition_and_body_use():
    """A Ref that condition and body use is one for both, also where its lanes are moved."""

    def lane(n, ref):
        def body(c):
            ref[0] += 1
            return c * 2

        return loops.while_loop(lambda _: ref[0] < n, body, 1.0)

    ref = jax.new_ref(jnp.zeros((2, 3), jnp.int32))
    doubled = jax.vmap(lane, in_axes=(0, 1))(STEPS, ref)

    assert [2.0, 8.0, 1.0] == jnp.asarray(doubled).tolist()
    assert [STEPS.tolist(), [0, 0, 0]] == ref[...].tolist()
