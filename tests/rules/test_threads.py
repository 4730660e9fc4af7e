"""Several threads that trace, transform, compile and run loops at the same time."""

import concurrent.futures
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

import loops
from checks import CarryTypeError
from checks.python_loops import fori_loop as python_fori_loop
from tests.helpers.comparison import assert_same

NUM_THREADS = 6
INIT = jnp.float32([0.3, 0.6])
ROWS = jnp.linspace(0.5, 1.5, 6, dtype=jnp.float32).reshape(3, 2)


@pytest.fixture(autouse=True)
def _switch_often():
    """Threads take turns so often that each step of a trace may be interrupted."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with jax.numpy_dtype_promotion("standard"):
        yield
    sys.setswitchinterval(before)


def at_once(work, count=NUM_THREADS):
    """The results of `work(number)` for each thread's number, all started at the same moment."""
    barrier = threading.Barrier(count)

    def run(number):
        with jax.numpy_dtype_promotion("standard"):  # the setting belongs to a thread
            barrier.wait()
            return work(number)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def shared_step(c, x):
    """A body that all threads share, and with it JAX's caches of its traces."""
    return jnp.sin(c) * x, c * x


def promoted(scale):
    """Loops in one another whose integer inits are promoted, two of them in the same pass."""

    def body(carry, x):
        total, count = carry
        inner = loops.fori_loop(0, 2, lambda i, d: d + x.sum() * scale, 0)
        return (total + inner, count + 1), loops.scan(lambda c, v: (c + v, c), 0, x)[1]

    return loops.scan(body, (0, 0), ROWS)


def nested_while(scale):
    """A while loop in a fori_loop, in lanes."""

    def run(c):
        inner = lambda i, d: loops.while_loop(lambda d: d.sum() < 5, lambda d: 2 * d + scale, d)
        return loops.fori_loop(0, 3, inner, c)

    return jax.vmap(run)(jnp.stack([INIT, INIT + 1]))


PROGRAMS = {
    "shared body": lambda scale: loops.scan(shared_step, INIT * scale, ROWS),
    "fresh body": lambda scale: loops.scan(lambda c, x: (c * x + scale, c), INIT, ROWS),
    "promoted": promoted,
    "lanes": nested_while,
    "gradient": lambda scale: jax.grad(
        lambda c, xs: (loops.scan(shared_step, c, xs)[1] ** 2).sum() * scale, (0, 1)
    )(INIT, ROWS),
    "second derivative": lambda scale: jax.hessian(
        lambda c: loops.fori_loop(0, 3, lambda i, c: jnp.sin(c) * scale, c).sum()
    )(INIT),
    "map": lambda scale: loops.map(lambda x: x * scale, ROWS, batch_size=2),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_each_thread_gets_its_own_result(program, compiled):
    """Threads with arguments of their own get what one thread after the other gets."""
    run = jax.jit(program) if compiled else program
    jax.clear_caches()
    got = at_once(lambda number: run(jnp.float32(number + 1)))
    jax.clear_caches()
    want = [run(jnp.float32(number + 1)) for number in range(NUM_THREADS)]
    assert_same(got, want)


def test_different_programs_at_once():
    """Threads that trace different programs, each several times, do not disturb one another."""
    programs = list(PROGRAMS.values())

    def work(number):
        chosen = programs[number:] + programs[:number]
        return {id(run): jax.tree.leaves(jax.jit(run)(jnp.float32(2))) for run in chosen}

    jax.clear_caches()
    got = at_once(work)
    want = {id(run): jax.tree.leaves(jax.jit(run)(jnp.float32(2))) for run in programs}
    for results in got:
        assert_same({key: results[key] for key in want}, want)


def test_traces_are_not_mixed_up():
    """Each thread's jaxpr is the one that it gets alone, whatever the others trace meanwhile."""

    def jaxpr(number):
        body = lambda c, x: (c + number * x.sum(), c)
        run = lambda xs: loops.scan(lambda c, x: (loops.scan(body, c, xs)[0], c), 0, xs)
        return str(jax.make_jaxpr(run)(ROWS))

    assert at_once(jaxpr) == [jaxpr(number) for number in range(NUM_THREADS)]


def test_errors_stay_in_their_thread():
    """A broken contract in every second thread raises there, and the others get their results."""

    def work(number):
        odd = number % 2
        body = lambda c, x: ((jnp.concatenate([c, c]) if odd else c * x), loops.map(jnp.sin, x))
        try:
            return loops.scan(body, INIT, ROWS)[0]
        except CarryTypeError as error:
            return error.mismatches[0].kind

    want = loops.scan(lambda c, x: (c * x, None), INIT, ROWS)[0]
    for number, result in enumerate(at_once(work)):
        if number % 2:
            assert result == "shape"
        else:
            assert_same(result, want)


def test_settings_belong_to_a_thread():
    """A thread that turns jit off runs its loops in Python while the others compile theirs."""

    def work(number):
        seen = []

        def body(i, c):
            seen.append(isinstance(c, jax.core.Tracer))
            return c * 2 + i

        with jax.disable_jit(number % 2 == 0):
            result = loops.fori_loop(0, 4, body, jnp.int32(1))
        return int(result), set(seen)

    expected = int(python_fori_loop(0, 4, lambda i, c: c * 2 + i, jnp.int32(1)))
    for number, result in enumerate(at_once(work)):
        assert result == (expected, {number % 2 == 1})


def test_loops_in_a_thread_while_another_one_is_being_traced():
    """A body that waits for another thread's loop, which is traced meanwhile, is not affected."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def body(c, x):
            add = lambda: loops.scan(lambda c, x: (c + x, None), INIT, ROWS)[0]
            return c * x + pool.submit(lambda: float(add()[0])).result(), None

        got = loops.scan(body, INIT, ROWS)[0]
    constant = float(INIT[0] + ROWS[:, 0].sum())
    assert_same(got, loops.scan(lambda c, x: (c * x + constant, None), INIT, ROWS)[0])


def test_a_trace_that_ends_inside_another_threads_trace():
    """How often an inner body is traced does not depend on what another thread ends meanwhile."""

    def count_traces(entered=lambda: None):
        seen = []

        def outer(c, x):
            def inner(c, x):
                seen.append(c)
                return c + x, None

            if not seen:
                entered()
            return c + loops.scan(inner, 0, x)[0], None

        jax.make_jaxpr(lambda rows: loops.scan(outer, 0, rows))(ROWS)
        return len(seen)

    first_inside, second_inside, first_done = (threading.Event() for _ in range(3))

    def first():
        count_traces(lambda: (first_inside.set(), second_inside.wait()))
        first_done.set()

    def second():
        first_inside.wait()
        return count_traces(lambda: (second_inside.set(), first_done.wait()))

    alone = count_traces()
    works = [first, second]
    assert at_once(lambda number: works[number](), count=2)[1] == alone == 3
