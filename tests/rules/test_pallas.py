"""Kernels whose bodies loop: interpreted, simulated, batched and lowered, beside JAX's loops."""

import importlib
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from loops import _jax
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, Implementation

ROOT = Path(__file__).resolve().parents[2]
X = jnp.linspace(0.3, 1.1, 8)


def prefix_sums(loops: Implementation):
    """Reads one Ref and writes another at the index of a fori_loop."""

    def kernel(x_ref, out_ref):
        def body(i, total):
            out_ref[i] = total + x_ref[i]
            return out_ref[i]

        loops.fori_loop(0, x_ref.shape[0], body, jnp.float32(0.0))

    return kernel


def scanned_values(loops: Implementation):
    """A scan over values that were read before."""

    def kernel(x_ref, out_ref):
        total, ys = loops.scan(lambda c, x: (c + x, c * x), jnp.float32(0.0), x_ref[...])
        out_ref[...] = ys + total

    return kernel


def loop_in_loop(loops: Implementation):
    """A while loop in a fori_loop in a branch of a cond."""

    def grow(c):
        return loops.while_loop(lambda v: v < 2.0, lambda v: 1.5 * v, c)

    def both(total):
        return loops.fori_loop(0, 3, lambda i, c: 0.5 * grow(c), total)

    def kernel(x_ref, out_ref):
        total = jax.lax.cond(x_ref[0] > 0.0, both, lambda c: c, x_ref[1])
        out_ref[...] = total * x_ref[...]

    return kernel


def with_scratch(loops: Implementation):
    """A loop over scratch memory that lives in a part of the kernel."""

    def kernel(x_ref, out_ref):
        def scoped(scratch):
            scratch[...] = x_ref[...]

            def body(i, _):
                scratch[...] = scratch[...] * x_ref[i]

            loops.fori_loop(0, 3, body, None)
            out_ref[...] = scratch[...]

        pl.run_scoped(scoped, pltpu.VMEM(x_ref.shape, x_ref.dtype))

    return kernel


KERNELS = [prefix_sums, scanned_values, loop_in_loop, with_scratch]
MODES = {"interpret": True, "simulated_tpu": pltpu.InterpretParams()}


def call(kernel, interpret=True, **params):
    """The kernel as a function of one array."""

    def fun(x):
        out_shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=out_shape, interpret=interpret, **params)(x)

    return fun


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("interpret", MODES.values(), ids=MODES)
def test_interpreted(kernel, interpret):
    """A kernel with our loops computes what it does with JAX's, in both interpreters."""
    assert_same(call(kernel(OURS), interpret)(X), call(kernel(JAX), interpret)(X))


@pytest.mark.parametrize("interpret", MODES.values(), ids=MODES)
def test_grid(interpret):
    """A kernel that runs for each block of a grid loops over its block."""

    def kernel(loops):
        def run(x_ref, out_ref):
            step = pl.program_id(0).astype(jnp.float32)

            def body(i, c):
                out_ref[i] = c + x_ref[i] * step
                return out_ref[i]

            loops.fori_loop(0, x_ref.shape[0], body, jnp.float32(0.0))

        return run

    block = pl.BlockSpec((4,), lambda i: (i,))
    blocks = {"grid": (2,), "in_specs": [block], "out_specs": block}
    got = call(kernel(OURS), interpret, **blocks)(X)
    assert_same(got, call(kernel(JAX), interpret, **blocks)(X))


@pytest.mark.parametrize("interpret", MODES.values(), ids=MODES)
def test_a_ref_in_condition_and_body(interpret):
    """A condition reads what the body wrote: JAX's loop, interpreted, would not end here."""

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

        def body(count):
            out_ref[...] = 2.0 * out_ref[...]
            return count + 1

        OURS.while_loop(lambda _: out_ref[0] < 3.0, body, 0)

    assert_same(call(kernel, interpret)(X), 16.0 * X)


def test_a_semaphore_in_a_loop():
    """A body may hold what only the interpreter has a type for."""

    def kernel(loops):
        def run(x_ref, out_ref, semaphore):
            def body(i, _):
                pl.semaphore_signal(semaphore, 1)

            loops.fori_loop(0, 3, body, None)
            out_ref[...] = x_ref[...] * pl.semaphore_read(semaphore).astype(jnp.float32)

        return run

    scratch = {"scratch_shapes": [pltpu.SemaphoreType.REGULAR]}
    assert_same(call(kernel(OURS), **scratch)(X), call(kernel(JAX), **scratch)(X))


def test_kernel_on_a_mesh_of_cores():
    """A kernel that is started on the cores of a device, simulated, copies in a loop."""

    def kernel(x_ref, out_ref):
        OURS.fori_loop(0, 2, lambda i, _: pltpu.sync_copy(x_ref, out_ref), None)

    if hasattr(pltpu, "TensorCoreMesh"):
        mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    else:
        mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)
    out_type = jax.ShapeDtypeStruct(X.shape, X.dtype)
    started = pl.kernel(kernel, out_type=out_type, mesh=mesh, interpret=pltpu.InterpretParams())
    assert_same(started(X), X)


def test_batched():
    """A kernel with our loops can be batched."""
    xs = jnp.stack([X, 0.2 * X])
    assert_same(jax.vmap(call(prefix_sums(OURS)))(xs), jax.vmap(call(prefix_sums(JAX)))(xs))


def test_differentiated():
    """A kernel with our loops has the forward derivative that it has with JAX's."""
    derivative = lambda loops: jax.jvp(call(scanned_values(loops)), (X,), (jnp.cos(X),))
    assert_same(derivative(OURS), derivative(JAX))


def test_lowered_for_a_tpu():
    """A kernel with our loops is lowered for an accelerator, to the program of JAX's loops."""

    def kernel(loops):
        def run(x_ref, out_ref):
            step = lambda i, c: 0.5 * c + x_ref[...]
            start = loops.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 2.0 * s[1]), (0, 1.0))
            out_ref[...] = loops.fori_loop(0, 8, step, start[1] * x_ref[...])

        return run

    def program(loops):
        lowered = jax.jit(call(kernel(loops), False)).trace(jnp.ones((8, 128)))
        return lowered.lower(lowering_platforms=("tpu",)).as_text()

    assert "tpu_custom_call" in program(OURS)
    assert program(JAX) == program(OURS)


def fusion_dtype():
    """The module of Pallas's fusion types, and a type that stands for two arrays of floats."""
    module = importlib.import_module(_jax.PALLAS_FUSION_TYPES)

    class Pair(module.FusionDType):
        def abstract_pack(self, first, second):
            return first.update(dtype=self)

        def abstract_unpack(self, x):
            return [x.update(dtype=jnp.dtype("float32"))] * 2

        def __str__(self):
            return "pair"

        def has_no_blocks(self, *args, **kwargs):
            raise NotImplementedError

        pull_block_spec_one_step = has_no_blocks
        unpack_push_block_spec = unpack_pull_block_spec = has_no_blocks

    return module, Pair()


def fused_scan(loops: Implementation, module, pair):
    """A scan whose body packs two values into one of a fusion type and takes them out again."""

    def step(c, x):
        a, b = module.unpack(module.pack(c, x, dtype=pair))
        inner = loops.fori_loop(0, 2, lambda i, v: v + module.unpack(packed(v, b))[1], a)
        return inner, a * b

    packed = lambda a, b: module.pack(a, b, dtype=pair)
    return lambda x: loops.scan(step, x[0], x)


def fused_while(loops: Implementation, module, pair):
    """A while_loop that closes over a value of a fusion type."""

    def run(x):
        both = module.pack(x, 2.0 * x, dtype=pair)
        grow = lambda c: c + sum(module.unpack(both))
        return loops.while_loop(lambda c: c[0] < 5.0, grow, x)

    return run


@pytest.mark.parametrize("program", [fused_scan, fused_while])
def test_fusion_types(program):
    """Values of Pallas's fusion types in bodies are resolved, as in the bodies of JAX's loops."""
    module, pair = fusion_dtype()
    resolved = lambda loops: jax.jit(module.physicalize(program(loops, module, pair)))(X)
    assert_same(resolved(OURS), resolved(JAX))


def test_pallas_loaded_first():
    """It does not matter whether Pallas or our loops are loaded first."""
    code = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import loops

def kernel(x_ref, out_ref):
    out_ref[...] = loops.fori_loop(0, 3, lambda i, c: 2 * c, x_ref[...])

interpret = pltpu.InterpretParams()
print(*pl.pallas_call(kernel, out_shape=jnp.ones(2), interpret=interpret)(jnp.ones(2)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert ["8.0", "8.0"] == run.stdout.split()
