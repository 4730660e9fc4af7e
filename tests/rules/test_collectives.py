"""Named axes of `jax.vmap`: collectives in bodies and conditions, and lanes that nothing enters."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import loops
from tests.helpers.comparison import assert_same
from tests.helpers.equations import the_equation

INIT = jnp.float32([1, 2, 3, 4])
ROWS = jnp.arange(12, dtype=jnp.float32).reshape(4, 3) / 5
SQUARE = jnp.arange(16, dtype=jnp.float32).reshape(4, 4)
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def lanes(fun, *args, **options):
    """`fun` in four lanes along the axis `i`."""
    return jax.vmap(fun, axis_name="i", **options)(*args)


def scan_lanes(lib, body, *args, **options):
    """A scan of `body` in four lanes."""
    return lanes(lambda c, xs: lib.scan(body, c, xs), *(args or (INIT, ROWS)), **options)


def index(c, _):
    """A body that batches what nothing batched came into."""
    return c + lax.axis_index("i"), c


def through_psum(c, x):
    """A body that mixes the lanes at each step."""
    return c + lax.psum(x * c, "i"), c - lax.pmean(c, "i")


def sinus(c, x):
    """The same with a residual."""
    return jnp.sin(c) + lax.pmean(x * c, "i"), c


def scan_gradient(lib, body):
    """The gradient of one lane's carry after the last step."""
    return jax.grad(lambda c, xs: lib.scan(body, c, xs)[0], (0, 1))


def in_two_axes(lib):
    """Collectives over one axis and over both."""

    def body(c, _):
        return c + lax.psum(c, ("i", "j")) + lax.axis_index("j"), lax.psum(c, "i")

    run = lambda c: lib.scan(body, c, None, length=2)
    return lanes(jax.vmap(run, axis_name="j"), ROWS)


SCANS = {
    "psum": lambda lib: scan_lanes(lib, through_psum),
    "psum of what is not batched": lambda lib: lanes(
        lambda: lib.scan(lambda c, _: (c + lax.psum(1, "i"), c), 0, None, length=2),
        axis_size=4,
        in_axes=(),
    ),
    "psum to one result": lambda lib: lanes(
        lambda xs: lib.scan(lambda c, x: (c + lax.psum(x, "i"), c), jnp.float32(0), xs),
        ROWS,
        out_axes=None,
    ),
    "axis_index": lambda lib: lanes(lambda c: lib.scan(index, c, None, length=2), jnp.arange(4)),
    "axis_index into a constant carry": lambda lib: lanes(
        lambda c: c + lib.scan(index, 0, None, length=2)[0], jnp.arange(4)
    ),
    "axis_index into ys": lambda lib: lanes(
        lambda c: lib.scan(lambda n, _: (n + 1, lax.axis_index("i")), c, None, length=2),
        jnp.arange(4),
    ),
    "all_gather": lambda lib: scan_lanes(
        lib, lambda c, x: (c + lax.all_gather(x, "i")[0], lax.all_gather(c, "i"))
    ),
    "ppermute": lambda lib: scan_lanes(lib, lambda c, x: (lax.ppermute(c + x, "i", RING), c)),
    "all_to_all": lambda lib: lanes(
        lambda c: lib.scan(lambda c, _: (lax.all_to_all(c, "i", 0, 0), c), c, None, length=3),
        SQUARE,
    ),
    "inner jit": lambda lib: scan_lanes(lib, jax.jit(through_psum)),
    "inner cond": lambda lib: lanes(
        lambda c: lib.scan(
            lambda c, x: (lax.cond(x > 0, lambda c: lax.psum(c, "i"), lambda c: c * 2, c), c),
            c,
            jnp.arange(2),
        ),
        INIT,
    ),
    "map": lambda lib: lanes(lambda xs: lib.map(lambda x: x - lax.pmean(x, "i"), xs), ROWS),
    "map in batches": lambda lib: lanes(
        lambda xs: lib.map(lambda x: x - lax.pmean(x, "i"), xs, batch_size=2), ROWS
    ),
    "two axes": in_two_axes,
    "gradient of vmap": lambda lib: jax.grad(
        lambda c, xs: scan_lanes(lib, through_psum, c, xs)[0].sum(), (0, 1)
    )(INIT, ROWS),
    "vmap of a gradient": lambda lib: lanes(scan_gradient(lib, sinus), INIT, ROWS),
    "checkpointed": lambda lib: lanes(scan_gradient(lib, jax.checkpoint(sinus)), INIT, ROWS),
}

WHILES = {
    "psum in the condition": lambda lib: lanes(
        lambda c: lib.while_loop(lambda c: lax.psum(c, "i") < 100, lambda c: c * 2, c), INIT
    ),
    "psum in the body": lambda lib: lanes(
        lambda c: lib.while_loop(
            lambda s: s[1] < 3, lambda s: (s[0] + lax.psum(s[0], "i"), s[1] + 1), (c, 0)
        ),
        INIT,
    ),
    "psum in lanes that end one by one": lambda lib: lanes(
        lambda c: lib.while_loop(
            lambda s: s[1] < c,
            lambda s: (s[0] + lax.psum(s[0], "i"), s[1] + 1),
            (c, jnp.float32(0)),
        ),
        INIT,
    ),
    "pmin of lanes that end one by one": lambda lib: lanes(
        lambda c: lib.while_loop(lambda c: c < 100, lambda c: c * 3 + lax.pmin(c, "i"), c), INIT
    ),
    "pmax in a fori_loop": lambda lib: lanes(
        lambda c: lib.fori_loop(0, 3, lambda i, c: c + lax.pmax(c * i, "i"), c), INIT
    ),
    "axis_index in the condition": lambda lib: lanes(
        lambda: lib.while_loop(lambda c: c < lax.axis_index("i"), lambda c: c + 1, 0),
        axis_size=4,
        in_axes=(),
    ),
    "axis_index in the body": lambda lib: lanes(
        lambda: lib.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + lax.axis_index("i")), (0, 0)
        ),
        axis_size=4,
        in_axes=(),
    ),
    "axis_index as the bound": lambda lib: lanes(
        lambda: lib.fori_loop(0, lax.axis_index("i"), lambda i, c: c + i, jnp.int32(10)),
        axis_size=4,
        in_axes=(),
    ),
    "tangent": lambda lib: lanes(
        lambda c: jax.jvp(
            lambda c: lib.while_loop(
                lambda s: s[1] < 3, lambda s: (s[0] * lax.psum(s[0], "i"), s[1] + 1), (c, 0)
            )[0],
            (c,),
            (c,),
        ),
        INIT / 10,
    ),
}

LANES = {
    "axis_size alone": lambda lib: jax.vmap(
        lambda: lib.scan(lambda c, _: (c + 1, c), 0, None, length=2), axis_size=4, in_axes=()
    )(),
    "axis_size alone, named": lambda lib: lanes(
        lambda: lib.scan(index, 0, None, length=2), axis_size=4, in_axes=()
    ),
    "carry alone, last axis": lambda lib: jax.vmap(
        lambda c: lib.scan(lambda c, x: (c * x, x), c, jnp.arange(3, dtype=jnp.float32)),
        in_axes=1,
        out_axes=(1, None),
    )(ROWS),
    "part of the carry": lambda lib: jax.vmap(
        lambda c: lib.scan(
            lambda s, x: ((s[0] * x, s[1] + 1), s[1]), (c, 0), jnp.arange(3, dtype=jnp.float32)
        ),
        in_axes=1,
    )(ROWS),
    "carry of a while_loop": lambda lib: jax.vmap(
        lambda c: lib.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, c)),
        in_axes=1,
        out_axes=(None, 1),
    )(ROWS),
    "carry of a fori_loop": lambda lib: jax.vmap(
        lambda c: lib.fori_loop(0, 3, lambda i, c: c * i, c), in_axes=-1, out_axes=-1
    )(ROWS),
    "axes moved": lambda lib: jax.vmap(
        lambda c, xs: lib.scan(lambda c, x: (c * x, c), c, xs), in_axes=(1, 0), out_axes=(1, -1)
    )(ROWS, jnp.arange(24, dtype=jnp.float32).reshape(3, 2, 4)),
}

PROGRAMS = SCANS | WHILES | LANES


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Indices of axes are integers, and some carries floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_lanes_beside_jax(program):
    """Values and types are those of `jax.lax`'s loops."""
    want = jax.jit(lambda: program(lax))()
    assert_same(jax.jit(lambda: program(loops))(), want)
    assert_same(program(loops), want)


def test_a_collective_is_written_out():
    """One lane's psum at each step is the sum that a loop over all lanes computes."""
    carry, rows = INIT, []
    for x in ROWS.T:
        rows.append(carry - carry.mean())
        carry = carry + (x * carry).sum()
    assert_same(SCANS["psum"](loops), (carry, jnp.stack(rows, 1)))


def test_a_carry_that_no_lane_enters_stays_unbatched():
    """With `axis_size` alone, only what an axis's index reaches gets a batch axis."""

    def run():
        body = lambda c, _: ((c[0] + 1, c[1] + lax.axis_index("i")), c[0])
        return loops.scan(body, (0, 0), None, length=2)

    mapped = jax.vmap(run, axis_name="i", axis_size=4, in_axes=())
    eqn = the_equation(mapped, name="scan")
    assert [v.aval.shape for v in eqn.outvars] == [(), (4,), (2,)]


def test_an_unknown_axis_is_named():
    """A collective over an axis that is not there is refused as everywhere in JAX."""
    with pytest.raises(NameError, match="nowhere"):
        loops.scan(lambda c, x: (c + lax.psum(x, "nowhere"), None), INIT, SQUARE)
