"""Functions with derivatives of their own, called in the body of a loop.

JAX 0.10.2 forgets a custom_jvp rule in a scan's body once it has been differentiated in reverse:
the second derivative is then that of the function itself. Ours keeps the rule, as plain Python and
newer releases of JAX do, so second derivatives are compared with Python alone.
"""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import OURS, PYTHON, Implementation
from tests.helpers.programs import doubled, tripled

X = jnp.float32(0.7)


def through_scan(loops: Implementation, rule):
    """Two steps that apply `rule` to the carry, with ys."""

    def fun(x):
        c, ys = loops.scan(lambda c, _: (jnp.sin(rule(c)), rule(c)), x, None, length=2)
        return c + ys.sum()

    return fun


def through_fori(loops: Implementation, rule):
    """Two steps of a fori_loop that closes over the differentiated value."""
    return lambda x: loops.fori_loop(0, 2, lambda i, c: jnp.sin(c) + rule(c * x), x)


FORWARD = {
    "jvp": lambda fun: jax.jvp(fun, (X,), (X,)),
    "jacfwd_twice": lambda fun: jax.jacfwd(jax.jacfwd(fun))(X),
}
REVERSE = {
    "grad": lambda fun: jax.value_and_grad(fun)(X),
    "vmap_of_grad": lambda fun: jax.vmap(jax.grad(fun))(jnp.stack([X, 2 * X])),
    "grad_of_grad": lambda fun: jax.grad(jax.grad(fun))(X),
    "jit_of_grad": lambda fun: jax.jit(jax.grad(fun))(X),
}

loop_kinds = pytest.mark.parametrize("through", [through_scan, through_fori])


@loop_kinds
@pytest.mark.parametrize("differentiate", (FORWARD | REVERSE).values(), ids=FORWARD | REVERSE)
def test_custom_jvp(through, differentiate):
    """A custom_jvp rule holds in a loop at every order of differentiation."""
    assert_same(differentiate(through(OURS, doubled)), differentiate(through(PYTHON, doubled)))


@loop_kinds
@pytest.mark.parametrize("differentiate", REVERSE.values(), ids=REVERSE)
def test_custom_vjp(through, differentiate):
    """A custom_vjp rule holds in a loop, also one whose backward pass calls it again."""

    @jax.custom_vjp
    def itself(x):
        return 3.0 * x

    itself.defvjp(lambda x: (itself(x), None), lambda _, g: (itself(g),))
    for rule in (tripled, itself):
        assert_same(differentiate(through(OURS, rule)), differentiate(through(PYTHON, rule)))


def test_forward_mode_of_custom_vjp_is_refused():
    """A function with only a reverse rule has no tangent in a loop either."""
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(through_scan(OURS, tripled), (X,), (X,))


def test_loop_inside_a_custom_rule(impl: Implementation):
    """A loop may be the function that has a custom derivative, and its rule may loop too."""

    @jax.custom_vjp
    def power(x):
        return impl.fori_loop(0, 3, lambda i, c: c * x, jnp.float32(1.0))

    backward = lambda x, g: (3.0 * impl.fori_loop(0, 2, lambda i, c: c * x, g),)
    power.defvjp(lambda x: (power(x), x), backward)
    value, slope = jax.value_and_grad(power)(X)
    assert_same((value, slope), (X**3, 3.0 * X**2))
    assert_same(jax.grad(jax.grad(power))(X), 6.0 * X)
