"""The pytest plug-in, run by pytest in processes of their own."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import loops
from diagnostics.loop_traces import count_loop_traces

ROOT = Path(__file__).resolve().parents[2]

COUNTED = """
import jax.numpy as jnp
import loops


def body(total, x):
    return total + x, None


def test_one_trace_serves_all_calls(loop_traces):
    for _ in range(3):
        loops.scan(body, 0, jnp.ones(3))
    loop_traces.assert_at_most(traces=1, passes=2, body=body)
    loop_traces.assert_at_most(traces=1, body="body")
    assert loop_traces.compilations > 0


def test_a_retrace_is_seen(loop_traces):
    for size in (4, 5):
        loops.scan(body, jnp.zeros(size), jnp.ones((3, size)))
    loop_traces.assert_at_most(traces=1, body=body)


def test_a_promotion_around_a_loop_is_no_trace_of_it(loop_traces):
    def inner(i, c):
        return c * 2.0

    def outer(i, c):
        return c + loops.fori_loop(0, 2, inner, jnp.float32(1))

    loops.fori_loop(0, 3, outer, 0)
    assert (1, 1) == (loop_traces.traces(outer), loop_traces.traces(inner))
    assert loop_traces.passes(outer) >= 2


def test_compilations_are_bounded(loop_traces):
    loops.scan(body, jnp.zeros(7), jnp.ones((3, 7)))
    loop_traces.assert_at_most(compilations=0)
"""


def add(rate, total, x):
    """A body with an argument to be filled in."""
    return total + rate * x, None


class Adder:
    """A body that is a method."""

    def step(self, total, x):
        """Add."""
        return total + x, None


def test_any_callable_can_be_counted():
    """A partial, a method and a jitted body are found by themselves; what is no body is refused."""
    for body in (functools.partial(add, 0.5), Adder().step, jax.jit(functools.partial(add, 2.0))):
        with count_loop_traces() as seen:
            loops.scan(body, jnp.float32(0), jnp.ones(3))
        assert seen.traces(body) == 1
    with pytest.raises(TypeError, match="body must be a function or the name of one"):
        seen.traces(3)


def run_pytest(folder: Path, source: str, *options: str) -> str:
    """What pytest prints for a test file, with the plug-in."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "carryloops_pytest", "-q", *options, "."]
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": ""}
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    return run.stdout + run.stderr


def test_the_fixture_counts(tmp_path):
    """Traces, passes and compilations are told apart, and a limit that is passed fails."""
    output = run_pytest(tmp_path, COUNTED)

    assert "2 failed, 2 passed" in output, output
    assert "2 body traces where at most 1 were allowed" in output
    assert "where at most 0 were allowed" in output


@pytest.mark.parametrize("options", [(), ("-n", "1", "-p", "xdist")], ids=["alone", "xdist"])
def test_the_report_shows_each_loop(tmp_path, options):
    """Contract and cost of a loop that a test traced stand at the end, also from a worker."""
    source = COUNTED.split("def test_a_retrace", maxsplit=1)[0]

    output = run_pytest(tmp_path, source, "--loops-report", *options)

    assert "1 passed" in output, output
    assert "scan of body at" in output
    assert "  carry: int32[] (weak) -> float32[]" in output
    assert "  3 steps, 4 bytes carried, 1 equation in the body, 2 passes in" in output


def test_a_run_without_it_imports_no_jax(tmp_path):
    """Whoever has the plug-in installed and does not use it pays nothing."""
    source = (
        "import sys\n\ndef test_nothing():\n    assert not {'jax', 'loops'} & set(sys.modules)\n"
    )

    output = run_pytest(tmp_path, source)

    assert "1 passed" in output, output
    assert "loops" not in output
