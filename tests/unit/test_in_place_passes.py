"""The passes that let loops work in place: jaxprs before and after, and when they do nothing."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr

from loops import _jax
from loops.passes.accumulate_in_place import accumulate_in_place, changes_in_place
from loops.passes.read_before_write import read_before_write
from loops.passes.single_updates import simplify_single_updates
from tests.helpers.equations import open_jaxpr

ROWS, WIDTH = 200, 8
BUFFER = jnp.cos(jnp.arange(ROWS * WIDTH, dtype=jnp.float32)).reshape(ROWS, WIDTH)
ROW = jnp.linspace(0.1, 0.9, WIDTH, dtype=jnp.float32)
START = jnp.int32(3)


def names(jaxpr: Any) -> list[str]:
    """The names of the primitives of a jaxpr, in order."""
    return [eqn.primitive.name for eqn in open_jaxpr(jaxpr).eqns]


def run(jaxpr: Any, *args: Any) -> list[Any]:
    """The outputs of a jaxpr."""
    return jax.jit(lambda *args: eval_jaxpr(open_jaxpr(jaxpr), jaxpr.consts, *args))(*args)


def pullback(fun: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """The jaxpr that pulls cotangents back to BUFFER, and cotangents for it."""
    outputs = fun(BUFFER)
    jaxpr = jax.make_jaxpr(lambda ct: jax.vjp(fun, BUFFER)[1](ct)[0])(outputs)
    return jaxpr, [jnp.sin(x) for x in jax.tree.leaves(outputs)]


def check_in_place(fun: Callable[..., Any], written_by: list[str]) -> None:
    """Fails unless the cotangent of BUFFER is added up by the given equations, to the same sum."""
    before, cotangents = pullback(fun)
    after = accumulate_in_place(before)
    names_after = names(after)
    assert "pad" not in names_after
    large = [eqn for eqn in open_jaxpr(after).eqns if eqn.outvars[0].aval.shape == BUFFER.shape]
    # The first is what the cotangents are added to.
    assert [eqn.primitive.name for eqn in large if eqn.primitive.name != "mul"] == written_by
    (got,), (want,) = run(after, *cotangents), run(before, *cotangents)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_row_read_at_a_traced_index():
    """Zeros, a row written and a sum become a row read, added to and written."""
    read = lambda b: (2 * b, lax.dynamic_slice_in_dim(b, START, 2))
    before, _ = pullback(read)
    assert names(before)[-4:] == ["broadcast_in_dim", "dynamic_update_slice", "mul", "add_any"]
    after = accumulate_in_place(before)
    assert names(after)[-4:] == ["mul", "dynamic_slice", "add_any", "dynamic_update_slice"]
    check_in_place(read, ["dynamic_update_slice"])


def test_rows_read_at_fixed_positions():
    """What was padded with zeros is written at its place."""
    check_in_place(lambda b: (2 * b, b[3:5]), ["dynamic_update_slice"])


def test_rows_read_by_an_array_of_indices():
    """The rows are scattered into the sum and not into zeros; a repeated index counts twice."""
    check_in_place(lambda b: (2 * b, b[jnp.array([1, 4, 1])]), ["scatter-add"])


def test_rows_read_by_a_jitted_function():
    """The function is written out in line."""
    check_in_place(lambda b: (2 * b, jnp.take(b, START, axis=0)), ["scatter-add"])


def test_windows_at_the_edges():
    """Start indices out of bounds are brought into bounds, as they were when the rows were read."""
    for start in (-ROWS - 5, ROWS - 1, ROWS + 5):
        check_in_place(
            lambda b, start=start: (2 * b, lax.dynamic_slice_in_dim(b, jnp.int32(start), 3)),
            ["dynamic_update_slice"],
        )


def test_indices_out_of_bounds():
    """Rows that were filled in, not read, get nothing."""
    far = jnp.array([ROWS + 1, 2, -ROWS - 1])
    check_in_place(lambda b: (2 * b, b.at[far].get(mode="fill", fill_value=0)), ["scatter-add"])
    check_in_place(lambda b: (2 * b, b.at[far].get(mode="clip")), ["scatter-add"])


def test_many_terms():
    """All dense terms are added first, and each update is made once."""

    def fun(b: Any) -> Any:
        return jnp.sin(b), b[3:4], 3 * b, lax.dynamic_slice_in_dim(b, START, 1), b[jnp.array([1])]

    before, cotangents = pullback(fun)
    after = accumulate_in_place(before)
    large = [eqn for eqn in open_jaxpr(after).eqns if eqn.outvars[0].aval.shape == BUFFER.shape]
    written = [eqn.primitive.name for eqn in large][-3:]
    assert sorted(written) == ["dynamic_update_slice", "dynamic_update_slice", "scatter-add"]
    (got,), (want,) = run(after, *cotangents), run(before, *cotangents)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_update_that_is_used_twice_stays():
    """A buffer that is needed for itself is made as before."""

    def fun(a: Any, row: Any) -> Any:
        zeros = lax.full_like(a, 0)
        update = lax.dynamic_update_slice_in_dim(zeros, row, START, 0)
        return _jax.add_cotangents_p.bind(a, update), update

    before = jax.make_jaxpr(fun)(BUFFER, ROW[None])
    assert accumulate_in_place(before) is before


def test_what_is_not_worth_it_stays():
    """Small buffers, large windows, sums without a dense term or with none are the same objects."""
    small = jnp.ones((20, 2), jnp.float32)
    for fun, x in (
        (lambda b: (2 * b, b[0:1]), small),
        (lambda b: (2 * b, b[: ROWS // 2]), BUFFER),
        (lambda b: (2 * b, b[: ROWS // 8]), BUFFER),
        (lambda b: (b[3:4], lax.dynamic_slice_in_dim(b, START, 1)), BUFFER),
        (lambda b: 2 * b, BUFFER),
    ):
        jaxpr = jax.make_jaxpr(lambda ct, fun=fun, x=x: jax.vjp(fun, x)[1](ct)[0])(fun(x))
        assert accumulate_in_place(jaxpr) is jaxpr


def test_inside_a_branch():
    """Sums in the branches of a cond are found."""

    def fun(b: Any) -> Any:
        return lax.cond(START > 2, lambda b: (2 * b, b[3]), lambda b: (b, b[4]), b)

    before, cotangents = pullback(fun)
    after = accumulate_in_place(before)
    branches = [eqn for eqn in open_jaxpr(after).eqns if eqn.primitive.name == "cond"]
    for branch in branches[-1].params["branches"]:
        assert names(branch)[-1] == "dynamic_update_slice"
    np.testing.assert_allclose(*(run(j, *cotangents)[0] for j in (before, after)), rtol=1e-6)


def test_changes_in_place():
    """Only an output that is the input with rows changed counts."""

    def fun(a: Any, b: Any, row: Any) -> Any:
        return a.at[START].add(row), b + 1, lax.dynamic_update_slice(b, row[None], (0, 0))

    jaxpr = jax.make_jaxpr(fun)(BUFFER, BUFFER, ROW)
    assert changes_in_place(jaxpr, 0, 0)
    assert not changes_in_place(jaxpr, 1, 0)
    assert not changes_in_place(jaxpr, 1, 1)
    assert changes_in_place(jaxpr, 1, 2)


# ---------------------------------------------------------------- reads before writes


def test_read_that_outlives_the_write_is_ordered():
    """The row and the buffer go through one equation, and the write takes what comes out."""

    def fun(b: Any, k: Any) -> Any:
        cleared = b.at[k].set(0.0)
        return cleared.at[k + 1].set(jnp.sin(b[k]))

    before = jax.make_jaxpr(fun)(BUFFER, START)
    after = read_before_write(before)
    ordered = names(after).index("in_order")
    assert "dynamic_slice" in names(after)[:ordered]
    assert names(after)[ordered:].count("scatter") == 2
    np.testing.assert_array_equal(*(run(j, BUFFER, START)[0] for j in (before, after)))


def test_row_that_is_returned_is_ordered():
    """Being an output is a use like any other."""
    before = jax.make_jaxpr(lambda b, k: (b.at[k].set(0.0), b[k]))(BUFFER, START)
    after = read_before_write(before)
    assert "in_order" in names(after)
    for got, want in zip(run(after, BUFFER, START), run(before, BUFFER, START), strict=True):
        np.testing.assert_array_equal(got, want)


def test_row_that_only_the_write_needs_is_not_ordered():
    """What is written depends on the row, which orders the two."""
    jaxpr = jax.make_jaxpr(lambda b, k: b.at[k].set(jnp.sin(b[k - 1])))(BUFFER, START)
    assert read_before_write(jaxpr) is jaxpr


def test_nothing_is_ordered_where_the_buffer_lives_on():
    """The old buffer is returned too, or read at a place that the new one tells."""

    def chase(b: Any, k: Any) -> Any:
        new = b.at[k].set(0.0)
        return new, b[new[0, 0].astype(jnp.int32)]

    for fun in (lambda b, k: (b.at[k].set(0.0), b, b[k]), chase):
        jaxpr = jax.make_jaxpr(fun)(BUFFER, START)
        assert read_before_write(jaxpr) is jaxpr


def test_small_buffers_are_not_ordered():
    """A copy of them costs less."""
    jaxpr = jax.make_jaxpr(lambda b, k: (b.at[k].set(0.0), b[k]))(BUFFER[:20], START)
    assert read_before_write(jaxpr) is jaxpr


# ---------------------------------------------------------------- updates at a single index


def the_scatter(jaxpr: Any) -> Any:
    """The only equation that scatters."""
    (eqn,) = [e for e in open_jaxpr(jaxpr).eqns if e.primitive.name.startswith("scatter")]
    return eqn


def test_one_index_is_unique():
    """An array of one index is marked; an array of two is not, and stays the same object."""
    one = jax.make_jaxpr(lambda b, i: b.at[i].set(1.0))(BUFFER, jnp.array([3]))
    assert not the_scatter(one).params["unique_indices"]
    assert the_scatter(simplify_single_updates(one)).params["unique_indices"]
    two = jax.make_jaxpr(lambda b, i: b.at[i].set(1.0))(BUFFER, jnp.array([3, 4]))
    assert simplify_single_updates(two) is two


def test_one_index_for_each_lane_is_unique():
    """Lanes write to buffers of their own."""
    batched = jax.vmap(lambda b, i: b.at[i].set(1.0))
    jaxpr = jax.make_jaxpr(batched)(jnp.stack([BUFFER, BUFFER]), jnp.array([[3], [4]]))
    assert the_scatter(simplify_single_updates(jaxpr)).params["unique_indices"]


def test_combining_updates_are_read_combined_and_written():
    """Products, minima and maxima, in bounds and out of bounds, in every mode."""
    for method in ("multiply", "min", "max"):
        for mode in ("drop", "clip", "promise_in_bounds"):

            def fun(b: Any, k: Any, method: str = method, mode: str = mode) -> Any:
                return getattr(b.at[k], method)(0.3 * ROW, mode=mode)

            before = jax.make_jaxpr(fun)(BUFFER, START)
            after = simplify_single_updates(before)
            assert names(after)[-3:][::2] == ["gather", "scatter"]
            steps = (3, -1) if mode == "promise_in_bounds" else (3, -1, ROWS + 4, -ROWS - 4)
            for k in map(jnp.int32, steps):
                np.testing.assert_array_equal(*(run(j, BUFFER, k)[0] for j in (before, after)))
