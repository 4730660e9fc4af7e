"""The ends of the range: no step, one step, more checkpoints than steps, all steps used up."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops

X = np.float32(0.5)


def power(n, x, **options):
    """`x ** (n + 1)` by a while loop."""
    init = (jnp.int32(0), x)
    body = lambda s: (s[0] + 1, s[1] * x)
    return loops.while_loop(lambda s: s[0] < n, body, init, **options)[1]


def to_the_end(fun, *args):
    """A result, when its program has also called back."""
    result = jax.block_until_ready(fun(*args))
    jax.effects_barrier()
    return result


@pytest.mark.parametrize("checkpoints", [1, 2, 5, 100])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_steps_and_checkpoints(steps, checkpoints):
    """Any number of checkpoints serves any number of steps."""
    gradient = jax.grad(lambda x: power(steps, x, checkpoints=checkpoints))(X)
    np.testing.assert_allclose(gradient, (steps + 1) * X**steps, rtol=1e-6)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("checkpoints", [1, 3])
def test_short_scans(steps, checkpoints):
    """A scan over no row or one has its derivatives, and ys of that length."""
    xs = jnp.ones(steps, jnp.float32)

    def run(x):
        return loops.scan(lambda c, y: (c * x * y, c), x, xs, checkpoints=checkpoints)

    assert run(X)[1].shape == (steps,)
    gradient = jax.grad(lambda x: run(x)[0])(X)
    np.testing.assert_allclose(gradient, (steps + 1) * X**steps, rtol=1e-6)


@pytest.mark.parametrize("lower", [3, 5])
def test_fori_loop_without_steps(lower):
    """A loop whose upper bound is not above the lower one returns what it got."""
    run = jax.jit(lambda n, x: loops.fori_loop(lower, n, lambda _, c: c * x, x, checkpoints=2))
    assert float(run(3, X)) == X
    assert float(jax.grad(run, 1)(3, X)) == 1.0


def test_until_at_once():
    """A scan that has ended before its first step hands its init back and zeros for ys."""

    def run(x):
        return loops.scan(lambda c, _: (c * x, c), x, None, 4, until=lambda c: c < 10.0)

    carry, ys = run(X)
    assert float(carry) == X
    assert ys.tolist() == [0.0] * 4
    assert float(jax.grad(lambda x: run(x)[0])(X)) == 1.0


def test_until_never():
    """A scan that never ends early is the plain one."""

    def run(x, **options):
        return loops.scan(lambda c, _: (c * x, c), x, None, 4, **options)

    early = jax.jacrev(lambda x: run(x, until=lambda c: c > 10.0))(X)
    plain = jax.jacrev(run)(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), early, plain)


def test_until_in_reverse():
    """A scan in reverse ends at the front, and what it did not reach are the first rows."""
    xs = jnp.arange(1.0, 6.0, dtype=jnp.float32)

    def run(xs):
        step = lambda c, x: (c + x, c * x)
        return loops.scan(step, jnp.float32(0), xs, reverse=True, until=lambda c: c >= 9.0)

    carry, ys = run(xs)
    assert float(carry) == 9.0
    assert ys.tolist() == [0.0, 0.0, 0.0, 20.0, 0.0]
    gradient = jax.grad(lambda xs: run(xs)[0] ** 2)(xs)
    assert gradient.tolist() == [0.0, 0.0, 0.0, 18.0, 18.0]


def test_cut_off_at_the_call():
    """An eager loop that hits `max_steps` warns at the line of its call."""
    with pytest.warns(loops.MaxStepsWarning, match=r"while_loop stopped at max_steps=3") as caught:
        assert float(power(9, X, max_steps=3)) == X**4
    assert caught[0].filename == __file__


def test_cut_off_in_a_running_program():
    """Under jit the program that runs gives the warning, each time it is run."""
    run = jax.jit(lambda n, x: power(n, x, max_steps=3))
    for _ in range(2):
        with pytest.warns(loops.MaxStepsWarning, match="allow more steps"):
            to_the_end(run, 9, X)


def test_in_time():
    """A loop that ends by its condition does not warn, eager or compiled, cut off or just not."""
    assert float(power(3, X, max_steps=3)) == X**4
    assert float(jax.jit(lambda x: power(3, x, max_steps=3))(X)) == X**4
    jax.effects_barrier()


@pytest.mark.parametrize("is_static", [True, False])
def test_fori_loop_cut_off(is_static):
    """A fori_loop with more steps than it may take warns, with bounds known or not."""
    run = lambda n: loops.fori_loop(0, n, lambda _, c: c * X, X, max_steps=3)
    with pytest.warns(loops.MaxStepsWarning, match="fori_loop stopped at max_steps=3"):
        value = run(9) if is_static else to_the_end(jax.jit(run), 9)
    assert float(value) == X**4


def test_gradient_of_a_loop_that_was_cut_off():
    """The gradient follows the steps that were taken."""
    with pytest.warns(loops.MaxStepsWarning):
        gradient = to_the_end(jax.grad(lambda x: power(9, x, max_steps=3)), X)
    np.testing.assert_allclose(gradient, 4 * X**3, rtol=1e-6)


def test_ignored_warning_leaves_no_callback():
    """Traced under a filter that ignores the warning, a program has nothing that calls Python."""
    fun = lambda x: power(9, x, max_steps=3)
    assert "callback" in str(jax.make_jaxpr(fun)(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", loops.MaxStepsWarning)
        assert "callback" not in str(jax.make_jaxpr(lambda x: power(9, x, max_steps=3))(X))


def test_export_of_a_bounded_loop():
    """Without the callback such a loop and its gradient can be exported and called again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", loops.MaxStepsWarning)
        exported = jax.export.export(jax.jit(jax.grad(lambda x: power(4, x, max_steps=9))))(X)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(X), 5 * X**4, rtol=1e-6)
