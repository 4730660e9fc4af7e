"""Ahead of time: the stages of compilation, donation, and the cache that processes share."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import loops
from tests.helpers.comparison import assert_same

ROOT = Path(__file__).resolve().parents[2]
INIT = jnp.linspace(0.0, 1.0, 64, dtype=jnp.float32)
ROWS = jnp.linspace(-1.0, 1.0, 320, dtype=jnp.float32).reshape(5, 64)


def step(c, x):
    """A body with a residual."""
    return jnp.sin(c) * x, c


PROGRAMS = {
    "scan": lambda lib, c, xs: lib.scan(step, c, xs),
    "fori_loop": lambda lib, c, xs: lib.fori_loop(0, 5, lambda i, c: c * 2 + xs[0], c),
    "while_loop": lambda lib, c, xs: lib.while_loop(
        lambda c: c.sum() < 500, lambda c: c * 2 + xs[0], c
    ),
    "map": lambda lib, c, xs: lib.map(lambda x: x + c, xs),
    "gradient": lambda lib, c, xs: jax.grad(lambda c: lib.scan(step, c, xs)[0].sum())(c),
    "sum": lambda lib, c, xs: lib.scan(step, c, xs)[0].sum(),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_the_stages(program):
    """Traced, lowered and compiled by steps, a loop gives what it gives at once."""
    traced = jax.jit(lambda c, xs: program(loops, c, xs)).trace(INIT, ROWS)
    assert re.search(r"\b(scan|while)\[", str(traced.jaxpr))
    lowered = traced.lower()
    assert "stablehlo.while" in lowered.as_text()
    assert_same(lowered.compile()(INIT, ROWS), program(lax, INIT, ROWS))


@programs
def test_costs_are_those_of_jaxs_loops(program):
    """XLA counts as many operations and as much memory as for `jax.lax`'s loops."""

    def costs(lib):
        compiled = jax.jit(lambda c, xs: program(lib, c, xs)).lower(INIT, ROWS).compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        assert memory is not None
        assert cost is not None
        sizes = (memory.temp_size_in_bytes, memory.output_size_in_bytes)
        return cost["flops"], cost["bytes accessed"], sizes

    flops, accessed, sizes = costs(loops)
    stock_flops, stock_accessed, stock_sizes = costs(lax)
    assert 0 < flops <= 1.02 * stock_flops
    assert 0 < accessed <= stock_accessed
    assert sizes <= stock_sizes


def test_names_in_the_compiled_program():
    """Operations of a loop are found under the scopes of the caller, the loop and the body."""

    def body(c, x):
        with jax.named_scope("inner"):
            return jnp.sin(c) * x, None

    def fun(c, xs):
        with jax.named_scope("outer"):
            return loops.scan(body, c, xs)[0]

    text = jax.jit(fun).lower(INIT, ROWS).compile().as_text()
    assert text is not None
    names = set(re.findall(r'op_name="([^"]*)"', text))
    assert any(re.fullmatch(r"jit\(fun\)/outer/while/body/.*inner/sin", name) for name in names)
    assert any(re.fullmatch(r"jit\(fun\)/outer/while/cond/lt", name) for name in names)


def donate(lib, program, positions):
    """Which arguments a call has used up, how many bytes it reused, and what it warned of."""
    fun = jax.jit(lambda c, xs: program(lib, c, xs), donate_argnums=positions)
    args = [jnp.array(INIT), jnp.array(ROWS)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = fun.lower(*args).compile()
        result = fun(*args)
    memory = compiled.memory_analysis()
    assert memory is not None
    reused = memory.alias_size_in_bytes
    texts = [str(warning.message) for warning in caught]
    return result, [x.is_deleted() for x in args], reused, texts


@programs
@pytest.mark.parametrize("positions", [(0,), (0, 1)], ids=["init", "init and xs"])
def test_donation(program, positions):
    """Donated arrays are used up, reused and warned about as with `jax.lax`'s loops."""
    result, *got = donate(loops, program, positions)
    want_result, *want = donate(lax, program, positions)
    assert got == want
    assert_same(result, want_result)


def test_donation_is_real():
    """A donated carry is deleted and its memory is the result's; one without a use is warned of."""
    _, deleted, reused, texts = donate(loops, PROGRAMS["scan"], (0, 1))
    assert (deleted, reused, texts) == ([True, True], INIT.nbytes + ROWS.nbytes, [])
    _, deleted, reused, texts = donate(loops, PROGRAMS["sum"], (0,))
    assert (deleted, reused) == ([False, False], 0)
    assert ["float32[64]" in text for text in texts] == [True]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two fresh processes with one cache folder and different hash seeds report."""
    folder = str(tmp_path_factory.mktemp("cache"))
    reports = []
    for seed in ("1", "2"):
        env = dict(os.environ, PYTHONHASHSEED=seed, JAX_PLATFORMS="cpu")
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        run = subprocess.run(
            [sys.executable, "-m", "tests.helpers.fresh_process", folder],
            env=env,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        reports.append(json.loads(run.stdout))
    return reports


def test_the_persistent_cache_is_hit(two_processes):
    """A second process compiles nothing anew: neither gradients, fresh lambdas nor eager loops."""
    first, second = two_processes
    assert first["misses"] >= len(first["modules"])
    assert second["misses"] == 0
    assert second["hits"] == first["misses"] + first["hits"]


def test_lowered_modules_are_deterministic(two_processes):
    """Two processes write the same module for the same program, names and source lines included."""
    first, second = two_processes
    assert len(first["modules"]) == 5
    assert all("stablehlo.while" in text for text in first["modules"].values())
    assert first["modules"] == second["modules"]
