"""64-bit types: the same programs with the switch on, and what the switch changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same, type_of, types_of
from tests.helpers.implementations import JAX, OURS, Implementation
from tests.helpers.programs import PROGRAMS, Program
from tests.rules.transformations import FIRST, Transformation

NAMES = {
    "scan_recurrence",
    "scan_weak_init",
    "scan_mixed_leaves",
    "scan_complex",
    "fori_counts",
    "fori_traced",
    "while_weak_init",
    "map_in_batches",
}


CASES = [
    pytest.param(entry, transformation, id=f"{transformation.name}-{entry.name}")
    for entry in PROGRAMS
    for transformation in FIRST
    if entry.name in NAMES
    if entry.reverse_mode or not transformation.reverse
]


@pytest.mark.parametrize(("entry", "transformation"), CASES)
def test_programs_in_double_precision(entry: Program, transformation: Transformation, x64):
    """With 64-bit types on, programs on float64 give JAX's values and types."""
    args = entry.arguments(np.float64)
    got = transformation.apply(entry.bind(OURS), args)
    assert_same(got, transformation.apply(entry.bind(JAX), args), rtol=1e-9)


def test_narrow_types_stay_narrow(impl: Implementation, x64):
    """With 64-bit types on, a float32 carry stays one beside weak numbers."""
    step = lambda c, x: (c * 0.5 + x, c > 1.0)
    got = impl.scan(step, jnp.float32(1), jnp.ones(3, jnp.float32))
    assert types_of(got) == [((), jnp.float32, False), ((3,), jnp.bool_, False)]


def test_python_numbers_are_wide(impl: Implementation, x64):
    """With 64-bit types on, Python's numbers make weak 64-bit carries."""
    got = impl.scan(lambda c, _: ((c[0] + 1, c[1] * 2.0), None), (0, 1.0), None, length=3)[0]
    assert types_of(got) == [((), jnp.int64, True), ((), jnp.float64, True)]


def test_python_numbers_give_way(impl: Implementation, x64):
    """With 64-bit types on, a weak init takes the body's narrower type."""
    got = impl.scan(lambda c, x: (c + x, None), 0.0, jnp.ones(3, jnp.float32))[0]
    assert_same(got, jnp.float32(3))
    got = impl.while_loop(lambda c: c < 3, lambda c: c + jnp.int8(1), 0)
    assert_same(got, jnp.int8(3))


@pytest.mark.parametrize("wide", [False, True])
def test_type_of_a_python_index(impl: Implementation, wide):
    """The index between Python bounds is a weak integer of the width in force."""
    with jax.enable_x64(wide):
        got = impl.fori_loop(0, 3, lambda i, c: i, 0)
        assert type_of(got) == ((), jnp.int64 if wide else jnp.int32, True)


def test_switch_between_calls(impl: Implementation):
    """One body, called with the switch off and on, is traced for each."""
    step = lambda c, x: (c + x, c * 1.5)
    rows = np.arange(3.0)
    for wide, dtype in ((False, jnp.float32), (True, jnp.float64), (False, jnp.float32)):
        with jax.enable_x64(wide):
            carry, ys = impl.scan(step, 0.0, rows)
            assert (carry.dtype, ys.dtype) == (dtype, dtype)


def test_reduction_that_widens_is_refused(impl: Implementation, x64):
    """A strong int32 carry that a sum makes int64 is an error, not a conversion."""
    with pytest.raises(TypeError):
        impl.scan(lambda c, x: (jnp.sum(jnp.stack([c, x])), None), jnp.int32(0), jnp.int32([1, 2]))
