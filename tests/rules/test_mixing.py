"""Our loops beside JAX's: in their bodies, around them, and in the branches of a cond."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, Implementation

X = jnp.float32([0.4, 0.9])
ROWS = jnp.float32([[0.2, 0.5], [0.7, 0.3]])

TRANSFORMATIONS = {
    "eager": lambda fun: fun(X),
    "jit": lambda fun: jax.jit(fun)(X),
    "vmap": lambda fun: jax.vmap(fun)(ROWS),
    "jvp": lambda fun: jax.jvp(fun, (X,), (X,)),
    "grad": lambda fun: jax.grad(lambda x: jnp.sin(fun(x)).sum())(X),
    "hessian": lambda fun: jax.jit(jax.hessian(lambda x: jnp.sin(fun(x)).sum()))(X),
    "vmap_of_grad": lambda fun: jax.vmap(jax.grad(lambda x: jnp.sin(fun(x)).sum()))(ROWS),
}
transformations = pytest.mark.parametrize("apply", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)


def nested(outer: Implementation, inner: Implementation):
    """A scan over a fori_loop that reads the outer carry and row."""

    def fun(x):
        def step(c, row):
            body = lambda i, v: jnp.sin(v) * c + row
            return inner.fori_loop(0, 2, body, c), None

        return outer.scan(step, x, ROWS)[0]

    return fun


@transformations
@pytest.mark.parametrize(("outer", "inner"), [(OURS, JAX), (JAX, OURS)], ids=repr)
def test_one_in_the_other(outer: Implementation, inner: Implementation, apply):
    """A loop of ours in one of JAX's, and one of JAX's in ours, are as two of one kind."""
    assert_same(apply(nested(outer, inner)), apply(nested(JAX, JAX)))


def in_branches(loops: Implementation):
    """A cond whose branches loop, in a loop; in a batch the predicate is one for each lane."""

    def fun(x):
        loop = lambda v: loops.scan(lambda c, row: (c * row + 0.1, None), v, ROWS)[0]
        other = lambda v: loops.fori_loop(0, 3, lambda i, c: jnp.cos(c), v)
        branch = lambda i, c: jax.lax.cond(c.sum() > 1.2, loop, other, c)
        return loops.fori_loop(0, 2, branch, x)

    return fun


@transformations
def test_in_the_branches_of_a_cond(apply):
    """Loops in the branches of a cond, itself in a loop, give what JAX's give."""
    assert_same(apply(in_branches(OURS)), apply(in_branches(JAX)))


@pytest.mark.parametrize("apply", [TRANSFORMATIONS[name] for name in ("eager", "vmap", "jvp")])
def test_while_in_a_branch(apply):
    """A while loop in one branch of a cond runs in forward mode and in lanes."""

    def fun(loops):
        grow = lambda v: loops.while_loop(lambda c: c.sum() < 3.0, lambda c: c * 1.5, v)
        return lambda x: jax.lax.cond(x.sum() > 1.0, grow, lambda v: -v, x)

    assert_same(apply(fun(OURS)), apply(fun(JAX)))


def test_loop_in_a_solver():
    """A loop that computes a matrix product serves as the operator of JAX's own solver."""
    matrix = jnp.float32([[4.0, 1.0], [1.0, 3.0]])

    def solve(loops):
        product = lambda v: loops.map(lambda row: row @ v, matrix)
        return lambda b: jax.scipy.sparse.linalg.cg(product, b)[0].sum()

    assert_same(jax.grad(solve(OURS))(X), jax.grad(solve(JAX))(X))
