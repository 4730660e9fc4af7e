"""Programs written with JAX's own loop equations: nothing of ours left, and the same results."""

import jax
import jax.custom_batching
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.experimental import hijax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

import loops
from loops import to_lax
from tests.helpers.comparison import assert_same
from tests.helpers.equations import all_primitives, scan_layout
from tests.helpers.implementations import JAX, OURS
from tests.helpers.programs import PROGRAMS, Program
from tests.rules.transformations import FIRST, Transformation

X = jnp.linspace(0.3, 0.9, 3)
SOME_PROGRAMS = {"scan_passes_through", "while_threshold", "nested_while_in_scan", "map_tree"}


def rewritten(fun):
    """The function that evaluates the rewritten program of `fun`."""

    def run(*args):
        program, out = jax.make_jaxpr(fun, return_shape=True)(*args)
        program = to_lax(program)
        outputs = jax.core.eval_jaxpr(program.jaxpr, program.consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), outputs)

    return run


def has_ours(jaxpr):
    """Whether one of our loops stands in a program, at any depth."""
    return not {loops.scan_p, loops.while_p}.isdisjoint(all_primitives(jaxpr))


def sines(x):
    """A loop of ours."""
    return loops.fori_loop(0, 3, lambda i, c: jnp.sin(c), x)


def in_cond(x):
    """A loop of each kind in the branches of a cond."""
    grown = lambda x: loops.while_loop(lambda c: c[0] < 2.0, lambda c: c + 0.5, x)
    return lax.cond(x[0] > 0.0, sines, grown, x)


@jax.custom_jvp
def with_jvp(x):
    """A loop in a function with a forward derivative."""
    return sines(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), 3.0 * tangents[0]))


@jax.custom_vjp
def with_vjp(x):
    """A loop in a function with a reverse derivative."""
    return sines(x)


with_vjp.defvjp(lambda x: (sines(x), x), lambda x, g: (3.0 * g,))


def with_root(x):
    """The root of `y**2 = x`, by a loop of Newton steps."""

    def newton(f, guess):
        return loops.fori_loop(0, 8, lambda i, y: y - f(y) / (2.0 * y), guess)

    solve_linear = lambda g, y: y / g(jnp.ones_like(y))
    return lax.custom_root(lambda y: y * y - x, jnp.ones_like(x), newton, solve_linear)


def with_solve(x):
    """Solves `2 y = x` by a loop that halves, with a loop in the map."""
    double = lambda y: loops.fori_loop(0, 1, lambda i, c: 2.0 * c, y)
    halve = lambda _, b: loops.fori_loop(0, 1, lambda i, c: 0.5 * c, b)
    return lax.custom_linear_solve(double, x, halve, symmetric=True)


def sharded(x):
    """A loop in a shard_map."""
    mesh = jax.make_mesh((1,), ("i",))
    specs = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    return jax.shard_map(sines, mesh=mesh, **specs)(x)


def in_kernel(x):
    """A loop in a kernel."""

    def kernel(x_ref, out_ref):
        out_ref[...] = sines(x_ref[...])

    return pl.pallas_call(kernel, out_shape=jax.typeof(x), interpret=True)(x)


HOLDERS = {
    "cond": in_cond,
    "jit": jax.jit(sines),
    "checkpoint": jax.checkpoint(sines),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "custom_root": with_root,
    "custom_linear_solve": with_solve,
    "composite": lax.composite(sines, "our.sines"),
    "shard_map": sharded,
    "pallas": in_kernel,
    "loop_in_loops": lambda x: loops.scan(lambda c, y: (in_cond(c) * y, in_cond(c)), x, x),
    "gradient": jax.grad(lambda x: sines(x).sum()),
    "linear_map": lambda x: jax.linearize(sines, x)[1](x),
}


@pytest.mark.parametrize("fun", HOLDERS.values(), ids=HOLDERS)
def test_nothing_of_ours_is_left(fun):
    """Whatever holds a loop, the rewritten program has JAX's in its place and computes the same."""
    program = jax.make_jaxpr(fun)(X)
    new = to_lax(program)

    assert type(new) is type(program)
    assert has_ours(program)
    assert not has_ours(new)
    assert_same(jax.core.eval_jaxpr(new.jaxpr, new.consts, X), jax.tree.leaves(fun(X)))


@pytest.mark.parametrize("fun", [with_jvp, with_vjp, with_root, with_solve])
def test_derivatives_that_the_user_gave_stay(fun):
    """A rewritten program is differentiated by the rules that its functions have."""
    loss = lambda fun: lambda x: fun(x).sum()
    assert_same(jax.grad(loss(rewritten(fun)))(X), jax.grad(loss(fun))(X))


@pytest.mark.parametrize(
    ("entry", "transformation"),
    [
        pytest.param(entry, transformation, id=f"{transformation.name}-{entry.name}")
        for entry in PROGRAMS
        if entry.name in SOME_PROGRAMS
        for transformation in FIRST
        if entry.reverse_mode or not transformation.reverse
    ],
)
def test_results_under_transformations(entry: Program, transformation: Transformation):
    """A rewritten program can be run, compiled, batched and differentiated as JAX's loops can."""
    args = entry.arguments()
    got = transformation.apply(rewritten(entry.bind(OURS)), args)
    want = transformation.apply(entry.bind(JAX), args)
    assert_same(got, want, rtol=entry.rtol)


def test_a_batched_predicate():
    """A loop whose lanes end at different steps is JAX's loop with an array of predicates."""
    doubled = jax.vmap(lambda x: loops.while_loop(lambda c: c < 3.0, lambda c: 2.0 * c, x))
    program = to_lax(jax.make_jaxpr(doubled)(X))

    (eqn,) = program.eqns
    assert eqn.primitive is lax.while_p
    assert (3,) == eqn.params["cond_jaxpr"].out_avals[0].shape
    assert_same(jax.core.eval_jaxpr(program.jaxpr, program.consts, X)[0], doubled(X))


def test_parameters_are_jaxs():
    """The scan's parameters are those that JAX's scan has when it traces the same loop."""

    def run(scan):
        return lambda x: scan(lambda c, y: (c * x[0] + y, (c, y * 2)), x[1], x, reverse=True)

    got = to_lax(jax.make_jaxpr(run(loops.scan))(X)).eqns[-1]
    want = jax.make_jaxpr(run(lax.scan))(X).eqns[-1]

    assert scan_layout(want) == scan_layout(got)
    assert want.params.keys() == got.params.keys()
    for name in ("length", "reverse", "unroll"):
        assert want.params[name] == got.params[name]


HighPrimitive = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # renamed in 0.12


class ShareOfSines(HighPrimitive):
    """A primitive of a user's that is short for a loop and asks how many devices share an axis."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):  # pyrefly: ignore[bad-override]
        """The program that it is short for."""
        return sines(x) / lax.axis_size("i")


def test_a_high_level_primitive_of_the_user():
    """It is rewritten too, though its axis has no size outside of the shard_map."""
    mesh = jax.make_mesh((1,), ("i",))
    specs = {"in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i")}
    fun = jax.shard_map(lambda x: ShareOfSines(jax.typeof(x))(x), mesh=mesh, **specs)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, jax.NamedSharding(mesh, PartitionSpec("i")))
        (shard_map,) = to_lax(jax.make_jaxpr(fun)(x)).eqns
        got = jax.jit(rewritten(fun))(x)

    (eqn,) = shard_map.params["jaxpr"].eqns
    assert isinstance(eqn.params["_prim"], ShareOfSines)
    assert type(eqn.params["_prim"]) is not ShareOfSines
    assert_same(got, sines(X), weak_types=False)


def test_export():
    """A rewritten program can be exported and called."""
    exported = export.export(jax.jit(rewritten(sines)))(X)

    assert_same(exported.call(X), sines(X))


def test_what_has_no_loop_is_the_same_object():
    """A program without loops, and a jitted function without loops in another, are not copied."""
    plain = jax.jit(jnp.sin)
    program = jax.make_jaxpr(lambda x: plain(sines(plain(x))))(X)
    inner = lambda program: [e.params["jaxpr"] for e in program.eqns if e.primitive.name == "jit"]

    assert to_lax(to_lax(program)) is to_lax(program)
    assert all(new is old for new, old in zip(inner(to_lax(program)), inner(program), strict=True))


def test_a_jaxpr_that_occurs_twice_is_rewritten_once():
    """Two calls of one jitted function share one jaxpr afterwards as they did before."""
    jitted = jax.jit(sines)
    first, second = to_lax(jax.make_jaxpr(lambda x: jitted(jitted(x)))(X)).eqns

    assert first.params["jaxpr"] is second.params["jaxpr"]


def test_a_function_is_refused():
    """What is no jaxpr is refused with the way to make one."""
    with pytest.raises(TypeError, match=r"got function. jax.make_jaxpr"):
        to_lax(sines)
