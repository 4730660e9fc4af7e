"""Loops over sparse arrays, beside the same loops over dense ones and beside JAX's loops.

JAX's scan has no rule for xs, and its carry must not have ys beside it; there the dense loop is the
only oracle.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import sparse
from jax.experimental.sparse import BCOO, BCSR, sparsify

from tests.helpers.comparison import assert_same
from tests.helpers.equations import the_equation
from tests.helpers.implementations import JAX, OURS, Implementation

DENSE = jnp.float32([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
M = BCOO.fromdense(DENSE)
ROWS = sparse.bcoo_update_layout(M, n_batch=1, on_inefficient=None)
V = jnp.float32([1.0, 2.0, 3.0])


def is_sparse(x):
    """Whether an array is sparse."""
    return isinstance(x, BCOO | BCSR)


def to_dense(tree):
    """A tree of arrays with the sparse ones made dense."""
    return jax.tree.map(lambda x: x.todense() if is_sparse(x) else x, tree, is_leaf=is_sparse)


def kinds(tree):
    """The class of each array: sparse ones of the first two, dense ones of none."""
    leaves = jax.tree.leaves(tree, is_leaf=is_sparse)
    return [type(x) if is_sparse(x) else None for x in leaves]


def constant(loops: Implementation, m, v):
    """A sparse matrix that a fori_loop closes over."""
    return loops.fori_loop(0, 4, lambda i, c: m @ c, v)


def carried(loops: Implementation, m, v):
    """A sparse matrix that a fori_loop carries."""
    return loops.fori_loop(0, 4, lambda i, c: c * 2.0, m)


def transposed(loops: Implementation, m, v):
    """A sparse matrix whose indices are sorted before the loop and not in it."""
    return loops.fori_loop(0, 3, lambda i, c: c.T, m)


def in_while(loops: Implementation, m, v):
    """A while loop with a sparse constant in its body and another in its condition."""
    return loops.while_loop(lambda c: (m @ c).sum() < 50.0, lambda c: m @ c + c, v)


def carried_in_while(loops: Implementation, m, v):
    """A while loop that carries a sparse matrix, which its condition sums."""
    return loops.while_loop(lambda c: c.sum() < 50.0, lambda c: c * 2.0, m)


def nested(loops: Implementation, m, v):
    """A loop in a loop, with a jitted function in between."""
    inner = jax.jit(lambda c: loops.fori_loop(0, 2, lambda j, d: m @ d, c))
    return loops.fori_loop(0, 2, lambda i, c: inner(c), v)


def with_ys(loops: Implementation, m, v):
    """A sparse carry beside a dense one, and dense ys."""
    return loops.scan(lambda c, _: ((c[0] * 2.0, c[1]), c[0] @ c[1]), (m, v), None, length=3)


def dense_xs(loops: Implementation, m, v):
    """Dense xs and ys beside a sparse constant."""
    return loops.scan(lambda c, x: (m @ c * x, c), v, v, reverse=True)


def sparse_xs(loops: Implementation, rows, v):
    """A sparse matrix row by row, and its rows in the ys."""
    return loops.scan(lambda c, row: (c + row @ v, row * 2.0), jnp.float32(0.0), rows)


def sparse_ys(loops: Implementation, m, v):
    """A sparse matrix for each step."""
    return loops.scan(lambda c, x: (c, m * x), (), v)[1]


def made_dense(loops: Implementation, m, v):
    """A dense carry for which the body returns something sparse."""
    return loops.fori_loop(0, 2, lambda i, c: m * c, jnp.outer(v, v))


BOTH = [constant, carried, transposed, in_while, carried_in_while, nested]
either_implementation = pytest.mark.parametrize("use_tracer", [False, True])


@either_implementation
@pytest.mark.parametrize("fun", BOTH, ids=lambda fun: fun.__name__)
def test_as_with_jaxs_loops(fun, use_tracer):
    """The result is as sparse as with JAX's loops and has the values of the dense loop."""
    run = lambda loops: sparsify(lambda m, v: fun(loops, m, v), use_tracer)(M, V)
    got, want = run(OURS), run(JAX)

    assert kinds(got) == kinds(want)
    assert_same(to_dense(got), to_dense(want))
    assert_same(to_dense(got), fun(OURS, DENSE, V))


@either_implementation
@pytest.mark.parametrize(
    ("fun", "argument", "kinds_out"),
    [
        (with_ys, M, [BCOO, None, None]),
        (dense_xs, M, [None, None]),
        (sparse_xs, ROWS, [None, BCOO]),
        (sparse_ys, M, [BCOO]),
        (made_dense, M, [None]),
    ],
)
def test_beyond_jaxs_loops(fun, argument, kinds_out, use_tracer):
    """Xs, ys and a dense carry that meets a sparse value give the values of the dense loop."""
    got = sparsify(lambda m, v: fun(OURS, m, v), use_tracer)(argument, V)

    assert kinds_out == kinds(got)
    assert_same(to_dense(got), fun(OURS, DENSE, V))


def test_compressed_rows():
    """An array of the other sparse class goes through a loop as well."""
    got = sparsify(lambda m, v: constant(OURS, m, v))(BCSR.fromdense(DENSE), V)
    assert_same(got, constant(OURS, DENSE, V))


def test_shared_parts_of_rows():
    """Rows that share their indices, stored once, each get them."""
    indices = jnp.int32([[[0], [2]]])
    rows = BCOO((jnp.float32([[1.0, 2.0], [3.0, 4.0]]), indices), shape=(2, 3))
    got = sparsify(lambda m, v: sparse_xs(OURS, m, v))(rows, V)

    assert_same(to_dense(got), sparse_xs(OURS, rows.todense(), V))


def test_what_a_step_loses():
    """Indices that are no longer sorted after a step are not said to be sorted by any."""
    transposed_thrice = sparsify(lambda m, v: transposed(OURS, m, v))(M, V)

    assert M.indices_sorted
    assert not transposed_thrice.indices_sorted


def test_transformations():
    """A sparsified loop can be compiled, differentiated and batched in its dense arguments."""
    run = sparsify(lambda m, v: constant(OURS, m, v))
    dense = lambda v: constant(OURS, DENSE, v)
    loss = lambda fun: lambda v: jnp.sin(fun(v)).sum()

    assert_same(jax.jit(run)(M, V), dense(V))
    assert_same(jax.grad(loss(lambda v: run(M, v)))(V), jax.grad(loss(dense))(V))
    assert_same(jax.vmap(lambda v: run(M, v))(DENSE), jax.vmap(dense)(DENSE))


def test_a_gradient_sparsified():
    """A gradient that hoists a sparse product out of its loop can be sparsified."""

    def fun(m, v):
        step = lambda i, c: jnp.sin(c) * ((m * 2.0) @ v)
        return jax.grad(lambda c: OURS.fori_loop(0, 3, step, c).sum())(v)

    assert_same(sparsify(fun)(M, V), fun(DENSE, V))


def test_a_body_is_traced_once():
    """Two calls with arrays stored alike share one jaxpr, which JAX's caches know again."""
    body = lambda c, _: (c * 2.0, c.sum())

    def the_loop():
        run = sparsify(lambda m: OURS.scan(body, m, None, length=3))
        return the_equation(run, M, name="scan")

    first, second = the_loop(), the_loop()

    assert first.params["jaxpr"] is second.params["jaxpr"]


def test_a_growing_carry_is_refused():
    """A sum of sparse arrays stores more elements than its terms, so it cannot be carried."""
    message = r"carry part 1 is BCOO of shape \(3, 3\) stored as float32\[3\].* but BCOO .*\[6\]"
    with pytest.raises(TypeError, match=message):
        sparsify(lambda m: OURS.fori_loop(0, 2, lambda i, c: c + m, m))(M)


def test_a_carry_that_becomes_dense_is_refused():
    """A sparse carry is never made dense behind the user's back."""
    with pytest.raises(TypeError, match=r"going in, but dense coming out .* `sparse.todense`"):
        sparsify(lambda m: OURS.while_loop(lambda c: True, sparse.todense, m))(M)


def test_xs_without_rows_are_refused():
    """A sparse array that is not stored by rows has none to scan over; the message says how to."""
    with pytest.raises(NotImplementedError, match=r"leading axis is no batch.*n_batch=1"):
        sparsify(lambda m, v: sparse_xs(OURS, m, v))(M, V)
