"""Nested loops with weakly typed inits: how often bodies run, and that the result is the same."""

import jax
import jax.numpy as jnp
import pytest

import loops
from checks import CarryTypeError, python_loops
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
@pytest.mark.parametrize(("depth", "runs"), [(1, 2), (2, 5), (3, 7), (10, 21)])
def test_body_runs_grow_with_the_depth(loop, depth, runs):
    """A body runs twice, the innermost one three times; the naive way runs it 2**depth times."""
    assert runs == runs_of_nest(depth, loop)


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(
            lambda x, inside: loops.scan(
                lambda c, _: ((c[0] + inside(x), c[1] + c[0], c[2] + c[1]), None),
                (0, 0, 0),
                length=2,
            )[0][2],
            id="carries that feed each other",
        ),
        pytest.param(
            lambda x, inside: jnp.asarray(
                loops.scan(lambda c, _: (c + inside(x), c), 0, length=2)[1]
            )[1],
            id="ys that are the carry",
        ),
        pytest.param(
            lambda x, inside: loops.while_loop(
                lambda c: loops.fori_loop(0, 2, lambda i, a: a + x, 0) < c,
                lambda c: c + inside(x),
                0,
            ),
            id="loops in conditions",
        ),
        pytest.param(
            lambda x, inside: loops.fori_loop(0, 2, lambda i, c: c + inside(c + x), 0),
            id="an operand from the outer carry",
        ),
        pytest.param(
            lambda x, inside: loops.fori_loop(
                0, 2, lambda i, c: c + jax.vmap(inside)(x[None])[0], 0
            ),
            id="vmap in between",
        ),
    ],
)
def test_body_runs_grow_no_faster_than_the_square_of_the_depth(nest):
    """However the loops hang together, twice the depth has at most four times the cost."""

    def runs(depth):
        count = [0]

        def inside(levels, x):
            count[0] += 1
            return nest(x, lambda y: inside(levels - 1, y)) if levels else x

        jax.make_jaxpr(lambda x: inside(depth, x))(jnp.float32(1))
        return count[0]

    assert runs(10) <= 4 * runs(5)


def test_an_error_of_the_outermost_loop_does_not_multiply_traces():
    """The error that is found with all loops finished costs no more than the square either."""
    runs = 0

    def nest(levels, x):
        def body(_, c):
            nonlocal runs
            runs += 1
            return c + nest(levels - 1, x)

        return loops.fori_loop(0, 2, body, 0) if levels else x

    with pytest.raises(CarryTypeError, match="carry"):
        jax.make_jaxpr(lambda x: loops.fori_loop(0, 2, lambda i, c: nest(9, x) * jnp.ones(3), 0))(
            jnp.float32(1)
        )

    assert runs < 1000


def nest_in_a_stable_loop():
    """Two promoted loops inside a weak carry that is stable, and how often each body runs."""
    runs = {"outer": 0, "middle": 0, "inner": 0}

    def count(name, value):
        runs[name] += 1
        return value

    def inner(x):
        return loops.fori_loop(0, 3, lambda i, c: count("inner", c + x), 0)

    def middle(x):
        return loops.fori_loop(0, 2, lambda i, c: count("middle", c + inner(x)), 0)

    def outer(carry):
        steps, x = carry
        return count("outer", steps + 1), x + middle(x)

    return outer, runs


def test_one_promotion_in_a_stable_weak_loop_costs_no_pass_more():
    """A loop whose weak carry stays as it is runs its body once, whatever it holds."""
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
    assert (1, 2) == (outer_runs, inner_runs)
    assert (2, 16.0) == tuple(map(float, jax.jit(run)()))


def test_a_stable_weak_carry_outside_finishes_the_loops_inside():
    """A pass that turns out to be the last is run again if it left a loop unfinished."""
    outer, runs = nest_in_a_stable_loop()

    def run():
        return loops.while_loop(lambda carry: carry[0] < 2, outer, (0, jnp.float32(1)))

    count, x = run()

    assert (2, 49.0) == (int(count), float(x))
    assert {"outer": 2, "middle": 2, "inner": 3} == runs
    assert (2, 49.0) == tuple(map(float, jax.jit(run)()))


def test_repeated_eager_calls_of_an_unfinished_body_are_right():
    """The trace with unfinished loops that JAX has cached is not taken for a finished one."""
    outer, _ = nest_in_a_stable_loop()

    results = [
        loops.while_loop(lambda carry: carry[0] < 2, outer, (0, jnp.float32(1))) for _ in range(3)
    ]

    assert [49.0] * 3 == [float(x) for _, x in results]


@pytest.mark.parametrize(
    "options", [{}, {"checkpoints": 2}, {"max_steps": 5}], ids=["plain", "checkpoints", "max_steps"]
)
def test_a_stable_loop_between_promoted_ones(options):
    """A loop that may hold unfinished ones while its types are learned, of whichever primitive."""
    body, runs = nest_in_a_stable_loop()

    def stable(x):
        return loops.while_loop(lambda carry: carry[0] < 2, body, (0, x), **options)[1]

    def run(x):
        return loops.fori_loop(0, 2, lambda i, c: c + stable(x), 0)

    assert 98.0 == float(jax.jit(run)(jnp.float32(1)))
    assert {"outer": 2, "middle": 2, "inner": 3} == runs


def test_ys_that_depend_on_the_promoted_carry_are_learned_by_tracing_again():
    """An inner scan whose ys follow its carry's type is finished in every pass."""

    def outer(c, _):
        _, history = loops.scan(lambda a, x: (a + x, a), 0, jnp.arange(3.0))
        return c + jnp.asarray(history)[-1], history

    last, histories = jax.tree.map(jnp.asarray, loops.scan(outer, 0, None, length=2))

    assert jnp.float32 == last.dtype
    assert [[0.0, 0.0, 1.0]] * 2 == histories.tolist()


@pytest.mark.parametrize("of_outer_carry", [False, True], ids=["same body", "other body"])
def test_ys_that_only_look_at_the_type_of_the_promoted_carry(of_outer_carry):
    """A guess at the types of an unfinished loop that proves wrong is not used."""

    def innermost(x):
        return loops.fori_loop(0, 2, lambda i, c: c + x, 0.0)

    def outer(c, x):
        def inner(a, _):
            a = a + innermost(x) + (0 * c if of_outer_carry else 0)
            return a, jnp.ones((), jnp.int32).astype(a.dtype)

        def look_first(a, _):
            return inner(a, _)[0], jnp.ones((), jnp.int32).astype(a.dtype)

        return c + loops.scan(look_first, 0.0, None, length=2)[1][-1], None

    xs = jnp.ones(2, jnp.bfloat16)
    totals = [jnp.asarray(loops.scan(outer, 0.0, xs)[0]) for _ in range(2)]

    assert [(jnp.bfloat16, 2.0)] * 2 == [(total.dtype, float(total)) for total in totals]


def test_equal_functions_over_variables_that_changed_are_other_functions():
    """Loops written in a Python loop differ by its variable, so each one learns for itself."""
    xs = [jnp.float32(1), jnp.bfloat16(2), jnp.float16(3)]

    def outer(c, _):
        results = {}
        for k in range(3):
            results[k] = loops.fori_loop(0, 2, lambda i, a: a + xs[k], 0)  # noqa: B023
        return c + results[0], results

    _, ys = jax.eval_shape(lambda: loops.scan(outer, 0, None, length=2))

    assert [jnp.float32, jnp.bfloat16, jnp.float16] == [y.dtype for y in ys.values()]


def test_a_body_that_remembers_starts_afresh():
    """A body that returns another type than it did before is not held to what was learned then."""
    dtypes = iter([jnp.float32] * 2 + [jnp.bfloat16] * 3)
    seen = []

    def outer(c, _):
        def inner(_, a):
            seen.append(jnp.result_type(a))
            return (a + 1).astype(next(dtypes))

        return c + 0.5, loops.fori_loop(0, 2, inner, 0)

    _, ys = jax.eval_shape(lambda: loops.scan(outer, 0, None, length=2))

    assert jnp.bfloat16 == ys.dtype
    assert [jnp.int32, jnp.float32, jnp.float32, jnp.int32, jnp.bfloat16] == seen


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
    monkeypatch.setattr(loops_body, "recall", lambda place: None)
    naive = nests.outcome(program)

    assert naive == ours


@pytest.mark.parametrize("implementation", [loops, jax.lax, python_loops])
def test_a_carry_that_fails_only_before_the_outer_promotion(implementation):
    """The inner loop breaks its contract with the types of the first pass: all refuse."""

    def outer(carry, _):
        inner = implementation.fori_loop(0, 2, lambda i, c: carry, 0.25)
        return 0.5 * inner, None

    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(TypeError, match=r"must have equal types|turns a carry"),
    ):
        implementation.scan(outer, 1, None, length=2)


def test_steps_run_one_by_one_inside_a_loop_that_is_traced():
    """Without jit a loop of no steps is traced, and the loops with steps inside it are run."""

    def outer(carry, _):
        total, _ = loops.scan(lambda c, _: (c + carry, None), 0, None, length=2)
        return loops.while_loop(lambda c: c < total, lambda c: c + 1.5, 0), None

    with jax.disable_jit():
        assert 0.0 == float(loops.scan(outer, 0.0, None, length=0)[0])
        assert 0.0 == float(loops.fori_loop(0, 0, lambda i, c: outer(c, i)[0], jnp.float32(0)))


@pytest.mark.parametrize("depth", [1, 2])
def test_types_that_the_outer_loop_gives_up(depth):
    """Types that the outer loop gives up are refused where JAX's loops meet them, however deep."""

    def halve(loops):
        def outer(carry, _):
            def inner(_, c):
                if depth == 2:  # with a promoted loop inside, the inner one may stay unfinished
                    loops.fori_loop(0, 2, lambda i, c: c + jnp.float32(1), 0)
                return carry

            return 0.5 * loops.fori_loop(0, 2, inner, 0.25), None

        return loops.scan(outer, 1, None, length=2)[0]

    with jax.numpy_dtype_promotion("standard"):
        for implementation in (jax.lax, loops):
            with pytest.raises(TypeError, match="must have equal types"):
                halve(implementation)
