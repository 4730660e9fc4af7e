"""Eager loops with new function objects: what is compiled again, and what is not."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from loops.equal_programs import NotComparable, first_equal_program, program_key, value_key


@pytest.fixture
def compilations():
    """How many programs have been compiled since the test began, as a function."""
    events = []

    def listen(event, duration_secs, **kwargs):
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(events)
    jax.monitoring.unregister_event_duration_listener(listen)


def jaxpr_of(fun, *args):
    """The jaxpr of a function that was never traced before."""
    return jax.make_jaxpr(functools.partial(fun))(*args)


ONE = jnp.float32(1)


def test_lambdas_of_equal_code_compile_once(compilations):
    """The second call with a new function object compiles nothing."""

    def once(k):
        return (
            loops.scan(lambda c, x: (c * 0.25 + x, c), ONE, jnp.arange(7.0))[0],
            loops.fori_loop(0, 6, lambda i, c: c * 1.25 + k, ONE),
            loops.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, s[1] * 1.75), (0, ONE))[1],
        )

    first = jax.block_until_ready(once(jnp.float32(1)))
    before = compilations()
    second = jax.block_until_ready(once(jnp.float32(2)))

    assert before == compilations()
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_three_programs_in_turn_compile_three_times(compilations):
    """Lambdas of different code do not push one another out."""
    xs = jnp.arange(5.0)
    jax.block_until_ready(xs)
    before = compilations()

    for _ in range(20):
        loops.scan(lambda c, x: (c + x * 0.11, None), ONE, xs)
        loops.scan(lambda c, x: (c + x * 0.12, None), ONE, xs)
        loops.scan(lambda c, x: (c - x * 0.11, None), ONE, xs)

    assert 3 == compilations() - before


def test_gradients_of_equal_lambdas_compile_once(compilations):
    """The programs that differentiation makes of a body are looked up too."""

    def gradient():
        return jax.grad(lambda a: loops.scan(lambda c, x: (jnp.sin(c) * x, c), a, XS)[0])(1.5)

    first = gradient()
    before = compilations()
    second = gradient()

    assert before == compilations()
    assert first == second


XS = jnp.linspace(0.5, 1.0, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: 1 + x),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (jnp.sum, jnp.max),
        (lambda x: jnp.sum(x, keepdims=True)[0], jnp.sum),
        (lambda x: x.astype(jnp.float16), lambda x: x.astype(jnp.bfloat16)),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: jnp.dot(x, x), lambda x: jnp.dot(x, x, precision="highest")),
        (jax.jit(lambda y: y + 1), jax.jit(lambda y: y + 2)),
    ],
)
def test_programs_that_differ_have_different_keys(one, other):
    """What the compiled program depends on is in the key."""
    x = jnp.ones(3)

    assert program_key(jaxpr_of(one, x)) != program_key(jaxpr_of(other, x))


def test_programs_that_are_equal_have_equal_keys():
    """Function objects, names of variables and lines of code are not in the key."""

    def fun(x):
        return (
            jax.jit(lambda y: jnp.where(y > 0, y, 0.0).sum())(x)
            + loops.scan(lambda c, v: (c + v, None), 0.0, x)[0]
        )

    one, other = jaxpr_of(fun, jnp.ones(3)), jaxpr_of(fun, jnp.ones(3))

    assert program_key(one) == program_key(other)
    assert first_equal_program(one) is first_equal_program(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, np.float32(1)),
        ("a", b"a"),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
        (np.zeros(2), np.zeros((2, 1))),
        (np.float32(0), np.float32(-0.0)),
        (jnp.dtype("int32"), jnp.dtype("uint32")),
    ],
)
def test_values_that_python_may_call_equal_are_told_apart(one, other):
    """A parameter's key has its type and its bits."""
    assert value_key(one) != value_key(other)
    assert value_key(one) == value_key(one)


def test_nan_equals_itself_in_a_key():
    """A parameter that is NaN is found again."""
    assert value_key(float("nan")) == value_key(float("nan"))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), x.dtype), x),
        lambda x: jax.debug.print("{}", x) or x,
    ],
    ids=["callback", "effect"],
)
def test_what_only_identity_tells_apart_is_not_compared(fun):
    """Callbacks and effects are never looked up, and still run."""
    with pytest.raises(NotComparable):
        program_key(jaxpr_of(fun, ONE))

    assert 1.0 == float(loops.fori_loop(0, 2, lambda i, c: fun(c), ONE))


def make_scaled_relu(scale):
    """A function whose derivative rule closes over an array."""

    @jax.custom_jvp
    def scaled(x):
        return jnp.maximum(x, 0.0)

    scaled.defjvp(lambda primals, tangents: (scaled(*primals), scale * tangents[0]))
    return scaled


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["plain", "in a nested jit"])
def test_derivative_rules_do_not_matter_to_a_compiled_program(compilations, inside):
    """Bodies with custom rules made anew are looked up, their rules are used, and freed."""

    def loop_over(scale):
        step = inside(make_scaled_relu(scale))
        return lambda c: loops.fori_loop(0, 2, lambda i, c: step(c) * 1.125, c)

    scale = jnp.float32(3)
    reference = weakref.ref(scale)
    loop_over(scale)(ONE)
    del scale
    gc.collect()
    before = compilations()
    again = loop_over(jnp.float32(5))

    assert 1.265625 == float(again(ONE))
    assert before == compilations()
    assert 25.0 * 1.265625 == float(jax.grad(again)(1.0))
    if inside is not jax.jit:  # jit itself keeps what a function closes over
        assert reference() is None


def test_what_lives_long_or_says_all_in_equations_is_compared(compilations):
    """Old random keys, Refs and checkpoint policies do not keep a body from being looked up."""
    key, ref = jax.random.PRNGKey(0), jax.new_ref(jnp.arange(4.0))

    def once():
        policy = jax.checkpoint_policies.save_only_these_names("y")
        return (
            loops.scan(lambda k, _: (jax.random.split(k)[0], jax.random.uniform(k)), key, length=3),
            loops.scan(lambda c, i: (c * 0.875 + ref[i], None), ONE, jnp.arange(3)),
            loops.fori_loop(0, 3, lambda i, c: jax.ref.swap(ref, i, c) + 0.625, ONE),
            loops.fori_loop(0, 3, lambda i, c: jax.checkpoint(jnp.sin, policy=policy)(c), ONE),
        )

    once()
    before = compilations()
    once()

    assert before == compilations()


def test_refs_of_equal_loops_are_not_mixed_up():
    """A loop reads and writes the Refs that its own body closes over."""
    first, second = jax.new_ref(jnp.zeros(2)), jax.new_ref(jnp.full(2, 10.0))

    def add_and_swap(ref, other):
        def body(i, c):
            ref[i] += 1.0
            return c + jax.ref.swap(other, i, c)

        return float(loops.fori_loop(0, 2, body, ONE))

    results = [add_and_swap(first, second), add_and_swap(second, first)]

    assert [21.0, 3.0] == results
    assert [[1.0, 2.0], [2.0, 12.0]] == [first[...].tolist(), second[...].tolist()]


def test_callbacks_of_equal_code_are_not_mixed_up():
    """Two callbacks that look alike keep their own functions."""

    def add_on_the_host(amount):
        def add(v):
            return np.float32(v + amount)

        return lambda i, c: jax.pure_callback(add, jax.ShapeDtypeStruct((), jnp.float32), c)

    results = [float(loops.fori_loop(0, 2, add_on_the_host(k), ONE)) for k in (1, 10)]

    assert [3.0, 21.0] == results


def test_captured_arrays_are_not_kept():
    """Once a loop has run, the arrays that its body closed over are free."""

    def once():
        captured = jnp.full((1000,), 3.0)
        loops.scan(lambda c, x: (c + captured[0] * x, None), ONE, XS)
        return weakref.ref(captured)

    references = [once() for _ in range(3)]
    gc.collect()

    assert [None] * 3 == [reference() for reference in references]


def test_clear_caches_empties_the_table(compilations):
    """After `jax.clear_caches()` the next call compiles again."""

    def once():
        return loops.scan(lambda c, x: (c * 0.375 + x, None), ONE, XS)

    once()
    jax.clear_caches()
    before = compilations()
    once()

    assert before < compilations()


def test_settings_that_change_programs_are_respected():
    """The same body under another matmul precision is another program."""
    a = jnp.eye(2)

    def once():
        return (
            jax.make_jaxpr(lambda x: loops.scan(lambda c, _: (c @ a, None), x, None, length=2))(a)
            .eqns[0]
            .params["jaxpr"]
        )

    low = first_equal_program(once())
    with jax.default_matmul_precision("highest"):
        high = first_equal_program(once())

    assert low is not high
