"""What users call `while_loop` with, and what they get: values, types and refusals.

Tests that take `impl` run on our loops, on JAX's and on plain Python. Refusals are compared between
the two primitives. Ours differs from JAX's on purpose where a test says so.
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


class TestValues:
    """How often the body runs, and what it is given."""

    def test_runs_while_the_condition_holds(self, impl: Implementation):
        """The result is the first carry for which the condition is false."""
        assert int(impl.while_loop(lambda c: c < 100, lambda c: 2 * c, 3)) == 192

    def test_condition_false_at_once(self, impl: Implementation):
        """A body that never runs leaves the init, as an array."""
        assert_same(impl.while_loop(lambda c: c > 5.0, lambda c: c * 2.0, ONE), ONE)

    def test_condition_of_a_python_bool(self, impl: Implementation):
        """A condition may ignore the carry."""
        assert int(impl.while_loop(lambda c: False, lambda c: c + 1, jnp.int32(7))) == 7

    def test_tree_of_carries(self, impl: Implementation):
        """Containers, None and empty ones come back as they went in."""
        init = {"n": jnp.int32(0), "pair": (ONE, [2.0 * ONE]), "none": None, "empty": ()}

        def body(c):
            first, (second,) = c["pair"]
            return {**c, "n": c["n"] + 1, "pair": (second, [first + second])}

        got = impl.while_loop(lambda c: c["n"] < 4, body, init)
        want = {"n": jnp.int32(4), "pair": (8.0 * ONE, [13.0 * ONE]), "none": None, "empty": ()}
        assert_same(got, want)

    def test_condition_on_an_array(self, impl: Implementation):
        """A condition may look at all of an array."""
        got = impl.while_loop(lambda c: (c < 10).any(), lambda c: c + c, jnp.int32([1, 3]))
        assert got.tolist() == [16, 48]

    def test_condition_closes_over_an_array(self, impl: Implementation):
        """Condition and body may close over different arrays."""
        limit, step = jnp.float32(5.0), jnp.float32(2.0)
        assert float(impl.while_loop(lambda c: c < limit, lambda c: c + step, ONE)) == 5.0

    def test_gcd(self, impl: Implementation):
        """Euclid's algorithm, on integers that change places."""
        got = impl.while_loop(lambda c: c[1] != 0, lambda c: (c[1], c[0] % c[1]), (84, 36))
        assert int(got[0]) == 12

    @primitives
    def test_traced_init(self, loops: Implementation):
        """Compiled, the number of steps depends on the argument."""
        run = jax.jit(
            lambda n: loops.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, 1))
        )
        assert [int(run(n)[1]) for n in (0, 1, 5)] == [1, 2, 32]

    def test_jvp_gives_value_and_tangent(self, impl: Implementation):
        """The lesson's example: three multiplications and their derivative."""

        def power(x):
            init = (0.0, 1.0)
            return impl.while_loop(lambda c: c[0] < 3.0, lambda c: (c[0] + 1.0, c[1] * x), init)[1]

        primal, tangent = jax.jvp(power, (2.0,), (1.0,))
        assert (float(primal), float(tangent)) == (8.0, 12.0)
        assert primal.weak_type
        assert tangent.weak_type

    def test_callable_objects(self, impl: Implementation):
        """A partial or an object with __call__ serves as condition and as body."""

        class Below:
            def __init__(self, limit):
                self.limit = limit

            def __call__(self, c):
                return c < self.limit

        body = functools.partial(lambda by, c: c + by, 3)
        assert int(impl.while_loop(Below(10), body, 0)) == 12


class TestTypes:
    """Dtypes and weak types of what comes out."""

    def test_weak_stays_weak(self, impl: Implementation):
        """A Python number that the body keeps weak comes out weak."""
        got = impl.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2.0), (0, 1.0))
        assert types_of(got) == [((), jnp.int32, True), ((), jnp.float32, True)]

    def test_weak_is_promoted(self, impl: Implementation):
        """A Python integer that the body makes a strong float comes out a strong float."""
        got = impl.while_loop(lambda c: c < 3, lambda c: c + ONE, 0)
        assert_same(got, jnp.float32(3.0))

    def test_weak_is_promoted_though_the_body_never_runs(self, impl: Implementation):
        """The type of the result does not depend on the number of steps."""
        got = impl.while_loop(lambda c: c < 0, lambda c: c + ONE, 0)
        assert_same(got, jnp.float32(0.0))

    def test_body_may_make_the_carry_weak(self, impl: Implementation):
        """A strong init whose body returns a Python number comes out as weak as JAX has it."""
        run = lambda loops: loops.while_loop(lambda c: c < 3.0, lambda c: 4.0, ONE)
        assert_same(run(impl), run(JAX))

    def test_promotion_runs_along_a_chain(self):
        """A float at the end of a chain of integer inits reaches the first one.

        Ours alone: JAX promotes once, and refuses a chain that needs it twice.
        """
        body = lambda c: (c[0] + 1, c[2], c[3], c[3])
        got = OURS.while_loop(lambda c: c[0] < 3, body, (0, 0, 0, ONE))
        assert_same(got[1:], (ONE,) * 3)

    @primitives
    @pytest.mark.parametrize(("init", "traces"), [(0, 2), (0.0, 1), (ONE, 1)], ids=repr)
    def test_number_of_traces(self, loops: Implementation, init, traces):
        """The body is traced twice for a weak init that has to change, and once for any other."""
        seen = []

        def body(c):
            seen.append(c)
            return c + ONE if init is not ONE and isinstance(init, int) else c + 1.0

        loops.while_loop(lambda c: c < 3.0, body, init)
        assert len(seen) == traces

    @pytest.mark.parametrize(
        "init", [2, 2.5, np.float32(2), np.arange(3, dtype=np.int16)], ids=repr
    )
    def test_numbers_and_numpy_arrays_as_init(self, impl: Implementation, init):
        """A Python scalar or a numpy array is an init, and its type is the one JAX gives it."""
        run = lambda loops: loops.while_loop(lambda c: (c < 9).any(), lambda c: c + c + 1, init)
        assert_same(run(impl), run(JAX))


class TestJaxpr:
    """What a while loop looks like when traced."""

    def test_parameters(self):
        """The equation is named while and has the lesson's parameters."""
        limit, factor = 5.0 * ONE, 2.0 * ONE

        def fun(x, limit, factor):
            return OURS.while_loop(lambda c: c < limit, lambda c: c * factor, x)

        eqn = the_equation(fun, ONE, limit, factor, name="while")
        assert {"cond_jaxpr", "body_jaxpr"} <= eqn.params.keys()
        assert (eqn.params["cond_nconsts"], eqn.params["body_nconsts"]) == (1, 1)

    def test_repeated_call_does_not_trace_again(self):
        """A second call with the same functions and types reuses the trace."""
        seen = []

        def body(c):
            seen.append(c)
            return c + 1.0

        cond = lambda c: c < 3.0
        for _ in range(3):
            OURS.while_loop(cond, body, ONE)
        assert len(seen) == 1


class TestRefusals:
    """What is refused, and with which words."""

    @primitives
    @pytest.mark.parametrize("which", ["cond", "body"])
    def test_not_callable(self, loops: Implementation, which):
        """A condition or body that cannot be called is refused."""
        functions = {"cond": lambda c: c < 3, "body": lambda c: c + 1} | {which: 3}
        with pytest.raises(TypeError, match="callable"):
            loops.while_loop(functions["cond"], functions["body"], 0)

    @primitives
    @pytest.mark.parametrize(
        ("cond", "what"),
        [
            (lambda c: c, r"output type\(s\) \[ShapedArray\(float32\[3\]"),
            (lambda c: c < 3.0, r"output type\(s\) \[ShapedArray\(bool\[3\]\)\]\."),
            (lambda c: c.sum(), r"output type\(s\) \[ShapedArray\(float32\[\]"),
            (lambda c: 1, r"output type\(s\) \[ShapedArray\(int32\[\]"),
            (lambda c: (c < 3.0).any()[None], r"output type\(s\) \[ShapedArray\(bool\[1\]"),
            (lambda c: ((c < 3.0).any(),), r"pytree PyTreeDef\(\(\*,\)\)\."),
            (lambda c: (True, False), r"pytree PyTreeDef\(\(\*, \*\)\)\."),
            (lambda c: None, r"pytree PyTreeDef\(None\)\."),
        ],
        ids=["floats", "booleans", "float", "integer", "row", "tuple", "pair", "None"],
    )
    def test_condition_is_no_boolean_scalar(self, loops: Implementation, cond, what):
        """Anything but one boolean is refused, with its type or its structure."""
        message = r"^cond_fun must return a boolean scalar, but got " + what
        with pytest.raises(TypeError, match=message):
            loops.while_loop(cond, lambda c: c + 1.0, jnp.ones(3))

    @primitives
    def test_condition_is_refused_before_the_body(self, loops: Implementation):
        """A bad condition is reported even if the body is bad as well."""
        with pytest.raises(TypeError, match=r"^cond_fun must return a boolean scalar"):
            loops.while_loop(lambda c: c, lambda c: (c, c), ONE)

    @primitives
    @pytest.mark.parametrize(
        "body",
        [
            lambda c: c[None],
            lambda c: c.astype(jnp.bfloat16),
            lambda c: (c, c),
            lambda c: [c],
            lambda c: None,
        ],
        ids=["shape", "dtype", "pair", "list", "None"],
    )
    def test_carry_that_changes_its_type(self, loops: Implementation, body):
        """A body must return the type of carry that it got."""
        message = r"^while_loop body function carry input and carry output"
        with pytest.raises(TypeError, match=message):
            loops.while_loop(lambda c: c < 3.0, body, ONE)

    def test_contract_holds_without_jit(self):
        """The same body is refused in debugging mode. Ours alone: JAX's lets it run."""
        with jax.disable_jit(), pytest.raises(TypeError, match="must have equal types"):
            OURS.while_loop(lambda c: c < 3.0, lambda c: (c + 1.0).astype(jnp.bfloat16), ONE)

    def test_contract_holds_without_jit_and_without_steps(self):
        """In debugging mode too a body that is never run is checked, and promotes. Ours alone."""
        with jax.disable_jit():
            with pytest.raises(TypeError, match="must have"):
                OURS.while_loop(lambda c: c < 0, lambda c: (c, c), ONE)
            promoted = OURS.while_loop(lambda c: c < 0, lambda c: c * jnp.float32(1.5), 0)
            # A body that asks for values cannot be traced, and none are asked of it.
            assert OURS.while_loop(lambda c: c < 0, lambda c: c + bool(c > 1), ONE) == ONE
        assert jax.typeof(promoted) == jax.typeof(jnp.float32(0))

    @pytest.mark.parametrize("run", ["while", "scan"])
    def test_weak_types_go_from_step_to_step_as_when_compiled(self, run):
        """Two components that change places, one of them weak, have the same types either way."""

        def swap(c):
            return (c[0] + 1, c[2], c[1])

        def call():
            init = (0, jnp.int32(3), 2)
            if run == "scan":
                return OURS.scan(lambda c, _: (swap(c), None), init, length=2)[0]
            return OURS.while_loop(lambda c: c[0] < 2, swap, init)

        with jax.disable_jit():
            stepwise = call()
        assert [jax.typeof(x) for x in call()] == [jax.typeof(x) for x in stepwise]

    @primitives
    @pytest.mark.parametrize("compile_", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
    @pytest.mark.parametrize(
        "differentiate",
        [jax.grad, jax.jacrev, jax.hessian, lambda f: lambda x: jax.vjp(f, x)[1](x)],
    )
    def test_reverse_mode(self, loops: Implementation, compile_, differentiate):
        """Reverse mode is refused with the lesson's words, which say what to use instead."""
        fun = lambda x: loops.while_loop(lambda c: c < 10.0, lambda c: c * c, x)
        message = (
            "^Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with "
            r"dynamic start/stop values. Try using lax.scan, or using fori_loop with static "
            r"start/stop\."
        )
        with pytest.raises(ValueError, match=message):
            compile_(differentiate(fun))(2.0 * ONE)

    def test_reverse_mode_notes(self):
        """A note says which body it is about, and the arguments with which it would work."""

        def body(c):
            return c * c

        fun = lambda x: OURS.while_loop(lambda c: c < 10.0, body, x)
        with pytest.raises(ValueError, match=r"^Reverse-mode") as caught:
            jax.grad(fun)(2.0 * ONE)
        line = body.__code__.co_firstlineno
        assert caught.value.__notes__[0] == (
            f"The loop's body is {body.__qualname__.split('.')[-1]} at {__file__}:{line}. With "
            "`max_steps=` or `checkpoints=` the loop has derivatives in reverse mode too, whatever "
            "its number of steps."
        )

    @primitives
    def test_reverse_mode_of_what_does_not_go_through(self, loops: Implementation):
        """A while loop beside the differentiated path, or without tangents, is no obstacle."""

        def fun(x):
            n = loops.while_loop(lambda c: c < 5, lambda c: c + 2, jnp.int32(0))
            return x * n.astype(x.dtype)

        assert float(jax.grad(fun)(ONE)) == 6.0
        stopped = lambda x: (
            x * loops.while_loop(lambda c: c < 10.0, lambda c: c * c, jax.lax.stop_gradient(x))
        )
        assert float(jax.grad(stopped)(2.0 * ONE)) == 16.0
