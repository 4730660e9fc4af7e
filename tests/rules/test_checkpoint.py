"""`jax.checkpoint` on bodies, around loops, and with a policy."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from tests.helpers.comparison import assert_same
from tests.helpers.equations import body_primitives, equations, stacked_outputs
from tests.helpers.implementations import JAX, OURS, PYTHON, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

INIT = jnp.float32([0.3, 0.6])
ROWS = jnp.linspace(0.5, 1.5, 6, dtype=jnp.float32).reshape(3, 2)


def step(c, x):
    """A body with several residuals: two sines, a product, and a tanh of their named sum."""
    c = jnp.tanh(checkpoint_name(jnp.sin(c * x) + jnp.sin(c), "sum"))
    return c, c * x


def loss(loops: Implementation, body=step, wrap=lambda fun: fun):
    """A scalar through a scan of `body`, the whole loop wrapped by `wrap`."""

    def fun(init, xs):
        c, ys = wrap(lambda init, xs: loops.scan(body, init, xs))(init, xs)
        return (c * c).sum() + ys.sum()

    return fun


def gradient(fun):
    """The compiled gradient for init and xs."""
    return jax.jit(jax.grad(fun, (0, 1)))


SAVE_SUM = jax.checkpoint_policies.save_only_these_names("sum")
WAYS = {
    "body": {"body": jax.checkpoint(step)},
    "body without barrier": {"body": jax.checkpoint(step, prevent_cse=False)},
    "body with policy": {"body": jax.checkpoint(step, policy=SAVE_SUM)},
    "loop": {"wrap": jax.checkpoint},
    "loop with policy": {"wrap": lambda fun: jax.checkpoint(fun, policy=SAVE_SUM)},
    "both": {"body": jax.checkpoint(step), "wrap": jax.checkpoint},
    "everything saveable": {
        "wrap": lambda fun: jax.checkpoint(fun, policy=jax.checkpoint_policies.everything_saveable)
    },
}


@primitives
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_gradient_is_unchanged(loops: Implementation, way):
    """Recomputing changes no number."""
    want = gradient(loss(PYTHON))(INIT, ROWS)
    assert_same(gradient(loss(loops, **way))(INIT, ROWS), want)
    assert_same(jax.grad(loss(loops, **way), (0, 1))(INIT, ROWS), want)


@pytest.mark.parametrize("way", [WAYS["body"], WAYS["loop"]], ids=["body", "loop"])
def test_second_derivative_is_unchanged(way):
    """Recomputing changes no number of a second derivative either."""
    want = jax.jit(jax.hessian(loss(JAX)))(INIT, ROWS)
    assert_same(jax.jit(jax.hessian(loss(OURS, **way)))(INIT, ROWS), want)


@primitives
def test_checkpointed_body_keeps_the_carry_only(loops: Implementation):
    """The forward loop stacks the carry of each step and nothing else of the body."""
    fun = loss(loops, jax.checkpoint(step))
    forward, backward = equations(jax.grad(fun), INIT, ROWS, name="scan")
    shapes = [aval.shape for aval in stacked_outputs(forward)]
    assert shapes == [(3, 2), (3, 2)]  # ys and carries
    assert "sin" in body_primitives(backward)


@primitives
def test_plain_body_recomputes_nothing(loops: Implementation):
    """Without a checkpoint the backward loop has no sine and no tanh."""
    _, backward = equations(jax.grad(loss(loops)), INIT, ROWS, name="scan")
    assert not {"sin", "cos", "tanh"} & set(body_primitives(backward))


@primitives
def test_checkpointed_loop_runs_again_in_the_backward_pass(loops: Implementation):
    """A checkpoint around the loop keeps no residuals and has the loop three times."""
    fun = loss(loops, wrap=jax.checkpoint)
    scans = equations(jax.grad(fun), INIT, ROWS, name="scan")
    assert len(scans) == 3
    assert len(stacked_outputs(scans[0])) == 1  # ys only


@primitives
def test_policy_saves_a_name_inside_the_loop(loops: Implementation):
    """A value named in the body is saved where the policy says so, and not recomputed."""
    fun = loss(loops, jax.checkpoint(step, policy=SAVE_SUM))
    forward, backward = equations(jax.grad(fun), INIT, ROWS, name="scan")
    saved = [aval.shape for aval in stacked_outputs(forward)]
    assert saved == [(3, 2)] * 3  # ys, carries and the named value
    assert "sin" not in body_primitives(backward)


OFFLOADS = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["sum"],
    offload_src="device",
    offload_dst="pinned_host",
)
saveable = jax.checkpoint_policies
POLICIES = {
    "nothing": saveable.nothing_saveable,
    "everything": saveable.everything_saveable,
    "dots": saveable.dots_saveable,
    "dots without batch": saveable.dots_with_no_batch_dims_saveable,
    "names": SAVE_SUM,
    "all but names": saveable.save_anything_except_these_names("sum"),
    "other names": saveable.save_any_names_but_these("sum"),
    "both": saveable.save_from_both_policies(saveable.dots_saveable, SAVE_SUM),
    "offload names": OFFLOADS,
    "offload dots": saveable.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("where", ["body", "loop", "nested"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy(policy, where, newer):
    """Each policy gives the same gradient, in and around a loop, in JAX's two implementations."""
    kept = lambda fun: jax.checkpoint(fun, policy=policy)
    matrix = jnp.float32([[0.8, 0.1], [0.2, 0.7]])
    product = lambda c, x: step(matrix @ c, x)
    ways = {
        "body": loss(OURS, kept(product)),
        "loop": loss(OURS, product, kept),
        "nested": loss(
            OURS,
            lambda c, x: (OURS.scan(kept(product), c, ROWS)[0], x),
            lambda fun: kept(kept(fun)),
        ),
    }
    inner = lambda c, x: (PYTHON.scan(product, c, ROWS)[0], x)
    got = with_remat3(newer, lambda: gradient(ways[where])(INIT, ROWS))

    want = gradient(loss(PYTHON, inner if where == "nested" else product))(INIT, ROWS)
    assert_same(got, want)


def with_remat3(value, fun):
    """What a function gives with the newer implementation of `jax.checkpoint`, or the older one."""
    before = getattr(jax.config, "jax_remat3")  # noqa: B009, no attribute for types
    jax.config.update("jax_remat3", value)
    try:
        return fun()
    finally:
        jax.config.update("jax_remat3", before)


@primitives
def test_offloaded_residuals_are_stacked_on_the_host(loops: Implementation):
    """A scan stacks what its body offloads, without bringing it back before the way back."""
    fun = loss(loops, jax.checkpoint(step, policy=OFFLOADS))
    forward, backward = equations(jax.grad(fun), INIT, ROWS, name="scan")
    saved = [str(aval) for aval in stacked_outputs(forward)]
    assert [aval for aval in saved if "host" in aval] == ["float32<host>[3,2]"]
    assert "sin" not in body_primitives(backward)


@primitives
def test_checkpointed_while_runs_forwards(loops: Implementation):
    """A checkpoint in or around a while loop changes nothing in forward mode."""

    def fun(wrap_body, wrap_loop):
        body = wrap_body(lambda c: (c[0] + 1, jnp.sin(c[1])))
        run = lambda x: loops.while_loop(lambda c: c[0] < 3, body, (0, x))[1]
        return jax.jvp(wrap_loop(run), (INIT,), (INIT,))

    plain = lambda fun: fun
    want = fun(plain, plain)
    assert_same(fun(jax.checkpoint, plain), want)
    assert_same(fun(plain, jax.checkpoint), want)


@primitives
@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit, lambda fun: fun], ids=["c", "j", "-"])
def test_an_inner_while_that_only_reads_what_is_differentiated_is_known(
    loops: Implementation, wrap
):
    """Two while loops, the inner one reading a float that no part of its carry depends on."""

    def count(x, n):
        def outer(_, total):
            return loops.fori_loop(0, total % 4, lambda j, c: (2.0 * x, c + j)[1], total)

        return loops.fori_loop(0, n, outer, jnp.int32(3))

    value, push = jax.linearize(wrap(lambda x: count(x, jnp.int32(3))), jnp.float32(0.5))
    assert int(value) == 10
    assert push(jnp.float32(1)).dtype == jax.dtypes.float0
