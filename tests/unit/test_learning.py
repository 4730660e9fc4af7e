"""Nested loops with weakly typed inits: how often bodies run, and that the result is the same."""

import jax
import jax.numpy as jnp
import pytest

import loops
from checks import CarryTypeError
from loops import body as loops_body
from loops import learning
from tests.helpers import nests


def runs_of_nest(depth, loop="fori"):
    """How often bodies run while a nest with a literal 0 at each level is traced once."""
    runs = 0

    def nest(levels, x):
        if levels == 0:
            return x

        def step(carry):
            nonlocal runs
            runs += 1
            return carry + nest(levels - 1, x)

        if loop == "fori":
            return loops.fori_loop(0, 2, lambda i, c: step(c), 0)
        if loop == "scan":
            return loops.scan(lambda c, _: (step(c), None), 0, None, length=2)[0]
        return loops.while_loop(lambda c: c < 3, step, 0)

    jax.make_jaxpr(lambda x: nest(depth, x))(jnp.float32(1))
    return runs


@pytest.mark.parametrize("loop", ["fori", "scan", "while"])
@pytest.mark.parametrize(("depth", "runs"), [(1, 2), (2, 5), (3, 9), (10, 65)])
def test_body_runs_grow_with_the_square_of_the_depth(loop, depth, runs):
    """A body at depth k runs k + 1 times, where the naive way runs it 2**k times."""
    assert runs == runs_of_nest(depth, loop)


def test_a_stable_weak_carry_outside_finishes_the_loops_inside():
    """A pass that turns out to be the last is run again if it left a loop unfinished."""
    outer_runs = inner_runs = 0

    def outer(carry):
        nonlocal outer_runs
        outer_runs += 1
        count, x = carry

        def inner(_, c):
            nonlocal inner_runs
            inner_runs += 1
            return c + x

        return count + 1, x + loops.fori_loop(0, 3, inner, 0)

    def run():
        return loops.while_loop(lambda carry: carry[0] < 2, outer, (0, jnp.float32(1)))

    count, x = run()

    assert (2, 16.0) == (int(count), float(x))
    assert (2, 3) == (outer_runs, inner_runs)
    assert (2, 16.0) == tuple(map(float, jax.jit(run)()))


def test_repeated_eager_calls_of_an_unfinished_body_are_right():
    """The trace with unfinished loops that JAX has cached is not taken for a finished one."""

    def outer(carry):
        count, x = carry
        return count + 1, x + loops.fori_loop(0, 3, lambda i, c: c + 1.5, 0)

    results = [
        loops.while_loop(lambda carry: carry[0] < 2, outer, (0, jnp.float32(1))) for _ in range(3)
    ]

    assert [10.0] * 3 == [float(x) for _, x in results]


def test_ys_that_depend_on_the_promoted_carry_are_learned_by_tracing_again():
    """An inner scan whose ys follow its carry's type is finished in every pass."""

    def outer(c, _):
        _, history = loops.scan(lambda a, x: (a + x, a), 0, jnp.arange(3.0))
        return c + jnp.asarray(history)[-1], history

    last, histories = jax.tree.map(jnp.asarray, loops.scan(outer, 0, None, length=2))

    assert jnp.float32 == last.dtype
    assert [[0.0, 0.0, 1.0]] * 2 == histories.tolist()


@pytest.mark.parametrize(
    "wrap",
    [jax.jit, jax.checkpoint, lambda f: jax.vmap(f, axis_size=1, in_axes=None, out_axes=None)],
    ids=["jit", "checkpoint", "vmap"],
)
def test_a_function_in_between_hides_the_pass_that_only_learns(wrap):
    """A loop inside another transformation is finished, because that may cache it."""
    inner = wrap(lambda x: loops.fori_loop(0, 2, lambda i, c: c + x, 0))

    def run(x):
        return loops.fori_loop(0, 3, lambda i, c: c + inner(x), 0)

    assert 12.0 == float(run(jnp.float32(2)))
    assert 12.0 == float(jax.jit(run)(jnp.float32(2)))
    assert 6.0 == float(jax.grad(run)(2.0))


def test_unfinished_loops_cannot_be_compiled():
    """Should one ever be left in a program, JAX refuses it."""
    avals = [jax.typeof(jnp.float32(0))]

    with pytest.raises(Exception, match="UnfinishedLoop"):
        jax.jit(lambda: learning.unfinished_loop(avals))()


def test_carries_that_feed_each_other_are_promoted_to_a_fixpoint():
    """A chain of weak carries needs a pass for each link."""

    def chain(carry, x):
        a, b, c = carry
        return (a + x, b + a, c + b), None

    final, _ = loops.scan(chain, (0.0, 0.0, 0.0), jnp.ones(4, jnp.float16))

    assert [4.0, 6.0, 4.0] == [float(leaf) for leaf in final]
    assert {jnp.dtype(jnp.float16)} == {leaf.dtype for leaf in final}


def test_a_leaf_that_began_weak_is_promoted_further():
    """A leaf made strong by the first pass follows when a later one moves its output up."""

    def body(carry, x):
        a, b = carry
        return (a + x, (b + jnp.bfloat16(1)).astype(jnp.result_type(a.dtype, jnp.bfloat16))), None

    with jax.numpy_dtype_promotion("standard"):
        (_, b), _ = loops.scan(body, (0, 0), jnp.ones(2, jnp.float32))

    assert (jnp.float32, 2.0) == (b.dtype, float(b))


def test_no_fixpoint_is_the_contracts_error_with_the_types_of_each_pass():
    """A body that never settles raises, and a note shows how far promotion came."""

    def body(carry, x):
        flips = carry.dtype == jnp.float32
        return (carry + x).astype(jnp.int32 if flips else jnp.float32), None

    with pytest.raises(CarryTypeError) as caught:
        loops.scan(body, 0, jnp.ones(2, jnp.float32))

    assert "pass 1: int32[] (weak)" in caught.value.__notes__[0]
    assert "pass 2: float32[]" in caught.value.__notes__[0]


@pytest.mark.parametrize("seed", range(60))
def test_random_nests_are_traced_as_the_naive_way_traces_them(seed, monkeypatch):
    """The same jaxpr, types and kind of error as when every loop is finished in every pass."""
    program = nests.random_nest(seed)

    ours = nests.outcome(program)
    monkeypatch.setattr(loops_body, "is_learning", lambda: False)
    naive = nests.outcome(program)

    assert naive == ours


def test_a_carry_that_fails_only_before_the_outer_promotion():
    """Types that the outer loop gives up are no reason to refuse; JAX's loops meet them first."""

    def halve(loops):
        def outer(carry, _):
            inner = loops.fori_loop(0, 2, lambda i, c: carry, 0.25)
            return 0.5 * inner, None

        return loops.scan(outer, 1, None, length=2)[0]

    with jax.numpy_dtype_promotion("standard"):
        with pytest.raises(TypeError, match="must have equal types"):
            halve(jax.lax)
        assert 0.25 == float(halve(loops))
        assert jax.typeof(jnp.float32(0)) == jax.typeof(jax.jit(lambda: halve(loops))())
