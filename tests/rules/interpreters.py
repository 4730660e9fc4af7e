"""The interpreters, settings and tools under which a loop gives what it gives without them.

Each entry takes a function of float arrays and its arguments, and returns what the function gives.
The function is run on eight equal lanes where the tool needs lanes.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.experimental import checkify, pallas
from jax.experimental.sparse import sparsify
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX
from tests.rules.transformations import Arguments, Function, Transformation

LANES = 8


def flat(fun: Function, args: Arguments) -> tuple[Function, Any]:
    """The function with a flat list of outputs, and how to put them together again."""
    tree = jax.tree.structure(jax.eval_shape(fun, *args))
    return lambda *a: jax.tree.leaves(fun(*a)), partial(jax.tree.unflatten, tree)


def lanes_of(args: Arguments) -> Arguments:
    """Eight equal lanes of each argument."""
    return tuple(jnp.stack([x] * LANES) for x in args)


def last_lane(tree: Any) -> Any:
    """What the last lane gives."""
    return jax.tree.map(lambda x: jax.device_get(x)[-1], tree)


def run_checkify(fun: Function, args: Arguments) -> Any:
    """With a check of each operation, of which none fails."""
    error, out = checkify.checkify(fun, errors=checkify.all_checks)(*args)
    error.throw()
    return out


def run_checkify_vmap(fun: Function, args: Arguments) -> Any:
    """The same for lanes."""
    return last_lane(run_checkify(jax.vmap(fun), lanes_of(args)))


def run_shard_map(fun: Function, args: Arguments) -> Any:
    """Each device its lane, and each carry varies over the mesh."""
    mesh = jax.make_mesh((LANES,), ("i",), axis_types=(AxisType.Auto,))
    lane = lambda *a: jax.tree.map(lambda x: x[None], fun(*(x[0] for x in a)))
    spec = PartitionSpec("i")
    mapped = jax.shard_map(lane, mesh=mesh, in_specs=spec, out_specs=spec)
    return last_lane(mapped(*lanes_of(args)))


def run_pmap(fun: Function, args: Arguments) -> Any:
    """Each device its lane, the older way."""
    return last_lane(jax.pmap(fun)(*lanes_of(args)))


def run_sharded(axis_type: AxisType) -> Callable[[Function, Arguments], Any]:
    """Lanes that are spread over the devices of a mesh, by a sharding of the arrays."""

    def run(fun: Function, args: Arguments) -> Any:
        mesh = jax.make_mesh((LANES,), ("i",), axis_types=(axis_type,))
        with jax.set_mesh(mesh):
            sharded = jax.device_put(lanes_of(args), NamedSharding(mesh, PartitionSpec("i")))
            return last_lane(jax.jit(jax.vmap(fun))(*sharded))

    return run


def run_export(fun: Function, args: Arguments) -> Any:
    """Exported, written to bytes, read again and called."""
    run, together = flat(fun, args)
    written = export.export(jax.jit(run))(*args).serialize()
    return together(export.deserialize(written).call(*args))


def run_export_symbolic(fun: Function, args: Arguments) -> Any:
    """Exported for any number of lanes."""
    run, together = flat(jax.vmap(fun), lanes_of(args))
    specs = export.symbolic_args_specs(lanes_of(args), "lanes, ...")
    exported = export.export(jax.jit(run))(*specs)
    return last_lane(together(exported.call(*lanes_of(args))))


def run_ahead_of_time(fun: Function, args: Arguments) -> Any:
    """Traced, lowered and compiled one after the other, and the analyses of what was compiled."""
    compiled = jax.jit(fun).trace(*args).lower().compile()
    assert compiled.cost_analysis() is not None
    assert compiled.memory_analysis() is not None
    return compiled(*args)


def run_to_lax(fun: Function, args: Arguments) -> Any:
    """Written in JAX's own loops."""
    run, together = flat(fun, args)
    program = loops.to_lax(jax.make_jaxpr(run)(*args))
    return together(jax.core.eval_jaxpr(program.jaxpr, program.consts, *args))


def run_pallas(fun: Function, args: Arguments) -> Any:
    """In a kernel, interpreted; a kernel writes arrays, so others are left as they come out."""
    run, together = flat(fun, args)
    shapes = jax.eval_shape(run, *args)

    def kernel(*refs: Any) -> None:
        outputs = run(*(ref[...] for ref in refs[: len(args)]))
        for ref, out in zip(refs[len(args) :], outputs, strict=True):
            ref[...] = out

    return together(pallas.pallas_call(kernel, out_shape=shapes, interpret=True)(*args))


def run_custom_rules(fun: Function, args: Arguments) -> Any:
    """In functions with rules of their own for vmap, gradients and tangents."""
    batched = jax.custom_batching.custom_vmap(fun)
    batched.def_vmap(lambda _, is_batched, *a: (fun(*a), is_batched[0]))
    backward = jax.custom_vjp(batched)
    backward.defvjp(lambda *a: (batched(*a), a), lambda a, _: a)
    forward = jax.custom_jvp(backward)
    forward.defjvp(lambda primals, _: (forward(*primals), forward(*primals)))
    return jax.jit(forward)(*args)


def run_refs(fun: Function, args: Arguments) -> Any:
    """A step of another loop of ours that reads its arguments from Refs and writes them back."""
    refs = [jax.new_ref(x) for x in args]

    def step(_: Any, __: Any) -> tuple[None, Any]:
        out = fun(*(ref[...] for ref in refs))
        for ref in refs:
            ref[...] = ref[...] + 0
        return None, out

    return jax.tree.map(lambda y: y[-1], loops.scan(step, None, length=2)[1])


def run_threads(fun: Function, args: Arguments) -> Any:
    """Traced and run by four threads at once."""
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(jax.jit(partial(fun)), *args) for _ in range(4)]
        first, *others = [call.result() for call in calls]
    for other in others:
        assert_same(other, first)
    return first


def run_under(setting: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Under a setting of JAX's, eager and compiled."""

    def run(fun: Function, args: Arguments) -> Any:
        with setting():
            fun(*args)
            return jax.jit(fun)(*args)

    return run


def run_in_jax_loop(fun: Function, args: Arguments) -> Any:
    """In the body of JAX's own scan."""
    ys = JAX.scan(lambda c, _: (c, fun(*args)), 0, length=2)[1]
    return jax.tree.map(lambda y: y[-1], ys)


def run_in_cond(fun: Function, args: Arguments) -> Any:
    """In a branch."""
    return jax.jit(lambda p: lax.cond(p, fun, fun, *args))(True)


INTERPRETERS = [
    Transformation("checkify", run_checkify),
    Transformation("checkify_of_vmap", run_checkify_vmap),
    Transformation("shard_map", run_shard_map),
    Transformation("pmap", run_pmap),
    Transformation("named_sharding", run_sharded(AxisType.Auto)),
    Transformation("explicit_sharding", run_sharded(AxisType.Explicit)),
    Transformation("export", run_export),
    Transformation("export_symbolic", run_export_symbolic),
    Transformation("ahead_of_time", run_ahead_of_time),
    Transformation("to_lax", run_to_lax),
    Transformation("sparsify", lambda fun, args: sparsify(fun)(*args)),
    Transformation("key_reuse", run_under(lambda: jax.debug_key_reuse(True))),
    Transformation("pallas", run_pallas),
    Transformation("custom_rules", run_custom_rules),
    Transformation("refs", run_refs),
    Transformation("threads", run_threads),
    Transformation("debug_nans", run_under(lambda: jax.debug_nans(True))),
    Transformation("debug_infs", run_under(lambda: jax.debug_infs(True))),
    Transformation("check_tracer_leaks", run_under(jax.checking_leaks)),
    Transformation("enable_checks", run_under(lambda: jax.enable_checks(True))),
    Transformation("in_jax_scan", run_in_jax_loop),
    Transformation("in_cond", run_in_cond),
]
