"""Loops that keep few carries, whose bodies call functions and close over traced values."""

import jax
import jax.numpy as jnp
import pytest

import loops


def after(use):
    """A body whose nested call returns a value beside a tangent; `use` gets the value."""

    def body(carry):
        value, y = jax.jit(lambda a, b: (a * 1.1, b * a))(*carry)
        return use(value), y

    return body


def scanned(value, y):
    """Return both from a nested scan."""
    return loops.scan(lambda c, _: ((c[0] * 1.1, c[1] * c[0]), None), (value, y), length=2)[0]


USES = {
    "stop_gradient": jax.lax.stop_gradient,
    "floor": lambda x: jnp.floor(x) + 0.1,
    "exp": lambda x: jnp.exp(x) / 2,
    "square": lambda x: x * x,
}
LOOPS = {
    "scan": lambda body, init: loops.scan(
        lambda c, _: (body(c), None), init, length=4, checkpoints=2
    )[0],
    "while": lambda body, init: loops.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, *body(c[1:])), (0, *init), max_steps=9
    )[1:],
    "fori": lambda body, init: loops.fori_loop(0, 4, lambda _, c: body(c), init, checkpoints=2),
}


def gradients(loop, body):
    """First and second derivatives, in reverse mode and in forward mode."""

    def last(y):
        return jnp.sin(loop(body, (0.5, y))[1])

    reverse = [jax.grad(last)(0.7), jax.grad(jax.grad(last))(0.7)]
    forward = [jax.jacfwd(last)(0.7), jax.jacfwd(jax.jacfwd(last))(0.7)]
    return list(map(float, reverse)), list(map(float, forward))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("loop", LOOPS)
def test_value_from_a_call_that_returns_tangents_too(loop, use):
    """What a nested call returns beside a tangent is not taken for linear on the way back."""
    reverse, forward = gradients(LOOPS[loop], after(USES[use]))

    assert reverse == pytest.approx(forward, rel=1e-5)


@pytest.mark.parametrize("loop", LOOPS)
def test_value_from_a_nested_scan(loop):
    """The same for a scan inside that carries a value beside a tangent."""

    def body(carry):
        value, y = scanned(*carry)
        return jnp.floor(value) + 0.3, y

    reverse, forward = gradients(LOOPS[loop], body)

    assert reverse == pytest.approx(forward, rel=1e-5)


def test_where_with_a_traced_bound():
    """A step cut to end at a traced bound has the derivative of the bound."""

    def end_of(bound):
        def body(state):
            time, y, step = state
            is_last = step >= bound - time
            step = jnp.where(is_last, bound - time, step)
            y = y * (1 - step)
            step_after = jax.lax.stop_gradient(0.2 + y * step)
            return jnp.where(is_last, bound, time + step), y, step_after

        start = (jnp.zeros_like(bound), 1.0, 0.3)
        return loops.while_loop(lambda state: state[0] < bound, body, start, max_steps=50)[1]

    assert float(jax.grad(end_of)(0.8)) == pytest.approx(float(jax.jacfwd(end_of)(0.8)), rel=1e-5)


def test_until_that_closes_over_a_traced_value():
    """`until` may compare with an argument of the jitted function around it."""

    @jax.jit
    def count(bound, step):
        return loops.scan(lambda c, _: (c + step, c), 0.0, length=5, until=lambda c: c >= bound)

    total, before = count(3.0, 1.0)

    assert float(total) == 3
    assert before.tolist() == [0, 1, 2, 0, 0]


def test_max_steps_of_a_symbolic_number_of_steps():
    """A bound that could not be kept is refused, not passed over."""
    (size,) = jax.export.symbolic_shape("size")
    xs = jax.ShapeDtypeStruct((size,), jnp.float32)

    def total(xs):
        return loops.fori_loop(0, xs.shape[0], lambda i, c: c + xs[i], 0.0, max_steps=2)

    with pytest.raises(NotImplementedError, match="no symbolic dimensions; the loop has size"):
        jax.export.export(jax.jit(total))(xs)
