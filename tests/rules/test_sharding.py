"""Loops over arrays on a mesh: types that carry shardings, shardings chosen by XLA, `pmap`."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

import loops
from checks import CarryTypeError
from tests.helpers.comparison import assert_same

INIT = np.ones((4, 2), np.float32)
ROWS = np.arange(24, dtype=np.float32).reshape(3, 4, 2) / 10
WEIGHT = np.arange(4, dtype=np.float32).reshape(2, 2) / 4


def make_mesh(*axis_types: AxisType) -> jax.sharding.Mesh:
    """Four by two devices."""
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=axis_types)


MESHES = {
    "explicit": make_mesh(AxisType.Explicit, AxisType.Explicit),
    "mixed": make_mesh(AxisType.Explicit, AxisType.Auto),
    "auto": make_mesh(AxisType.Auto, AxisType.Auto),
}
meshes = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)


def arguments(mesh: jax.sharding.Mesh) -> list[jax.Array]:
    """Init and rows sharded over the first axis of the mesh, and a weight that is not."""
    specs = [P("data", None), P(None, "data", None), P(None, None)]
    values = (INIT, ROWS, WEIGHT)
    return [jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip(values, specs, strict=True)]


def step(c, x):
    """A body that keeps the sharding of the carry."""
    return jnp.sin(c) * x, c * x


def double(c):
    """A step of a while loop that counts."""
    return c[0] + 1, c[1] * 2


def loss_of(run):
    """A scalar through a loop's carry and ys."""

    def loss(c, xs):
        c, ys = run(c, xs)
        return c.sum() + (ys * ys).sum()

    return loss


PROGRAMS = {
    "scan": lambda lib, c, x, w: lib.scan(step, c, x),
    "reverse unrolled": lambda lib, c, x, w: lib.scan(step, c, x, reverse=True, unroll=2),
    "unrolled away": lambda lib, c, x, w: lib.scan(step, c, x, unroll=True),
    "no steps": lambda lib, c, x, w: lib.scan(step, c, x[:0]),
    "literal carry": lambda lib, c, x, w: lib.scan(lambda n, v: (n + 1, v), 0, x),
    "scalar carry": lambda lib, c, x, w: lib.scan(lambda s, v: (s + v.sum(), s), jnp.float32(0), x),
    "carry handed on": lambda lib, c, x, w: lib.scan(lambda c, v: (c, v), c, x),
    "matrix product": lambda lib, c, x, w: lib.scan(lambda c, v: (c @ w + v, None), c, x)[0],
    "fori_loop": lambda lib, c, x, w: lib.fori_loop(0, 3, lambda i, c: jnp.sin(c) * x[i], c),
    "fori_loop, traced": lambda lib, c, x, w: jax.jit(
        lambda n: lib.fori_loop(0, n, lambda i, c: jnp.sin(c) * 2, c)
    )(3),
    "while_loop": lambda lib, c, x, w: lib.while_loop(lambda s: s[0] < 3, double, (0, c)),
    "while_loop on a sum": lambda lib, c, x, w: lib.while_loop(
        lambda c: c.sum() < 30, lambda c: c * 2, c
    ),
    "map": lambda lib, c, x, w: lib.map(lambda v: v * 2, x),
    "map in batches": lambda lib, c, x, w: lib.map(lambda v: v * 2, x, batch_size=2),
    "map in one batch": lambda lib, c, x, w: lib.map(lambda v: v.sum(0), x, batch_size=3),
    "map in a larger batch": lambda lib, c, x, w: lib.map(lambda v: v * 2, x, batch_size=7),
    "gradient": lambda lib, c, x, w: jax.grad(loss_of(lambda c, x: lib.scan(step, c, x)), (0, 1))(
        c, x
    ),
    "gradient, unrolled": lambda lib, c, x, w: jax.grad(
        loss_of(lambda c, x: lib.scan(step, c, x, unroll=2)), (0, 1)
    )(c, x),
    "gradient, checkpointed": lambda lib, c, x, w: jax.grad(
        jax.checkpoint(loss_of(lambda c, x: lib.scan(jax.checkpoint(step), c, x))), (0, 1)
    )(c, x),
    "gradient for a constant": lambda lib, c, x, w: jax.grad(
        lambda w: lib.scan(lambda c, v: (jnp.sin(c) * v * w.sum(), None), c, x)[0].sum()
    )(w),
    "gradient of fori_loop": lambda lib, c, x, w: jax.grad(
        lambda x: lib.fori_loop(0, 3, lambda i, c: jnp.sin(c) * x[i], c).sum()
    )(x),
    "tangent of while_loop": lambda lib, c, x, w: jax.jvp(
        lambda c: lib.while_loop(lambda s: s[0] < 3, double, (0, c))[1], (c,), (c,)
    ),
    "vmap": lambda lib, c, x, w: jax.vmap(lambda c, x: lib.scan(step, c, x), in_axes=(0, 1))(c, x),
    "vmap of xs": lambda lib, c, x, w: jax.vmap(
        lambda x: lib.scan(lambda c, v: (c + v, c), jnp.zeros(2), x), in_axes=1
    )(x),
    "vmap of a gradient": lambda lib, c, x, w: jax.vmap(
        jax.grad(loss_of(lambda c, x: lib.scan(step, c, x))), in_axes=(0, 1)
    )(c, x),
    "vmap of while_loop": lambda lib, c, x, w: jax.vmap(
        lambda c: lib.while_loop(lambda s: s[0] < 3, double, (0, c))
    )(c),
    "vmap of lanes": lambda lib, c, x, w: jax.vmap(
        lambda c: lib.while_loop(lambda c: c.sum() < 30, lambda c: c * 2, c + 1)
    )(c),
    "vmap with spmd_axis_name": lambda lib, c, x, w: jax.vmap(
        lambda x: lib.scan(lambda c, v: (c + v, c), jnp.zeros(2), x),
        in_axes=1,
        spmd_axis_name="data",
    )(x),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Arrays are multiplied by Python numbers here."""
    with jax.numpy_rank_promotion("allow"):
        yield


def types(tree):
    """The types of the leaves with the shardings that they carry."""
    return [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(tree)]


def specs(tree):
    """How the leaves are laid out."""
    return [leaf.sharding.spec for leaf in jax.tree.leaves(tree)]


@programs
@meshes
def test_types_values_and_layouts(program, mesh):
    """On each kind of mesh a loop gives the types, values and layouts of JAX's."""
    with jax.set_mesh(mesh):
        want = jax.jit(lambda *args: program(lax, *args))(*arguments(mesh))
        got = jax.jit(lambda *args: program(loops, *args))(*arguments(mesh))
    assert types(got) == types(want)
    assert specs(got) == specs(want)
    assert_same(got, want)


@pytest.mark.parametrize("name", ["scan", "while_loop", "map in batches", "gradient", "vmap"])
def test_without_jit(name):
    """Eager loops keep the types of explicitly sharded arrays."""
    mesh = MESHES["explicit"]
    with jax.set_mesh(mesh):
        want = PROGRAMS[name](lax, *arguments(mesh))
        got = PROGRAMS[name](loops, *arguments(mesh))
    assert types(got) == types(want)
    assert_same(got, want)


@pytest.mark.parametrize("name", ["scan", "while_loop"])
def test_step_by_step(name):
    """Under `jax.disable_jit` too."""
    mesh = MESHES["explicit"]
    with jax.set_mesh(mesh):
        want = PROGRAMS[name](lax, *arguments(mesh))
        with jax.disable_jit():
            got = PROGRAMS[name](loops, *arguments(mesh))
    assert types(got) == types(want)
    assert_same(got, want)


LITERALS = {
    "scan": lambda lib, c, x: jax.vmap(
        lambda x: lib.scan(lambda c, v: (c + v.sum(), c), 0.0, x), in_axes=1
    )(x),
    "gradient": lambda lib, c, x: jax.vmap(
        jax.grad(lambda x: lib.scan(lambda c, v: (c + jnp.sin(v).sum(), c), 0.0, x)[0]), in_axes=1
    )(x),
    "lanes": lambda lib, c, x: jax.vmap(
        lambda c: lib.while_loop(lambda s: s[1].sum() < 30, double, (0, c + 1))
    )(c),
    "spmd_axis_name": lambda lib, c, x: jax.vmap(
        lambda c: lib.while_loop(lambda s: s[1].sum() < 30, double, (0, c + 1)),
        spmd_axis_name="data",
    )(c),
}


@pytest.mark.parametrize("program", LITERALS.values(), ids=LITERALS)
def test_vmap_of_a_literal_carry_over_an_explicit_axis(program):
    """A carry that starts as a literal is sharded like the lanes; JAX's own loops refuse it."""
    init, rows, _ = arguments(MESHES["auto"])
    want = jax.jit(lambda *args: program(lax, *args))(init, rows)
    with jax.set_mesh(MESHES["explicit"]):
        init, rows, _ = arguments(MESHES["explicit"])
        got = jax.jit(lambda *args: program(loops, *args))(init, rows)
    assert_same(got, want)
    assert all("@data" in text for text in types(got))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("lanes", ["data", None])
def test_lanes_of_rows_that_are_sharded_themselves(lanes, wrap):
    """Lanes that end at different steps keep how their carry is sharded within a lane."""

    def run(lib, steps, x):
        lane = lambda n, x: lib.while_loop(lambda s: s[0] < n, double, (n * 0, x))
        return wrap(jax.vmap(lane))(steps, x)

    steps = np.arange(4)
    with jax.set_mesh(MESHES["explicit"]):
        args = reshard(steps, P(lanes)), reshard(INIT, P(lanes, "model"))
        got, want = run(loops, *args), run(lax, *args)
    assert types(got) == types(want)
    assert_same(got, want)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: loops.scan(lambda c, v: (c + v.sum(), None), jnp.float32(0), x),
        lambda x: loops.map(lambda v: v * 2, x),
        lambda x: loops.map(lambda v: v * 2, x, batch_size=2),
    ],
    ids=["scan", "map", "map in batches"],
)
def test_steps_cannot_be_sharded(run):
    """Rows spread over devices by type cannot be scanned over; the message says what to do."""
    with jax.set_mesh(MESHES["explicit"]):
        init, *_ = arguments(MESHES["explicit"])
        with pytest.raises(
            ValueError, match=r"0th dimension of all xs .*P\('data', None\)"
        ) as caught:
            run(init)
    assert "jax.sharding.reshard" in str(caught.value)


def test_resharding_the_carry_is_refused():
    """A body that changes the sharding of an explicitly sharded carry breaks the contract."""
    with jax.set_mesh(MESHES["explicit"]):
        init, rows, _ = arguments(MESHES["explicit"])
        with pytest.raises(
            CarryTypeError, match=r"4@data,2.*so the shardings do not match"
        ) as caught:
            loops.scan(lambda c, x: (reshard(c, P(None, None)), None), init, rows)
    assert caught.value.mismatches[0].kind == "sharding"


@pytest.mark.parametrize("unroll", [1, 2, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_residuals_from_another_mesh(reverse, unroll):
    """A body with automatic axes stacks residuals on a mesh that is not the loop's."""

    def loss(lib, body, w, rows):
        run = lambda c, x: (body(c, w, x), c)
        c, ys = lib.scan(run, jnp.float32(1), rows, reverse=reverse, unroll=unroll)
        return c + ys.sum()

    plain = lambda c, w, x: jnp.sin(c * w) * x
    automatic = jax.sharding.auto_axes(plain, out_sharding=P())
    rows = jnp.float32([0.5, -1.0, 2.0])
    gradient = jax.grad(loss, (2, 3))
    want = gradient(lax, plain, jnp.float32(0.7), rows)
    with jax.set_mesh(MESHES["explicit"]):
        got = jax.jit(lambda w, rows: gradient(loops, automatic, w, rows))(jnp.float32(0.7), rows)
    assert_same(got, want)


def test_a_sum_is_reduced_once_after_the_loop():
    """A carry that is not reduced over the mesh is reduced after the last step only."""
    mesh = MESHES["explicit"]

    def program(lib, rows):
        spec = P(None, None, unreduced={"data"})
        add = lambda c, x: (c + jnp.einsum("ab,ac->bc", x, x, out_sharding=spec), None)
        total, _ = lib.scan(add, reshard(jnp.zeros((2, 2)), spec), rows)
        return reshard(total, P(None, None))

    def compiled_and_value(lib):
        fun = jax.jit(lambda rows: program(lib, rows))
        rows = arguments(mesh)[1]
        return fun.lower(rows).compile().as_text(), fun(rows)

    with jax.set_mesh(mesh):
        text, got = compiled_and_value(loops)
        _, want = compiled_and_value(lax)
    assert_same(got, want)
    assert text is not None
    assert len(re.findall(r"all-reduce(?:-start)?\(", text)) == 1


def test_in_and_out_shardings():
    """`in_shardings` and `out_shardings` of jit are those of the arrays that come out."""
    mesh = MESHES["auto"]
    by_data, by_rows = NamedSharding(mesh, P("data", None)), NamedSharding(mesh, P(None, "data"))
    by_model = NamedSharding(mesh, P(None, None, "model"))

    def run(lib):
        fun = jax.jit(
            lambda c, xs: lib.scan(step, c, xs),
            in_shardings=(by_data, by_rows),
            out_shardings=(by_data, by_model),
        )
        return fun(INIT, ROWS)

    got, want = run(loops), run(lax)
    assert_same(got, want)
    assert [x.sharding for x in got] == [by_data, by_model]
    assert len(got[1].addressable_shards) == 8
    assert got[1].addressable_shards[0].data.shape == (3, 4, 1)


def test_rows_sharded_by_xla_may_be_scanned_over():
    """On an automatic mesh the leading axis of the xs may be laid out over devices."""
    rows = jax.device_put(
        np.arange(16, dtype=np.float32).reshape(8, 2), NamedSharding(MESHES["auto"], P("data"))
    )
    run = lambda lib: jax.jit(lambda xs: lib.scan(lambda c, x: (c + x, c * x), jnp.zeros(2), xs))(
        rows
    )
    assert_same(run(loops), run(lax))


def test_constraints_inside_a_body():
    """`with_sharding_constraint` in a body gets the axis of vmap that `spmd_axis_name` names."""
    mesh = MESHES["auto"]
    inside = NamedSharding(mesh, P("model"))

    def body(c, x):
        return lax.with_sharding_constraint(c * x, inside), c

    def lowered(lib):
        run = lambda c, xs: lib.scan(body, c, xs)
        fun = jax.jit(jax.vmap(run, in_axes=(0, 1), spmd_axis_name="data"))
        text = fun.lower(INIT, ROWS).as_text()
        return sorted(re.findall(r"sdy.sharding_constraint.*", text)), fun(INIT, ROWS)

    (got_constraints, got), (want_constraints, want) = lowered(loops), lowered(lax)
    assert_same(got, want)
    assert [re.sub(r"%\S+", "%", line) for line in got_constraints] == [
        re.sub(r"%\S+", "%", line) for line in want_constraints
    ]
    assert any('[{"data"}, {"model"}]' in line for line in got_constraints)


def test_pmap():
    """A loop, and its gradient, under `jax.pmap` with a collective in the body."""

    def run(lib):
        def loss(c, xs):
            body = lambda c, x: (c * lax.pmean(x, "devices"), lax.psum(c, "devices"))
            c, ys = lib.scan(body, c, xs)
            return c + ys.sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            mapped = jax.pmap(jax.value_and_grad(loss, (0, 1)), axis_name="devices")
            return mapped(jnp.arange(4.0) + 1, jnp.arange(12.0).reshape(4, 3) / 5)

    assert_same(run(loops), run(lax))
