"""Random loop programs do what JAX's loops and plain Python ones do, under each transformation.

Bodies that change the type of a carry are among them, and have to be refused. JAX's loops promote a
weak init once and refuse a body that needs it twice; ours and Python's go on until nothing changes.
Where JAX alone refuses the comparison is with Python's.

The examples are few and the same every time. HYPOTHESIS_PROFILE=dev searches.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.python_loops import map_by_hand
from tests.helpers.comparison import assert_same
from tests.helpers.implementations import JAX, OURS, PYTHON, Implementation
from tests.properties.random_programs import RandomLoop, random_loops
from tests.rules.transformations import run_eager, run_jit, run_jvp, run_value_and_grad

# A program is compiled for each implementation, so a third of the profile's number is enough.
few = settings(max_examples=settings().max_examples // 3)

RTOL = 1e-4

Arguments = tuple[Any, ...]
Apply = Callable[[Callable[..., Any], Arguments], Any]


def arguments(program: RandomLoop) -> Arguments:
    """Arguments between -1 and 1.2: float inits, a constant and the rows."""
    shape = program.body.shape
    rows = [(program.length, *shape)] if program.kind == "scan" else []
    all_shapes = [shape] * (program.num_arguments - len(rows)) + rows
    return tuple(
        jnp.asarray(np.sin(1.0 + 2.0 * i + np.arange(np.prod(s, dtype=int))).reshape(s) + 0.2, "f4")
        for i, s in enumerate(all_shapes)
    )


REFUSED = "the carry changes its type"


def outcome(loops: Implementation, program: RandomLoop, apply: Apply, args: Arguments) -> Any:
    """What comes out, or that the loop refuses the program."""
    try:
        return apply(lambda *a: program(loops, *a), args)
    except TypeError as error:
        if loops is PYTHON or "must have equal types" in str(error):
            return REFUSED
        raise


def check(program: RandomLoop, args: Arguments, apply: Apply, in_python: Apply | None) -> None:
    """Compares ours with both oracles; `in_python` is how to apply to a Python loop, if at all.

    Weak types of derivatives have one oracle each. A gradient has the type of what it is a gradient
    for, and JAX's is weak here and there where that is not. A tangent of a Python loop without
    steps is converted as the carry is, where the primitives give it the type of the body's.
    """
    got = outcome(OURS, program, apply, args)
    if in_python is not None:
        reference = outcome(PYTHON, program, in_python, args)
        assert_same(got, reference, rtol=RTOL, weak_types=apply is not run_jvp)
    want = outcome(JAX, program, apply, args)
    if isinstance(want, str) and program.has_promotable_init:
        return
    assert_same(got, want, rtol=RTOL, weak_types=apply is not run_value_and_grad)


FORWARD = {"eager": run_eager, "jit": run_jit, "jvp": run_jvp}
ALL = FORWARD | {"value_and_grad": run_value_and_grad}


@pytest.mark.parametrize("kind", ["scan", "fori"])
@pytest.mark.parametrize("transformation", ALL)
@few
@given(data=st.data())
def test_known_number_of_steps(kind: str, transformation: str, data: st.DataObject):
    """A random scan, or fori_loop with known bounds, has the oracles' values and types."""
    program, apply = data.draw(random_loops(kind)), ALL[transformation]
    check(program, arguments(program), apply, in_python=apply)


@pytest.mark.parametrize("transformation", FORWARD)
@few
@given(program=random_loops("while"))
def test_while_loop(transformation: str, program: RandomLoop):
    """A random while_loop has the oracles' values and types."""
    apply = FORWARD[transformation]
    in_python = apply if transformation != "jit" else None
    check(program, arguments(program), apply, in_python)


@pytest.mark.parametrize("kind", ["scan", "fori", "while"])
@few
@given(data=st.data())
def test_lanes(kind: str, data: st.DataObject):
    """A random loop has the oracles' values and types in lanes, whichever arguments have them."""
    program = data.draw(random_loops(kind))
    args = arguments(program)
    axes = st.sampled_from([0, None])
    in_axes = data.draw(st.tuples(*[axes] * len(args)).filter(lambda axes: 0 in axes))
    lanes = [
        arg if axis is None else jnp.stack([arg, 0.3 * arg, arg - 0.7])
        for arg, axis in zip(args, in_axes, strict=True)
    ]

    def apply(fun: Callable[..., Any], lanes: Arguments) -> Any:
        return jax.vmap(fun, in_axes)(*lanes)

    def by_hand(fun: Callable[..., Any], lanes: Arguments) -> Any:
        batched = [lane for lane, axis in zip(lanes, in_axes, strict=True) if axis == 0]

        def one_lane(*rows: Any) -> Any:
            rest = iter(rows)
            pairs = zip(lanes, in_axes, strict=True)
            return fun(*[lane if axis is None else next(rest) for lane, axis in pairs])

        return map_by_hand(one_lane, *batched)

    check(program, tuple(lanes), apply, in_python=by_hand)
