"""`jax.export`: symbolic shapes and lengths, serialization, gradients, programs called again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.equations import equations

ROWS = jnp.linspace(-1.0, 1.5, 15, dtype=jnp.float32).reshape(5, 3)
ONE_ROW = ROWS[:1]


def step(c, x):
    """A body with a residual."""
    return jnp.sin(c) * x.sum() + c, c * x


def gradient(run, *args):
    """The gradient of a loop's results, summed."""

    def loss(*args):
        return sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(run(*args)))

    return jax.grad(loss, tuple(range(len(args))))(*args)


ONE = jnp.float32(1)
count = lambda c, _: (c + 1, c)
add_row = lambda rows: lambda i, c: jnp.sin(c) + rows[i].sum()


def long_enough(lib, rows):
    """A while loop that compares with a symbolic dimension."""
    step = lambda s: (s[0] + 1, s[1] + rows[s[0]].sum())
    return lib.while_loop(lambda s: s[0] < rows.shape[0], step, (0, jnp.float32(0)))


def lanes(lib, rows):
    """A while loop in as many lanes as there are rows."""
    run = lambda row: lib.while_loop(
        lambda s: s[1] < row.sum(), lambda s: (s[0] + 1, 2 * s[1]), (0, ONE)
    )
    return jax.vmap(run)(rows)


# What JAX's loops export too: they say what is right.
AS_IN_JAX = {
    "scan": lambda lib, x: lib.scan(step, ONE, x),
    "reverse": lambda lib, x: lib.scan(step, ONE, x, reverse=True),
    "carry of symbolic shape": lambda lib, x: lib.scan(
        lambda c, row: (jnp.sin(c) * row.sum(), None), x, x
    )[0],
    "nested": lambda lib, x: lib.scan(
        lambda c, row: (lib.scan(lambda d, v: (jnp.sin(d) + v, d), c, row)[0], c), ONE, x
    ),
    "fori_loop": lambda lib, x: lib.fori_loop(0, x.shape[0], add_row(x), ONE),
    "fori_loop from below": lambda lib, x: lib.fori_loop(-x.shape[0], 0, add_row(x), ONE),
    "fori_loop, no step": lambda lib, x: lib.fori_loop(x.shape[0], 0, add_row(x), ONE),
    "fori_loop, typed": lambda lib, x: lib.fori_loop(
        np.int16(0), x.shape[0], lambda i, c: i, jnp.int16(0)
    ),
    "while_loop": long_enough,
    "map": lambda lib, x: lib.map(lambda row: row * 2, x),
    "map in one batch": lambda lib, x: lib.map(lambda row: row * 2, x, batch_size=0),
    "gradient": lambda lib, x: gradient(lambda x: lib.scan(step, ONE, x), x),
    "gradient in reverse": lambda lib, x: gradient(
        lambda x: lib.scan(step, ONE, x, reverse=True), x
    ),
    "gradient for a constant": lambda lib, x: gradient(
        lambda w: lib.scan(lambda c, row: (jnp.sin(c) * row.sum() * w, c), ONE, x), ONE
    ),
    "checkpointed gradient": lambda lib, x: gradient(
        jax.checkpoint(lambda x: lib.scan(jax.checkpoint(step), ONE, x)), x
    ),
    "second derivative": lambda lib, x: gradient(
        lambda x: gradient(lambda x: lib.scan(step, ONE, x), x), x
    ),
    "tangent": lambda lib, x: jax.jvp(
        lambda x: lib.fori_loop(0, x.shape[0], add_row(x), ONE), (x,), (x,)
    ),
    "vmap over the symbolic axis": lambda lib, x: jax.vmap(lambda row: lib.scan(step, ONE, row))(x),
    "vmap beside the symbolic axis": lambda lib, x: jax.vmap(
        lambda column: lib.scan(step, ONE, column), in_axes=1
    )(x),
    "vmap of fori_loop": lambda lib, x: jax.vmap(
        lambda row: lib.fori_loop(0, row.shape[0], lambda i, c: jnp.sin(c) + row[i], ONE)
    )(x),
    "vmap of lanes": lanes,
    "vmap of a gradient": lambda lib, x: jax.vmap(
        lambda row: gradient(lambda row: lib.scan(step, ONE, row), row)
    )(x),
}

# What JAX's loops cannot export: `jax.lax` on known shapes says what is right.
BEYOND_JAX = {
    "unrolled": lambda lib, x: lib.scan(step, ONE, x, unroll=2),
    "unrolled altogether": lambda lib, x: lib.scan(step, ONE, x, unroll=True),
    "length": lambda lib, x: lib.scan(count, x[0, 0], None, length=x.shape[0]),
    "length computed": lambda lib, x: lib.scan(count, x[0, 0], None, length=2 * x.shape[0] + 1),
    "length checked": lambda lib, x: lib.scan(step, ONE, x, length=x.shape[0]),
    "length maybe zero": lambda lib, x: lib.scan(step, ONE, x[1:]),
    "length maybe zero, reverse": lambda lib, x: lib.scan(step, ONE, x[1:], reverse=True),
    "map in batches": lambda lib, x: lib.map(lambda row: row * 2, x, batch_size=2),
    "unrolled fori_loop": lambda lib, x: lib.fori_loop(0, x.shape[0], add_row(x), ONE, unroll=2),
    "gradient, unrolled": lambda lib, x: gradient(lambda x: lib.scan(step, ONE, x, unroll=2), x),
    "gradient, maybe zero": lambda lib, x: gradient(lambda x: lib.scan(step, ONE, x[1:]), x),
    "gradient of map in batches": lambda lib, x: gradient(
        lambda x: lib.map(jnp.sin, x, batch_size=2), x
    ),
    "gradient of fori_loop": lambda lib, x: gradient(
        lambda x: lib.fori_loop(0, x.shape[0], add_row(x), ONE), x
    ),
}


def exported(fun, **options):
    """A function exported for any number of rows and columns."""
    shape = export.symbolic_shape("rows, columns", **options)
    return export.export(jax.jit(fun))(jax.ShapeDtypeStruct(shape, jnp.float32))


@pytest.mark.parametrize("program", AS_IN_JAX.values(), ids=AS_IN_JAX)
def test_exported_programs_compute_what_jaxs_do(program):
    """One exported program gives the results of `jax.lax`'s for several rows and for one."""
    ours = exported(lambda rows: program(loops, rows))
    theirs = exported(lambda rows: program(lax, rows))
    assert str(ours.out_avals) == str(theirs.out_avals)
    for rows in (ROWS, ONE_ROW):
        assert_same(ours.call(rows), theirs.call(rows), weak_types=False)


@pytest.mark.parametrize("program", BEYOND_JAX.values(), ids=BEYOND_JAX)
def test_exported_programs_beyond_jaxs(program):
    """Lengths, unrolling, rows that may be none, and gradients between symbolic bounds."""
    ours = exported(lambda rows: program(loops, rows))
    for rows in (ROWS, ONE_ROW):
        want = jax.jit(lambda rows: program(lax, rows))(rows)
        assert_same(ours.call(rows), want, weak_types=False)


def test_one_symbol_needs_no_comparison():
    """The same symbol on two xs is one length; two symbols are refused, as they may differ."""
    square = lambda rows: loops.scan(lambda c, x: (c + x[0].sum(), c), ONE, (rows, rows * 2))
    assert_same(exported(square).call(ROWS), jax.jit(square)(ROWS))
    with pytest.raises(ValueError, match="different leading axis sizes: rows, columns"):
        exported(lambda rows: loops.scan(lambda c, _: (c, c), ONE, (rows, rows.T)))
    with pytest.raises(ValueError, match="`length` argument of columns which disagrees"):
        exported(lambda rows: loops.scan(step, ONE, rows, length=rows.shape[1]))


def test_a_difference_of_symbols_that_is_known():
    """Bounds that are a known number of steps apart give a scan of that length."""
    fun = lambda rows: loops.fori_loop(
        rows.shape[0], rows.shape[0] + 3, lambda i, c: c * 2 + i, jnp.int32(0)
    )
    shape = export.symbolic_shape("rows, columns")
    (loop,) = equations(fun, jax.ShapeDtypeStruct(shape, jnp.float32), name="scan")
    assert loop.params["length"] == 3
    assert exported(fun).call(ROWS) == fun(ROWS)


def test_bounds_in_the_wrong_order():
    """An upper bound that is surely below the lower one gives a scan of no steps."""
    fun = lambda rows: loops.fori_loop(rows.shape[0], 0, add_row(rows), rows.sum())
    shape = export.symbolic_shape("rows, columns")
    (loop,) = equations(fun, jax.ShapeDtypeStruct(shape, jnp.float32), name="scan")
    assert loop.params["length"] == 0
    assert_same(exported(lambda rows: gradient(fun, rows)).call(ROWS), gradient(fun, ROWS))


def test_a_loop_with_surely_a_row_is_not_given_room():
    """Room for a row that may not be there is made only where there may be none."""
    run = lambda rows: loops.scan(step, ONE, rows[1:])
    enlarged = lambda **options: (
        exported(run, **options).mlir_module().count("dynamic_update_slice")
    )
    assert enlarged(constraints=["rows >= 2"]) < enlarged()


def test_gradient_of_an_exported_program():
    """An exported program can be differentiated after it was exported."""
    run = lambda lib: lambda rows: lib.scan(step, ONE, rows)
    ours, theirs = exported(run(loops)), export.export(jax.jit(run(lax)))(ROWS)
    assert ours.has_vjp()
    assert_same(gradient(ours.call, ROWS), gradient(theirs.call, ROWS))


def test_vmap_and_loops_around_an_exported_program():
    """An exported loop may be the body of another loop."""
    inner = export.export(jax.jit(lambda c, x: loops.scan(lambda c, v: (c * v, c), c, x)))(
        ONE, ROWS[0]
    )
    outer = lambda lib: jax.jit(lambda rows: lib.scan(inner.call, ONE, rows))
    assert_same(outer(loops)(ROWS), outer(lax)(ROWS))


@pytest.mark.parametrize("name", ["scan", "gradient", "vmap of lanes", "length maybe zero"])
def test_serialization(name):
    """A program that was written to bytes and read again gives the same results."""
    pytest.importorskip("flatbuffers", reason="jax.export needs it to serialize")
    program = (AS_IN_JAX | BEYOND_JAX)[name]
    ours = exported(lambda rows: program(loops, rows))
    again = export.deserialize(ours.serialize(vjp_order=1 if name == "scan" else 0))
    assert_same(again.call(ROWS), ours.call(ROWS), weak_types=False)
    if name == "scan":
        assert_same(gradient(again.call, ROWS), gradient(ours.call, ROWS))


def test_only_public_operations_are_exported():
    """The exported text has StableHLO's loop and no call that another program would not know."""
    text = exported(
        lambda rows: gradient(lambda rows: loops.scan(step, ONE, rows), rows)
    ).mlir_module()
    assert text.count("stablehlo.while") == 2
    assert "custom_call" not in text.replace("custom_call @shape_assertion", "")


def test_exported_for_several_platforms():
    """One export holds the loop for processors and accelerators alike."""
    run = jax.jit(lambda rows: loops.scan(step, ONE, rows))
    many = export.export(run, platforms=["cpu", "cuda", "tpu"])(ROWS)
    assert many.platforms == ("cpu", "cuda", "tpu")
    assert_same(many.call(ROWS), run(ROWS))
