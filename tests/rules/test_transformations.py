"""Every program of the catalogue under every transformation, against JAX's loops and Python's."""

import jax
import pytest

from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, PYTHON
from tests.helpers.programs import CORE, PROGRAMS, Program
from tests.rules.transformations import FIRST, PAIRS, REST, Transformation


def cases(transformations: list[Transformation], *, core_only: bool) -> list[object]:
    """The pairs of a program and a transformation that JAX's loops support."""
    return [
        pytest.param(entry, transformation, id=f"{transformation.name}-{entry.name}")
        for entry in PROGRAMS
        for transformation in transformations
        if entry.reverse_mode or not transformation.reverse
        if entry.core or not core_only
    ]


def check(entry: Program, transformation: Transformation) -> None:
    """Compares ours with JAX's loops, and with Python's where those can run at all."""
    args = entry.arguments()
    got = transformation.apply(entry.bind(OURS), args)
    want = transformation.apply(entry.bind(JAX), args)
    assert_same(got, want, rtol=entry.rtol)
    if entry.python_can_run and not (entry.concrete_in_python and transformation.abstract):
        reference = transformation.apply(entry.bind(PYTHON), args)
        assert_same(got, reference, rtol=entry.rtol)


@pytest.mark.parametrize(("entry", "transformation"), cases(FIRST, core_only=False))
def test_every_program(entry: Program, transformation: Transformation) -> None:
    """Each program has the oracles' values and types, eager, compiled, batched, differentiated."""
    check(entry, transformation)


@pytest.mark.parametrize(("entry", "transformation"), cases(REST, core_only=True))
def test_every_transformation(entry: Program, transformation: Transformation) -> None:
    """Each core program has the oracles' values and types under each transformation."""
    check(entry, transformation)


@pytest.mark.parametrize(("entry", "transformation"), cases(PAIRS, core_only=True))
def test_pairs(entry: Program, transformation: Transformation) -> None:
    """Each core program has the oracles' values and types under two transformations at once."""
    check(entry, transformation)


@pytest.mark.parametrize("entry", CORE, ids=lambda entry: entry.name)
def test_disable_jit(entry: Program) -> None:
    """Without jit each program gives the values and the types that it gives with it.

    JAX's loops without jit are no oracle: they refuse ys whose type changes between steps, and
    hand Python integers to the body of a fori_loop.
    """
    args = entry.arguments()
    with jax.disable_jit():
        got = entry.bind(OURS)(*args)
    assert_same(got, entry.bind(JAX)(*args), rtol=entry.rtol)
