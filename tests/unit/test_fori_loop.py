"""What users call `fori_loop` with: the road it takes, its bounds and its index.

Tests that take `impl` run on our loops, on JAX's and on plain Python. Refusals are compared between
the two primitives. Ours differs from JAX's on purpose where a test says so:

- the index has the integer type of the bounds whether they are traced or not, where JAX gives
  Python's type to an index between bounds that it knows;
- floats whose value is known are refused as bounds, where JAX cuts them down;
- booleans are refused as bounds, where JAX takes two that it knows and fails on traced ones;
- an index that does not fit its type is refused, where JAX wraps it around.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same, type_of
from tests.helpers.equations import equations
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ONE = jnp.float32(1.0)
LARGEST = 2**31 - 1


def collect(loops: Implementation, lower, upper, size=4):
    """Writes the indices, one after the other, and counts them."""

    def body(i, c):
        n, seen = c
        return n + 1, seen.at[n].set(jnp.asarray(i, seen.dtype))

    n, seen = loops.fori_loop(lower, upper, body, (0, jnp.full(size, -1, jnp.int32)))
    return seen[: int(n)].tolist()


class TestValues:
    """The indices that a body sees."""

    @pytest.mark.parametrize(
        ("lower", "upper"), [(0, 4), (2, 5), (-2, 1), (3, 3), (5, 2), (-1, -1), (7, 8)]
    )
    def test_indices_are_those_of_range(self, impl: Implementation, lower, upper):
        """The body sees what range(lower, upper) gives, nothing if it gives nothing."""
        assert collect(impl, lower, upper) == list(range(lower, upper))

    @primitives
    def test_traced_bounds_give_the_same_indices(self, loops: Implementation):
        """With bounds that are traced the indices are those of range too."""

        def last_and_number(lower, upper):
            body = lambda i, c: (i, c[1] + 1)
            return loops.fori_loop(lower, upper, body, (jnp.int32(-9), jnp.int32(0)))

        run = jax.jit(last_and_number)
        for lower, upper in [(0, 4), (-2, 1), (3, 3), (5, 2)]:
            indices = list(range(lower, upper))
            last, number = run(jnp.int32(lower), jnp.int32(upper))
            assert (int(last), int(number)) == (indices[-1] if indices else -9, len(indices))

    @pytest.mark.parametrize("unroll", [None, 1, 2, 3, 9, 0, True, False], ids=repr)
    def test_unroll_changes_nothing(self, impl: Implementation, unroll):
        """However many steps one turn takes, the result is the same."""
        body = lambda i, c: 2 * c + i
        assert int(impl.fori_loop(1, 6, body, 1, unroll=unroll)) == 89

    @pytest.mark.parametrize(("lower", "upper"), [(3, 3), (5, 2)])
    def test_unroll_without_steps(self, impl: Implementation, lower, upper):
        """Unrolling a loop of no steps gives the init."""
        assert int(impl.fori_loop(lower, upper, lambda i, c: c + 1, 4, unroll=True)) == 4

    def test_init_of_a_loop_without_steps(self, impl: Implementation):
        """The init comes out as an array of the type that the body would give it."""
        assert_same(impl.fori_loop(0, 0, lambda i, c: c + ONE, 1), ONE)

    def test_tree_of_carries(self, impl: Implementation):
        """The carry is any tree; the body has the index first."""
        body = lambda i, c: {"sum": c["sum"] + i, "last": (i, None)}
        got = impl.fori_loop(1, 5, body, {"sum": 0, "last": (0, None)})
        assert {"sum": int(got["sum"]), "last": int(got["last"][0])} == {"sum": 10, "last": 4}

    def test_gradient(self, impl: Implementation):
        """Static bounds can be differentiated in reverse."""
        decay = lambda x: impl.fori_loop(0, 5, lambda i, c: c * 1.1 + 1.0, x)
        assert float(jax.grad(decay)(ONE)) == pytest.approx(1.6105101, rel=1e-6)

    @pytest.mark.parametrize(("lower", "upper"), [(LARGEST - 2, LARGEST), (-(2**31), -(2**31) + 3)])
    def test_indices_at_the_limits_of_the_type(self, impl: Implementation, lower, upper):
        """Indices that fit are right up to the largest bound and down to the smallest."""
        assert collect(impl, lower, upper) == list(range(lower, upper))

    @primitives
    def test_traced_indices_at_the_limit_of_the_type(self, loops: Implementation):
        """A traced upper bound may be the largest integer."""
        run = jax.jit(lambda a, b: loops.fori_loop(a, b, lambda i, c: c + 1, 0))
        assert int(run(jnp.int32(LARGEST - 3), jnp.int32(LARGEST))) == 3


class TestRoad:
    """Which primitive a call becomes."""

    @primitives
    @pytest.mark.parametrize(
        "upper", [5, np.int32(5), np.int64(5), jnp.int32(5), np.asarray(5)], ids=repr
    )
    def test_known_bounds_give_a_scan(self, loops: Implementation, upper):
        """Bounds with a value give a scan of that length, with the index as its first carry."""
        fun = lambda x: loops.fori_loop(2, upper, lambda i, c: c * 1.1, x)
        (eqn,) = equations(fun, ONE, name="scan")
        assert eqn.params["length"] == 3
        assert [var.aval.shape for var in eqn.outvars] == [(), ()]
        assert eqn.invars[0].val == 2
        assert not equations(fun, ONE, name="while")

    @primitives
    @pytest.mark.parametrize("which", ["lower", "upper", "both"])
    def test_traced_bound_gives_a_while(self, loops: Implementation, which):
        """One traced bound is enough."""
        lower = lambda n: n if which != "upper" else 0
        upper = lambda n: n + 3 if which != "lower" else 7
        fun = lambda x, n: loops.fori_loop(lower(n), upper(n), lambda i, c: c * 1.1, x)
        (eqn,) = equations(fun, ONE, 2, name="while")
        assert not equations(fun, ONE, 2, name="scan")
        types = [var.aval.str_short() for var in eqn.outvars]
        assert types == ["int32[]", "int32[]", "float32[]"]

    @primitives
    def test_gradient_with_a_concrete_array_as_bound(self, loops: Implementation):
        """Outside jit an array is a known bound, so reverse mode works; inside jit it does not."""
        fun = lambda x, n: loops.fori_loop(0, n, lambda i, c: c * 1.1 + 1.0, x)
        assert float(jax.grad(fun)(ONE, jnp.int32(5))) == pytest.approx(1.6105101, rel=1e-6)
        with pytest.raises(ValueError, match=r"^Reverse-mode differentiation does not work"):
            jax.jit(jax.grad(fun))(ONE, jnp.int32(5))

    @primitives
    def test_forward_mode_with_a_traced_bound(self, loops: Implementation):
        """Forward mode works on either road."""
        fun = lambda x, n: loops.fori_loop(0, n, lambda i, c: c * x, ONE)
        run = jax.jit(lambda x, n: jax.jvp(lambda x: fun(x, n), (x,), (ONE,)))
        assert_same(run(2.0 * ONE, 3), (8.0 * ONE, 12.0 * ONE))

    @primitives
    @pytest.mark.parametrize(("unroll", "while_loops"), [(True, 0), (2, 1), (False, 1)], ids=repr)
    def test_unroll_reaches_the_program(self, loops: Implementation, unroll, while_loops):
        """A fully unrolled loop leaves no while in the compiled program."""
        run = jax.jit(lambda x: loops.fori_loop(0, 4, lambda i, c: c * 1.1, x, unroll=unroll))
        assert run.lower(ONE).as_text().count("stablehlo.while") == while_loops


class TestIndexType:
    """The integer type of the index."""

    def test_python_bounds_give_a_weak_index(self, impl: Implementation):
        """Python integers as bounds give Python's type, in the values that follow from it too."""
        got = impl.fori_loop(0, 3, lambda i, c: i, 0)
        assert type_of(got) == ((), jnp.int32, True)

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint32"])
    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    def test_index_has_the_type_of_the_bounds(self, dtype, traced):
        """Known or traced, bounds of one type give an index of that type. Ours alone."""
        run = lambda a, b: OURS.fori_loop(a, b, lambda i, c: (i, c[1] + 1), (a, 0))
        bounds = jnp.asarray(2, dtype), jnp.asarray(5, dtype)
        last, steps = (jax.jit(run) if traced else run)(*bounds)
        assert_same(last, jnp.asarray(4, dtype))
        assert int(steps) == 3

    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    @pytest.mark.parametrize("array_first", [False, True])
    def test_python_integer_beside_an_array(self, traced, array_first):
        """A Python integer takes the type of the other bound. Ours alone when it is known."""
        seen = []

        def run(bound):
            lower, upper = (bound, 7) if array_first else (0, bound)
            body = lambda i, c: seen.append(i.dtype) or c + 1
            return OURS.fori_loop(lower, upper, body, 0)

        steps = (jax.jit(run) if traced else run)(jnp.int8(3))
        assert int(steps) == (4 if array_first else 3)
        assert set(seen) == {jnp.dtype("int8")}

    @pytest.mark.parametrize("x64", [False, True])
    @pytest.mark.parametrize(
        "bound", [3, np.int32(3), np.int64(3), np.int16(3)], ids=lambda b: type(b).__name__
    )
    def test_jit_does_not_change_the_type(self, bound, x64):
        """A result that the index flows into has one type, with and without jit. Ours alone."""
        with jax.enable_x64(x64):
            zero = type(bound)(0)
            fun = lambda a, n: OURS.fori_loop(a, n, lambda i, c: i, zero)
            assert_same(fun(zero, bound), jax.jit(fun)(zero, bound), weak_types=False)


class TestRefusals:
    """What is refused, and with which words."""

    @primitives
    def test_body_not_callable(self, loops: Implementation):
        """A body that cannot be called is refused."""
        with pytest.raises(TypeError, match="callable"):
            loops.fori_loop(0, 3, 3, ONE)

    @primitives
    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    @pytest.mark.parametrize(
        ("lower", "upper"),
        [(jnp.int32(0), jnp.int8(3)), (np.uint32(0), np.int32(3)), (jnp.int16(0), np.int8(3))],
        ids=["int32 int8", "uint32 int32", "int16 int8"],
    )
    def test_bounds_of_different_types(self, loops: Implementation, traced, lower, upper):
        """Two bounds with types of their own must agree."""
        run = lambda a, b: loops.fori_loop(a, b, lambda i, c: c + 1, 0)
        message = (
            r"^lower and upper arguments to fori_loop must have equal types, got "
            f"{lower.dtype} and {upper.dtype}"
        )
        with pytest.raises(TypeError, match=message):
            (jax.jit(run) if traced else run)(lower, upper)

    @pytest.mark.parametrize(
        ("lower", "upper"),
        [(0.0, 3.0), (0, 2.5), (0.0, 0.3 / 0.1), (0, jnp.float32(3)), (np.float64(0), 3)],
        ids=repr,
    )
    def test_float_bounds(self, lower, upper):
        """A float is never cut down to a number of steps. Ours alone: JAX takes int(upper)."""
        with pytest.raises(TypeError, match="float"):
            OURS.fori_loop(lower, upper, lambda i, c: c + 1, 0)

    @primitives
    def test_float_beside_an_integer(self, loops: Implementation):
        """One float bound and one integer bound do not go together."""
        with pytest.raises(TypeError, match="float"):
            loops.fori_loop(0, 3.0, lambda i, c: c + 1, 0)

    @primitives
    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    def test_boolean_beside_an_integer(self, loops: Implementation, traced):
        """One boolean bound and one integer bound do not go together."""
        run = lambda b: loops.fori_loop(0, b, lambda i, c: c + 1, 0)
        with pytest.raises(TypeError, match="bool"):
            (jax.jit(run) if traced else run)(jnp.bool_(True))

    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    def test_two_booleans(self, traced):
        """Booleans are no bounds. Ours alone: JAX counts from False to True if it knows them."""
        run = lambda a, b: OURS.fori_loop(a, b, lambda i, c: c + 1, 0)
        with pytest.raises(TypeError, match="bool"):
            (jax.jit(run) if traced else run)(False, True)

    @primitives
    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    def test_bounds_with_an_axis(self, loops: Implementation, traced):
        """An array of one element is no scalar."""
        run = lambda a, b: loops.fori_loop(a, b, lambda i, c: c + 1, 0)
        with pytest.raises(TypeError, match="scalar"):
            (jax.jit(run) if traced else run)(jnp.int32([0]), jnp.int32([3]))

    @primitives
    @pytest.mark.parametrize("upper", [None, "3"], ids=repr)
    def test_bounds_that_are_no_numbers(self, loops: Implementation, upper):
        """None or a string is no bound."""
        with pytest.raises((TypeError, ValueError)):
            loops.fori_loop(0, upper, lambda i, c: c + 1, 0)

    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    @pytest.mark.parametrize(
        ("lower", "upper"),
        [(2**32 + 5, 2**32 + 8), (2**31 - 2, 2**31 + 1), (-(2**31) - 1, -(2**31) + 2)],
    )
    def test_index_beyond_its_type(self, lower, upper, traced):
        """An index that 32 bits do not hold is refused, never wrapped. Ours alone."""
        run = lambda a, b: OURS.fori_loop(a, b, lambda i, c: i, 0)
        with pytest.raises(OverflowError):
            (jax.jit(run) if traced else run)(lower, upper)

    def test_large_index_with_64_bits(self, x64):
        """With 64-bit types the same bounds are right."""
        assert int(OURS.fori_loop(2**32 + 5, 2**32 + 8, lambda i, c: i, 0)) == 2**32 + 7

    def test_python_integer_that_the_other_bounds_type_does_not_hold(self):
        """A Python integer is never cut down to the type of the array beside it. Ours alone."""
        with pytest.raises(OverflowError, match="int8"):
            OURS.fori_loop(jnp.int8(0), 300, lambda i, c: c + 1, 0)
        with pytest.raises(OverflowError, match="int8"):
            jax.jit(lambda a: OURS.fori_loop(a, 300, lambda i, c: c + 1, 0))(jnp.int8(0))

    @primitives
    @pytest.mark.parametrize("unroll", [2, 0], ids=repr)
    def test_unroll_with_a_traced_bound(self, loops: Implementation, unroll):
        """A loop of an unknown number of steps cannot be unrolled."""
        run = lambda n: loops.fori_loop(0, n, lambda i, c: c + 1, 0, unroll=unroll)
        with pytest.raises(ValueError, match=r"^Can only use `unroll` in `fori_loop` if the loop"):
            jax.jit(run)(3)

    @primitives
    @pytest.mark.parametrize("unroll", [None, False, 1], ids=repr)
    def test_no_unroll_with_a_traced_bound(self, loops: Implementation, unroll):
        """Asking for no unrolling is always allowed."""
        run = lambda n: loops.fori_loop(0, n, lambda i, c: c + 1, 0, unroll=unroll)
        assert int(jax.jit(run)(3)) == 3

    @primitives
    def test_negative_unroll(self, loops: Implementation):
        """One turn cannot take a negative number of steps."""
        with pytest.raises(ValueError, match="`unroll` must be a `bool` or a non-negative `int`"):
            loops.fori_loop(0, 3, lambda i, c: c + 1, 0, unroll=-1)

    @primitives
    @pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
    @pytest.mark.parametrize(
        "body",
        [lambda i, c: c[None], lambda i, c: c.astype(jnp.bfloat16), lambda i, c: (c, c)],
        ids=["shape", "dtype", "structure"],
    )
    def test_carry_that_changes_its_type(self, loops: Implementation, body, traced):
        """A body must return the type of carry that it got, on either road."""
        run = lambda n: loops.fori_loop(0, n, body, ONE)
        name = "while_loop body" if traced else "scan body"
        with pytest.raises(TypeError, match=f"^{name} function carry input and carry output"):
            (jax.jit(run) if traced else run)(3)

    @primitives
    def test_strong_index_into_a_carry_of_another_type(self, loops: Implementation):
        """An integer carry that takes the index keeps its own type or is refused."""
        run = lambda n: loops.fori_loop(jnp.int8(0), n, lambda i, c: i, jnp.int16(0))
        with pytest.raises(TypeError, match="int16"):
            jax.jit(run)(jnp.int8(3))
