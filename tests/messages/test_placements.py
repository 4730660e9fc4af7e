"""Advice where types differ in varying axes or explicit shardings: on eight devices, pasted."""

import itertools
import linecache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import checks
import loops

COUNT = itertools.count()
NAMES = {"jax": jax, "jnp": jnp, "P": P}


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Bodies here promote as users' do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def written(expression: str) -> Any:
    """A scan's body that returns an expression of `c` and `v`, in a file that can be read."""
    file, source = f"<placed {next(COUNT)}>", f"lambda c, v: ({expression}, None)"
    linecache.cache[file] = len(source), None, [source], file
    return eval(compile(source, file, "eval"), dict(NAMES))  # noqa: S307


def refused(run, expression: str, init: str) -> Any:
    """The only mismatch that a body is refused with; the code of the init may use `given`."""
    with pytest.raises(checks.CarryTypeError) as caught:
        run(written(expression), lambda given: eval(init, {**NAMES, "given": given}))  # noqa: S307
    (mismatch,) = caught.value.mismatches
    return mismatch


def pasted(run, expression: str, mismatch: Any, init: str) -> None:
    """Run a body with its advice."""
    suggestion = mismatch.suggestion
    start = suggestion.code if suggestion.place is None else suggestion.init_code
    if suggestion.place is not None:
        expression = expression.replace(suggestion.replaces, suggestion.code)

    def change(given: Any) -> Any:
        now = eval(init, {**NAMES, "given": given})  # noqa: S307
        return eval(start, {**NAMES, "init": now}) if start else now  # noqa: S307

    run(written(expression), change)


def mesh_of(axis_type: AxisType) -> Any:
    """Eight devices, four by two."""
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)


def in_shard_map(loop):
    """Trace a loop over values that vary over both axes of a mesh."""

    def run(body, change):
        def mapped(x):
            out = loop(body, change(x), x[None])
            return jax.tree.map(lambda leaf: (leaf + x).reshape(1), out)

        specs = P(("x", "y"))
        mesh = mesh_of(AxisType.Auto)
        fun = jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=specs)
        jax.jit(fun).trace(jnp.ones(8))

    return run


def by_scan(body, init, xs):
    """Run a scan."""
    return loops.scan(body, init, xs)[0]


def by_fori(body, init, xs):
    """Run the same body in a counted loop."""
    return loops.fori_loop(0, 1, lambda i, c: body(c, xs[i])[0], init)


def by_while(body, init, xs):
    """Run the same body in a while loop that reads no carry."""
    return loops.while_loop(lambda c: False, lambda c: body(c, xs[0])[0], init)


VARYING = [
    ("jax.lax.psum(c, 'x')", "varying axes"),
    ("jax.lax.psum(c, ('x', 'y'))", "varying axes"),
    ("0.5 * jax.lax.pmean(c, 'y') + 1.0", "varying axes"),
    ("jax.lax.pmax(c, 'x')", "varying axes"),
    ("jax.lax.psum(c * v, 'x').astype(jnp.float16)", "dtype"),
    ("jax.lax.psum(c, ('x', 'y')).sum()", "shape"),
    ("jax.lax.psum(c, 'x')[None]", "shape"),
]


@pytest.mark.parametrize("loop", [by_scan, by_fori, by_while])
@pytest.mark.parametrize(("expression", "kind"), VARYING)
def test_what_stops_to_vary_is_cast_back(loop, expression, kind):
    """The line is the collective's, or that of what else it changes; pasted, the loop passes."""
    if kind == "dtype" and loop is not by_scan:
        pytest.skip("the advice may be for the line of this file that calls the body")
    run = in_shard_map(loop)
    mismatch = refused(run, expression, "given")

    assert kind == mismatch.kind
    assert mismatch.provenance.place.text in expression
    assert "jax.lax.pcast(" in mismatch.suggestion.code
    pasted(run, expression, mismatch, "given")


def test_the_cast_names_only_the_axes_that_are_lost():
    """What still varies over the other axis is not cast over it."""
    run = in_shard_map(by_scan)
    mismatch = refused(run, "jax.lax.psum(c, 'x') + jax.lax.axis_index('y')", "given")

    code = "jax.lax.pcast(jax.lax.psum(c, 'x'), ('x',), to='varying')"
    assert code == mismatch.suggestion.code


@pytest.mark.parametrize(
    ("expression", "init"),
    [("c + v.sum()", 0), ("c + v", jnp.zeros(1)), ("c + jax.lax.axis_index('x')", jnp.zeros(1))],
)
def test_what_begins_to_vary_needs_no_advice(expression, init):
    """A loop casts its initial value itself, where nothing else is wrong."""
    in_shard_map(by_scan)(written(expression), lambda _: init)


def test_what_begins_to_vary_and_widens():
    """An integer that starts a sum of floats: the cast over the axes is the loop's."""
    run = in_shard_map(by_scan)
    mismatch = refused(run, "c + v", "jnp.zeros(1, jnp.int32)")

    assert "jnp.asarray(init, jnp.float32)" == mismatch.suggestion.code
    pasted(run, "c + v", mismatch, "jnp.zeros(1, jnp.int32)")


def test_of_two_that_fit_none_is_chosen():
    """A pair in the place of an array: that one of them varies does not make it the carry."""
    assert refused(in_shard_map(by_scan), "(jax.lax.psum(c, 'x'), v)", "given").suggestion is None


def on_explicit_mesh(body, change) -> None:
    """Trace a scan over rows of an array that is sharded over both axes."""
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, P("x", "y")))
        jax.jit(lambda x: loops.scan(body, change(x), jnp.stack([x, x]))[0]).trace(x)


RESHARDED = [
    ("jax.sharding.reshard(c, P())", "sharding"),
    ("2.0 * jax.sharding.reshard(c, P('x', None)) + 1.0", "sharding"),
    ("jax.sharding.reshard(c, P('y', 'x'))", "sharding"),
    ("jnp.einsum('ij,kj->ik', c, jnp.ones((4, 4)), out_sharding=P('x', None))", "sharding"),
    ("jax.sharding.reshard(c, P()).astype(jnp.float16)", "dtype"),
]


@pytest.mark.parametrize(("expression", "kind"), RESHARDED)
def test_a_sharding_that_the_body_takes_away_is_given_back(expression, kind):
    """The line is that of the operation that chose another sharding."""
    mismatch = refused(on_explicit_mesh, expression, "given")

    assert kind == mismatch.kind
    assert mismatch.provenance.place.text in expression
    assert mismatch.suggestion.code.startswith("jax.sharding.reshard(")
    assert mismatch.suggestion.code.endswith("P('x', 'y'))")
    pasted(on_explicit_mesh, expression, mismatch, "given")


WIDER = "jnp.broadcast_to(jnp.asarray(init, jnp.float32), (8, 4))"


@pytest.mark.parametrize(
    ("expression", "init", "code"),
    [
        ("c + v", "jnp.zeros((8, 4))", "jax.sharding.reshard(init, P('x', 'y'))"),
        ("c + v", "0.0", "jax.sharding.reshard(jnp.broadcast_to(init, (8, 4)), P('x', 'y'))"),
        (
            "c.astype(jnp.float16) + v",
            "jnp.float16(0)",
            f"jax.sharding.reshard({WIDER}, P('x', 'y'))",
        ),
        (
            "v if isinstance(c, tuple) else c + v",
            "()",
            "jax.sharding.reshard(jnp.zeros((8, 4), jnp.float32), P('x', 'y'))",
        ),
    ],
)
def test_a_sharding_that_the_data_bring_is_given_to_the_init(expression, init, code):
    """To reshard at each step what is added up would send data around that need not move."""
    mismatch = refused(on_explicit_mesh, expression, init)

    assert code == mismatch.suggestion.code
    pasted(on_explicit_mesh, expression, mismatch, init)


def test_a_growing_sharded_array_gets_a_sharded_buffer():
    """The rows' sharding is the buffer's."""
    mesh = mesh_of(AxisType.Explicit)

    def run(body, change):
        with jax.set_mesh(mesh):
            row = jax.sharding.reshard(jnp.ones((1, 8)), P(None, "x"))
            rows = jax.sharding.reshard(jnp.ones((3, 8)), P(None, "x"))
            loops.scan(body, change(row), rows)

    expression = "jnp.concatenate([c, v[None]])"
    mismatch = refused(run, expression, "given")

    assert "jax.sharding.reshard(jnp.zeros((4, 8)" in mismatch.suggestion.init_code
    pasted(run, expression, mismatch, "given")
