"""What users call `scan` with, and what they get: values, types, lengths, order and refusals.

Tests that take `impl` run on our loops, on JAX's and on plain Python. Refusals are compared between
the two primitives. Ours differs from JAX's on purpose where a test says so:

- a `length` that is a fraction is refused, where JAX cuts it down; a negative one, where JAX runs
  no step; and a string, where JAX reads a number from it;
- an `unroll` that is a float is refused, where JAX accepts some;
- weak inits are promoted until nothing changes, where JAX looks twice and then refuses.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same, types_of
from tests.helpers.equations import the_equation
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ONE = jnp.float32(1.0)
ROWS = jnp.float32([1.0, 2.0, 3.0, 4.0, 5.0])


def recurrence(c, x):
    """A step that does not commute: the order of the rows shows in the result."""
    return 0.5 * c + x, c


class TestValues:
    """Order, stacking and structure."""

    def test_carry_and_stacked_ys(self, impl: Implementation):
        """The final carry, and what each step emitted in order."""
        carry, ys = impl.scan(lambda c, x: (c + x, c * x), jnp.int32(1), jnp.int32([2, 3, 4]))
        assert_same((carry, ys), (jnp.int32(10), jnp.int32([2, 9, 24])))

    def test_reverse(self, impl: Implementation):
        """Backwards, the last row comes first and its y stays at its place."""
        carry, ys = impl.scan(lambda c, x: (10 * c + x, c), 0, jnp.int32([1, 2, 3]), reverse=True)
        assert int(carry) == 321
        assert ys.tolist() == [32, 3, 0]

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("unroll", [1, 2, 3, 5, 7, 0, True, False, np.int32(2)], ids=repr)
    def test_unroll_changes_nothing(self, impl: Implementation, unroll, reverse):
        """However many steps one turn takes, the result is the same."""
        got = impl.scan(recurrence, ONE, ROWS, reverse=reverse, unroll=unroll)
        assert_same(got, JAX.scan(recurrence, ONE, ROWS, reverse=reverse), rtol=1e-6)

    @pytest.mark.parametrize("unroll", [2, True, 0], ids=repr)
    def test_gradient_of_unrolled_scan(self, unroll):
        """An unrolled loop has the gradient of the rolled one."""
        loss = lambda c, xs, **how: OURS.scan(recurrence, c, xs, **how)[1].sum()
        got = jax.grad(functools.partial(loss, unroll=unroll), (0, 1))(ONE, ROWS)
        assert_same(got, jax.grad(loss, (0, 1))(ONE, ROWS), rtol=1e-6)

    @pytest.mark.parametrize("unroll", [True, 0, 5], ids=repr)
    def test_full_unroll_leaves_no_loop(self, unroll):
        """Unrolled fully, the compiled program has no while."""
        run = jax.jit(lambda xs: OURS.scan(recurrence, ONE, xs, unroll=unroll))
        assert "while" not in run.lower(ROWS).as_text()

    def test_length_alone(self, impl: Implementation):
        """Without xs the body gets None, and ys have `length` rows."""
        seen = []

        def step(c, x):
            seen.append(x)
            return c + 1.0, c

        carry, ys = impl.scan(step, 0.0, None, length=3)
        assert set(seen) == {None}
        assert float(carry) == 3.0
        assert ys.tolist() == [0.0, 1.0, 2.0]

    def test_xs_is_optional(self, impl: Implementation):
        """A loop over nothing but a length needs no third argument."""
        assert float(impl.scan(lambda c, _: (2.0 * c, None), ONE, length=3)[0]) == 8.0

    @pytest.mark.parametrize("length", [3, np.int32(3), np.int64(3), np.uint8(3)], ids=repr)
    def test_integers_of_numpy_as_length(self, impl: Implementation, length):
        """Any integer is a length."""
        assert int(impl.scan(lambda c, _: (c + 1, None), 0, None, length)[0]) == 3

    @primitives
    def test_concrete_array_as_length(self, loops: Implementation):
        """An array that holds one integer is a length too, outside jit."""
        assert int(loops.scan(lambda c, _: (c + 1, None), 0, None, jnp.int32(3))[0]) == 3

    def test_length_that_agrees(self, impl: Implementation):
        """A length beside xs may repeat what they say."""
        got = impl.scan(recurrence, ONE, ROWS, length=5)
        assert_same(got, JAX.scan(recurrence, ONE, ROWS), rtol=1e-6)

    def test_no_steps(self, impl: Implementation):
        """A scan of no steps gives the init and empty ys of the right type."""
        step = lambda c, x: (c + x.sum(), {"a": jnp.stack([c, c]), "b": x > 0})
        carry, ys = impl.scan(step, ONE, jnp.zeros((0, 3), jnp.float32))
        assert_same(carry, ONE)
        assert types_of(ys) == [((0, 2), jnp.float32, False), ((0, 3), jnp.bool_, False)]

    def test_no_steps_by_length(self, impl: Implementation):
        """The same with length zero and no xs; the gradient passes through."""
        run = lambda c: impl.scan(lambda c, _: (c * c, c), c, None, length=0)
        assert_same(run(ONE)[0], ONE)
        assert run(ONE)[1].shape == (0,)
        assert float(jax.grad(lambda c: run(c)[0])(ONE)) == 1.0

    def test_one_step(self, impl: Implementation):
        """A scan of one step is the step."""
        got = impl.scan(recurrence, ONE, ROWS[:1])
        assert_same(got, (jnp.float32(1.5), jnp.float32([1.0])))

    @primitives
    def test_split_transpose_is_accepted(self, loops: Implementation):
        """The last argument of JAX's signature changes no number."""
        got = loops.scan(recurrence, ONE, ROWS, None, False, 1, True)
        assert_same(got, JAX.scan(recurrence, ONE, ROWS))

    def test_list_is_a_pair(self, impl: Implementation):
        """A body may return its pair as a list."""
        carry, ys = impl.scan(lambda c, x: [c + x, c], ONE, ROWS)
        assert float(carry) == 16.0
        assert ys.shape == (5,)

    def test_callable_objects_and_bound_methods(self, impl: Implementation):
        """Whatever can be called is a body: a partial, a method, an object."""

        class Body:
            def method(self, c, x):
                return c + x, None

            __call__ = method

        add = lambda bias, c, x: (c + x + bias, None)
        for body in (functools.partial(add, 0.0), Body().method, Body(), jax.jit(Body().method)):
            assert float(impl.scan(body, ONE, ROWS)[0]) == 16.0

    def test_body_that_is_called_again(self, impl: Implementation):
        """One body function serves scans of different types, lengths and closures."""
        step = lambda c, x: (c + x, c)
        assert int(impl.scan(step, 0, jnp.int32([1, 2]))[0]) == 3
        assert float(impl.scan(step, ONE, ROWS)[0]) == 16.0
        assert impl.scan(step, jnp.zeros(2), jnp.ones((3, 2)))[0].tolist() == [3.0, 3.0]

    def test_bodies_of_the_same_text(self, impl: Implementation):
        """Two bodies of the same text that hold different values are not confused."""
        results = []
        for added in (1.0, 10.0):
            step = lambda c, _, added=added: (c + added, None)
            results.append(float(impl.scan(step, ONE, None, length=2)[0]))
        assert results == [3.0, 21.0]


class TestTypes:
    """Dtypes and weak types of what comes out."""

    def test_weak_init_stays_weak(self, impl: Implementation):
        """A Python float that the body keeps weak comes out weak."""
        got = impl.scan(lambda c, _: (c + 1.0, c), 0.0, None, length=3)
        assert types_of(got) == [((), jnp.float32, True), ((3,), jnp.float32, True)]

    def test_weak_init_is_promoted(self, impl: Implementation):
        """A Python integer that meets floats becomes a strong float, in the ys as well."""
        got = impl.scan(lambda c, x: (c + x, c), 0, ROWS)
        assert types_of(got) == [((), jnp.float32, False), ((5,), jnp.float32, False)]

    def test_weak_init_takes_bfloat16(self, impl: Implementation):
        """A Python float gives way to bfloat16 and does not widen it."""
        got = impl.scan(lambda c, x: (c + x, c), 1.0, jnp.ones(3, jnp.bfloat16))
        assert types_of(got) == [((), jnp.bfloat16, False), ((3,), jnp.bfloat16, False)]

    def test_body_may_make_the_carry_weak(self, impl: Implementation):
        """A strong init whose body returns a Python number comes out as weak as JAX has it."""
        got = impl.scan(lambda c, x: (2.0, c), ONE, ROWS)
        assert_same(got, JAX.scan(lambda c, x: (2.0, c), ONE, ROWS))

    def test_swapped_weak_carries(self, impl: Implementation):
        """Two carries that change places promote one another."""
        swap = lambda c, _: ((c[1], c[0]), None)
        got, _ = impl.scan(swap, (0, ONE), None, length=1)
        assert_same(got, (ONE, jnp.float32(0.0)))

    @pytest.mark.parametrize("n", [3, 5])
    def test_promotion_runs_along_a_chain(self, n: int):
        """A float at the end of a chain of integer inits reaches the first one.

        Ours alone: JAX promotes once, and refuses a chain that needs it twice.
        """
        chain = lambda c, _: ((*c[1:], c[-1]), None)
        got, _ = OURS.scan(chain, (*[0] * (n - 1), ONE), None, length=n)
        assert_same(got, (ONE,) * n)

    @primitives
    @pytest.mark.parametrize(
        ("init", "traces"), [(0, 2), (0.0, 1), (np.float32(0), 1), (jnp.float32(0), 1)], ids=repr
    )
    def test_number_of_traces(self, loops: Implementation, init, traces):
        """The body is traced twice for a weak init that has to change, and once for any other."""
        seen = []

        def step(c, x):
            seen.append(c)
            return c + x, None

        loops.scan(step, init, ROWS)
        assert len(seen) == traces

    @primitives
    def test_promoted_literal(self, loops: Implementation):
        """The promoted init stands in the jaxpr as a float literal, and converts nothing."""
        fun = lambda xs: loops.scan(lambda c, x: (c + x, None), 0, xs)
        jaxpr = jax.make_jaxpr(fun)(ROWS)
        (eqn,) = jaxpr.eqns
        literal = eqn.invars[0]
        assert (literal.val, literal.aval.dtype) == (0.0, jnp.float32)

    @pytest.mark.parametrize(
        "init", [2, 2.5, True, 1j, np.float32(2), np.arange(3, dtype=np.int16)], ids=repr
    )
    def test_numbers_and_numpy_arrays_as_init(self, impl: Implementation, init):
        """A Python scalar or a numpy array is an init, and its type is the one JAX gives it."""
        double = lambda c, _: (c | c if c.dtype == bool else c + c, c)
        got = impl.scan(double, init, None, length=2)
        assert_same(got, JAX.scan(double, init, None, length=2))

    def test_numpy_xs_and_python_lists_of_them(self, impl: Implementation):
        """Rows of numpy arrays reach the body as arrays of JAX's."""
        step = lambda c, x: (c + x[0] * x[1].astype(jnp.int32), x[1].at[...].get())
        xs = [np.arange(3, dtype=np.int32), np.arange(3, dtype=np.float32)]
        got = impl.scan(step, 0, xs)
        assert_same(got, (jnp.int32(5), jnp.float32([0, 1, 2])))

    @pytest.mark.parametrize("dtype", ["int8", "uint32", "bool", "bfloat16", "complex64"])
    def test_dtype_is_kept(self, impl: Implementation, dtype):
        """Carries and ys of every kind keep their dtype."""
        init, xs = jnp.ones(2, dtype), jnp.ones((3, 2), dtype)
        got = impl.scan(lambda c, x: (jnp.where(x, c, x), (c, x)), init, xs)
        assert_same(got, (init, (xs, xs)))

    def test_step_without_arrays(self, impl: Implementation):
        """A scan with nothing in its carry, its xs or its ys runs and returns nothing."""
        assert impl.scan(lambda c, x: (c, x), None, None, length=3) == (None, None)
        assert impl.scan(lambda c, x: (c, {}), (), [None], length=3) == ((), {})


class TestJaxpr:
    """What a scan looks like when traced."""

    def test_parameters(self):
        """The equation is named scan and has the lesson's parameters."""
        fun = lambda c, xs: OURS.scan(recurrence, c, xs, reverse=True, unroll=2)
        eqn = the_equation(fun, ONE, ROWS, name="scan")
        names = ("length", "num_carry", "num_consts", "reverse", "unroll")
        assert [eqn.params[name] for name in names] == [5, 1, 0, True, 2]

    @pytest.mark.parametrize(("unroll", "stored"), [(True, 5), (False, 1), (3, 3)], ids=repr)
    def test_unroll_is_stored_as_a_number(self, unroll, stored):
        """True stands for the length, False for one."""
        fun = lambda c, xs: OURS.scan(recurrence, c, xs, unroll=unroll)
        assert the_equation(fun, ONE, ROWS, name="scan").params["unroll"] == stored

    def test_repeated_call_does_not_trace_again(self):
        """A second call with the same function and types reuses the trace, eager or compiled."""
        seen = []

        def step(c, x):
            seen.append(c)
            return c + x, None

        for _ in range(3):
            OURS.scan(step, ONE, ROWS)
        assert len(seen) == 1


class TestRefusals:
    """What is refused, and with which words."""

    @primitives
    @pytest.mark.parametrize("body", [None, 3, "f"], ids=repr)
    def test_body_not_callable(self, loops: Implementation, body):
        """A body that cannot be called is refused before anything else."""
        with pytest.raises(TypeError, match="callable"):
            loops.scan(body, ONE, ROWS)

    @primitives
    @pytest.mark.parametrize(
        "output", [ONE, (ONE,), (ONE, ONE, ONE), None, jnp.ones(2)], ids=lambda out: str(out)[:20]
    )
    def test_body_returns_no_pair(self, loops: Implementation, output):
        """Anything but two things is refused, an array of two rows included."""
        with pytest.raises(TypeError, match=r"^scan body output must be a pair, got "):
            loops.scan(lambda c, x: output, ONE, ROWS)

    @primitives
    def test_neither_xs_nor_length(self, loops: Implementation):
        """Nothing says how many steps to run."""
        message = r"^scan got no values to scan over and `length` not provided\."
        with pytest.raises(ValueError, match=message):
            loops.scan(recurrence, ONE, None)

    @primitives
    def test_leading_axes_disagree(self, loops: Implementation):
        """Two xs of different lengths are refused with both numbers."""
        message = r"^scan got values with different leading axis sizes: 5, 4\."
        with pytest.raises(ValueError, match=message):
            loops.scan(lambda c, x: (c, None), ONE, (ROWS, ROWS[:4]))

    @primitives
    def test_length_disagrees(self, loops: Implementation):
        """A length that the xs do not have is refused with both numbers."""
        message = r"^scan got `length` argument of 4 which disagrees with leading axis sizes \[5\]"
        with pytest.raises(ValueError, match=message):
            loops.scan(recurrence, ONE, ROWS, length=4)

    def test_disagreement_names_the_leaves(self):
        """A note says which leaf of xs has which length. Ours alone."""
        xs = {"obs": jnp.zeros((19, 2)), "rew": {"ext": jnp.zeros(18)}}
        for how in ({}, {"length": 19}):
            with pytest.raises(ValueError, match="leading axis") as caught:
                OURS.scan(lambda c, x: (c, None), 0, xs, **how)
            assert "xs['rew']['ext']: 18" in "\n".join(caught.value.__notes__)

    @primitives
    def test_row_without_an_axis(self, loops: Implementation):
        """A scalar cannot be scanned over."""
        with pytest.raises(ValueError, match="no leading axis to scan over"):
            loops.scan(recurrence, ONE, 3.0)

    @pytest.mark.parametrize("length", [2.5, 0.3 / 0.1, np.float32(2.5), "3", 1j, [3]], ids=repr)
    def test_length_is_no_integer(self, length):
        """A fraction is never cut down to a number of steps. Ours alone: JAX takes int(length)."""
        with pytest.raises(TypeError, match="`length`"):
            OURS.scan(lambda c, _: (c + 1, None), 0, None, length=length)

    def test_negative_length(self):
        """A negative length is a mistake. Ours alone: JAX runs no step."""
        with pytest.raises(ValueError, match="negative"):
            OURS.scan(lambda c, _: (c + 1, None), 0, None, length=-1)

    @primitives
    def test_traced_length(self, loops: Implementation):
        """Inside jit a length must not depend on the arguments."""
        with pytest.raises(jax.errors.ConcretizationTypeError, match="`length` argument to `scan`"):
            jax.jit(lambda n: loops.scan(lambda c, _: (c + 1, None), 0, None, length=n))(3)

    @primitives
    def test_negative_unroll(self, loops: Implementation):
        """One turn cannot take a negative number of steps."""
        with pytest.raises(ValueError, match="`unroll` must be a `bool` or a non-negative `int`"):
            loops.scan(recurrence, ONE, ROWS, unroll=-1)

    @primitives
    def test_traced_unroll(self, loops: Implementation):
        """How far to unroll must be known when tracing."""
        with pytest.raises(jax.errors.ConcretizationTypeError, match="`unroll` argument to `scan`"):
            jax.jit(lambda n: loops.scan(recurrence, ONE, ROWS, unroll=n))(2)

    @pytest.mark.parametrize("unroll", [1.5, 2.0, "2", None], ids=repr)
    def test_unroll_is_no_integer(self, unroll):
        """An unroll that is no integer is refused. Ours alone: JAX accepts some floats."""
        with pytest.raises(TypeError, match="`unroll`"):
            OURS.scan(recurrence, ONE, ROWS, unroll=unroll)

    @primitives
    @pytest.mark.parametrize(
        "body",
        [
            lambda c, x: (c[None], None),
            lambda c, x: (c.astype(jnp.bfloat16), None),
            lambda c, x: ((c, c), None),
            lambda c, x: (None, None),
        ],
        ids=["shape", "dtype", "structure", "None"],
    )
    def test_carry_that_changes_its_type(self, loops: Implementation, body):
        """A body must return the type of carry that it got."""
        with pytest.raises(TypeError, match=r"^scan body function carry input and carry output"):
            loops.scan(body, ONE, ROWS)

    def test_contract_holds_without_jit(self):
        """The same body is refused in debugging mode. Ours alone: JAX's lets it run."""
        with jax.disable_jit(), pytest.raises(TypeError, match="must have equal types"):
            OURS.scan(lambda c, x: (c.astype(jnp.bfloat16), None), ONE, ROWS)

    def test_no_steps_does_not_excuse_a_bad_body(self, impl: Implementation):
        """A body that never runs has to keep the contract as well."""
        with pytest.raises(TypeError):
            impl.scan(lambda c, x: (c[None], None), ONE, ROWS[:0])
