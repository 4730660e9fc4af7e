"""Loops with few checkpoints on several devices: shard_map, explicit shardings, pmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import loops

DEVICES = 4
WEIGHT = np.float32(0.9)
STARTS = np.linspace(0.1, 0.9, DEVICES, dtype=np.float32)
STEPS = np.array([0, 3, 1, 5], np.int32)


def step(w, x):
    """A step that is linear in nothing."""
    return jnp.sin(x * w) + 0.3 * w


def by_while(w, x, n):
    """Steps by a while loop."""
    body = lambda s: (s[0] + 1, step(w, s[1]))
    return loops.while_loop(lambda s: s[0] < n, body, (jnp.int32(0), x), checkpoints=2)[1]


def by_until(w, x, n):
    """Steps by a scan that ends early."""
    body = lambda s, _: ((s[0] + 1, step(w, s[1])), None)
    return loops.scan(body, (jnp.int32(0), x), None, 6, until=lambda s: s[0] >= n)[0][1]


def by_fori(w, x, n):
    """Steps by a fori_loop with a traced bound."""
    return loops.fori_loop(0, n, lambda _, c: step(w, c), x, checkpoints=2)


def reference(w, x, n):
    """The same by a loop of JAX that runs on and keeps its value."""
    body = lambda c, i: (jnp.where(i < n, step(w, c), c), None)
    return jax.lax.scan(body, x, jnp.arange(6, dtype=jnp.int32))[0]


KINDS = {"while": by_while, "until": by_until, "fori": by_fori}


def derivatives(of_all):
    """A value for each start, its gradients, and a second derivative."""

    def run(w, xs, ns):
        total = lambda w, xs: jnp.sum(of_all(w, xs, ns) ** 2)
        second = jax.grad(lambda w, xs: jnp.sum(jax.grad(total, 1)(w, xs)))
        return of_all(w, xs, ns), jax.grad(total, (0, 1))(w, xs), second(w, xs)

    return run


def expected():
    """What lanes of the reference give."""
    return derivatives(jax.vmap(reference, (None, 0, 0)))(WEIGHT, STARTS, STEPS)


def agree(actual, wanted):
    """Compare trees of numbers."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_shard_map(kind, check_vma):
    """Each device takes its own number of steps, and a weight that they share gets the sum."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def on_device(w, x, n):
        return KINDS[kind](w, x[0], n[0])[None]

    of_all = jax.shard_map(
        on_device, mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=P("i"), check_vma=check_vma
    )
    agree(jax.jit(derivatives(of_all))(WEIGHT, STARTS, STEPS), expected())


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_inside_shard_map(kind):
    """The gradient may be taken on the device."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def on_device(w, x, n):
        return jax.grad(KINDS[kind], 1)(w, x[0], n[0])[None]

    of_all = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=P("i"))
    wanted = jax.vmap(jax.grad(reference, 1), (None, 0, 0))(WEIGHT, STARTS, STEPS)
    agree(jax.jit(of_all)(WEIGHT, STARTS, STEPS), wanted)


def test_init_that_varies_less():
    """An init that is the same on all devices becomes one that varies, with its gradient."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def on_device(w, x):
        scanned = loops.scan(
            lambda c, _: (c * x[0] + w, None), jnp.float32(1), None, 3, checkpoints=2
        )
        return scanned[0][None]

    of_all = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"))
    lanes = lambda w, xs: jax.vmap(lambda x: ((x + w) * x + w) * x + w)(xs)
    gradients = [
        jax.jit(jax.grad(lambda w, xs, f=f: jnp.sum(f(w, xs)), (0, 1)))(WEIGHT, STARTS)
        for f in (of_all, lanes)
    ]
    agree(*gradients)


def test_collectives_in_the_body():
    """A step may sum over devices, there and on the way back."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def on_device(w, x):
        body = lambda _, c: jnp.sin(c * w) + jax.lax.pmean(c, "i")
        return loops.fori_loop(0, 3, body, x, checkpoints=2)

    def together(w, xs):
        for _ in range(3):
            xs = jnp.sin(xs * w) + jnp.mean(xs)
        return xs

    of_all = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"))
    gradients = [
        jax.jit(jax.grad(lambda w, xs, f=f: jnp.sum(f(w, xs) ** 2), (0, 1)))(WEIGHT, STARTS)
        for f in (of_all, together)
    ]
    agree(*gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_sharding(kind):
    """Stored carries and gradients keep the sharding that their types carry."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        xs = jax.device_put(STARTS, NamedSharding(mesh, P("i")))
        of_all = KINDS[kind]
        actual = jax.jit(derivatives(of_all))(WEIGHT, xs, np.int32(4))
        assert jax.typeof(actual[1][1]).sharding.spec == P("i")
    lanes = jax.vmap(reference, (None, 0, None))
    agree(actual, derivatives(lanes)(WEIGHT, STARTS, np.int32(4)))


def test_pmap():
    """The gradient of a loop on each of several devices."""
    gradient = jax.pmap(jax.grad(by_while), in_axes=(None, 0, 0))
    wanted = jax.vmap(jax.grad(reference), (None, 0, 0))(WEIGHT, STARTS, STEPS)
    agree(gradient(WEIGHT, STARTS, STEPS), wanted)


def test_collectives_over_lanes():
    """A step may read the other lanes of a vmap as long as all of them run equally many steps."""

    def lane(w, x):
        body = lambda c, _: (jnp.sin(c * w) + jax.lax.pmean(c, "lane"), None)
        return loops.scan(body, x, None, 3, checkpoints=2)[0]

    def together(w, xs):
        for _ in range(3):
            xs = jnp.sin(xs * w) + jnp.mean(xs)
        return xs

    lanes = jax.vmap(lane, (None, 0), axis_name="lane")
    gradients = [
        jax.jit(jax.grad(lambda w, xs, f=f: jnp.sum(f(w, xs) ** 2), (0, 1)))(WEIGHT, STARTS)
        for f in (lanes, together)
    ]
    agree(*gradients)


def test_collectives_over_lanes_that_end_apart():
    """There a lane that has ended would have to go on for the others, which is refused."""

    def lane(x, n):
        step = lambda s: (s[0] + 1, s[1] + jax.lax.pmean(s[1], "lane"))
        return loops.while_loop(lambda s: s[0] < n, step, (jnp.int32(0), x), checkpoints=2)[1]

    with pytest.raises(NotImplementedError, match="collective over the vmapped axis 'lane'"):
        jax.vmap(lane, axis_name="lane")(STARTS, STEPS)


def test_constants_of_inner_loops():
    """A weight that only the scan in a step reads is cast before the outer loop as well."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def run(w, x, n):
        inner = lambda c: loops.scan(lambda d, _: (step(w, d), None), c, None, 2)[0]
        body = lambda s: (s[0] + 1, jax.jit(inner)(s[1]))
        return loops.while_loop(lambda s: s[0] < n, body, (jnp.int32(0), x), checkpoints=2)[1]

    of_all = jax.shard_map(
        lambda w, x, n: run(w, x[0], n[0])[None],
        mesh=mesh,
        in_specs=(P(), P("i"), P("i")),
        out_specs=P("i"),
    )
    total = lambda f: lambda w, xs, ns: jnp.sum(f(w, xs, ns) ** 2)
    actual = jax.jit(jax.grad(total(of_all), (0, 1)))(WEIGHT, STARTS, STEPS)
    lanes = jax.vmap(run, (None, 0, 0))
    agree(actual, jax.jit(jax.grad(total(lanes), (0, 1)))(WEIGHT, STARTS, STEPS))


def test_constants_of_branches():
    """Where a cast stays in a branch the gradient is refused, and a cast before the loop helps."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))

    def run(w, x, n):
        branch = lambda c: jax.lax.cond(c < 0.5, lambda: step(w, c), lambda: c * w)
        return loops.fori_loop(0, n, lambda _, c: branch(c), x, checkpoints=2)

    def total(cast):
        of_all = jax.shard_map(
            lambda w, x, n: run(cast(w), x[0], n[0])[None],
            mesh=mesh,
            in_specs=(P(), P("i"), P("i")),
            out_specs=P("i"),
        )
        return jax.jit(jax.grad(lambda w, xs: jnp.sum(of_all(w, xs, STEPS))))

    with pytest.raises(NotImplementedError, match="Cast the value before the outer loop"):
        total(lambda w: w)(WEIGHT, STARTS)
    wanted = jax.grad(lambda w, xs: jnp.sum(jax.vmap(run, (None, 0, 0))(w, xs, STEPS)))
    actual = total(lambda w: jax.lax.pcast(w, "i", to="varying"))(WEIGHT, STARTS)
    agree(actual, wanted(WEIGHT, STARTS))


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_number_of_steps_crosses_the_mesh(compile_):
    """What a gradient outside keeps of each device's number of steps is that device's."""
    mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(AxisType.Auto,))
    of_all = jax.shard_map(
        lambda x, n: by_while(0.9, x[0], n[0])[None],
        mesh=mesh,
        in_specs=(P("i"), P("i")),
        out_specs=P("i"),
    )
    _, pull = compile_(lambda xs: jax.vjp(lambda xs: of_all(xs, STEPS), xs))(STARTS)
    wanted = jax.vmap(jax.grad(reference, 1), (None, 0, 0))(WEIGHT, STARTS, STEPS)
    np.testing.assert_allclose(compile_(pull)(np.ones(DEVICES, np.float32))[0], wanted, rtol=1e-5)
