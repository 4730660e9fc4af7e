"""Promotion of weakly typed inputs: our rule on avals beside what JAX's loop does with values."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.dtypes import TypePromotionError

from checks import CarryTypeError, promote_weak_avals, promote_weak_dtype
from checks.matching import avals_match


def aval(dtype, *, weak=False, shape=()):
    """A type made by hand."""
    return jax.core.ShapedArray(shape, jnp.dtype(dtype), weak_type=weak)


@pytest.fixture(autouse=True)
def _standard_promotion():
    """The suite's strict promotion refuses what these tests are about."""
    with jax.numpy_dtype_promotion("standard"):
        yield


SCALARS = [0, 0.0, 0j, True, np.int8(0), np.float32(0), np.float16(0)]


def zero(dtype):
    """Makes a function that makes a scalar of a dtype."""
    return lambda: jnp.zeros((), dtype)


STRONG = (
    *("bool", "int4", "int8", "uint8", "int16", "int32"),
    *("float8_e4m3fn", "bfloat16", "float16", "float32", "complex64"),
)
OUTPUTS = {dtype: zero(dtype) for dtype in STRONG} | {
    "weak int": lambda: jnp.asarray(1),
    "weak float": lambda: jnp.asarray(1.0),
    "weak complex": lambda: jnp.asarray(1j),
    "matrix": lambda: jnp.zeros((2, 2), jnp.float32),
}


def types_of_traces(init, make_output):
    """The types that a body of JAX's scan gets, one for each time it is traced."""
    seen = []

    def body(carry, _):
        seen.append(jax.typeof(carry))
        return make_output(), None

    with contextlib.suppress(TypeError, TypePromotionError):  # such a loop has no more traces
        jax.lax.scan(body, init, None, length=1)
    return seen


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("init", SCALARS, ids=repr)
@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
def test_promotion_is_what_jax_does(init, output, wide):
    """The promoted type is the one with which JAX traces the body for the second time."""
    with jax.enable_x64(wide):
        make_output = OUTPUTS[output]
        first, *second = types_of_traces(init, make_output)
        (promoted,) = promote_weak_avals([first], [jax.typeof(make_output())])
        assert ([] if promoted is None else [promoted]) == second


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "float32", "complex64"])
@pytest.mark.parametrize("output", ["bool", "int16", "bfloat16", "float32", "complex64"])
def test_precision_of_a_weak_type_has_no_say(dtype, output):
    """Weak arrays of any precision promote as JAX's loop promotes them."""
    seen = []

    def loop(init):
        seen.extend(types_of_traces(init, OUTPUTS[output]))
        return init

    jax.eval_shape(loop, jax.ShapeDtypeStruct((), dtype, weak_type=True))
    first, *second = seen
    assert first == aval(dtype, weak=True)
    (promoted,) = promote_weak_avals([first], [aval(output)])
    assert ([] if promoted is None else [promoted]) == second


def test_strong_inputs_are_left_alone():
    """No strong input is promoted, whatever comes out."""
    outputs = [aval("float32"), aval("complex64"), aval("int8")]
    assert promote_weak_avals([aval("int32")] * 3, outputs) == [None] * 3


def test_weak_inputs_that_match_stay_weak():
    """A weak input whose output has its dtype keeps its weak type."""
    weak = aval("float32", weak=True)
    assert promote_weak_avals([weak, weak], [aval("float32"), weak]) == [None, None]


def test_all_but_dtype_and_weak_type_stay():
    """The promoted type keeps the input's shape, also where the output has another."""
    (promoted,) = promote_weak_avals(
        [aval("int32", weak=True, shape=(3,))], [aval("float32", shape=(2,))]
    )
    assert promoted == aval("float32", shape=(3,))
    assert not promoted.weak_type


def test_a_shape_that_grows_is_told_without_the_dtype():
    """After promotion the check names the shape alone, as for a scalar of the right dtype."""
    from checks import _check_carry_type

    weak, output = jax.typeof(0), aval("float32", shape=(2,))
    (promoted,) = promote_weak_avals([weak], [output])
    with pytest.raises(CarryTypeError) as caught:
        _check_carry_type("scan body", lambda c: c, promoted, jax.tree.structure(0), [output])
    assert caught.value.mismatches[0].kind == "shape"


@pytest.mark.parametrize(
    "output",
    [
        jax.typeof(jax.random.key(0)),
        jax.core.ShapedArray((), jax.dtypes.float0),
    ],
    ids=str,
)
def test_dtypes_without_a_promotion_are_left_to_the_check(output):
    """Where JAX's promotion raises, nothing is promoted and the carry check refuses the pair."""
    weak = jax.typeof(0)
    with pytest.raises(ValueError, match=r"promotion"):
        jnp.result_type(int, output)
    assert promote_weak_avals([weak], [output]) == [None]
    assert not avals_match(weak, output)


def test_strict_promotion_is_respected():
    """Under strict promotion a Python int may become a float32 but a bool no number."""
    with jax.numpy_dtype_promotion("strict"):
        assert promote_weak_dtype(jax.typeof(0), aval("float32")) == np.dtype("float32")
        assert promote_weak_dtype(jax.typeof(0), aval("bool")) is None


def test_refs_are_left_alone():
    """A type that is no array's is never promoted, on either side."""
    ref = jax.typeof(jax.new_ref(jnp.ones(2)))
    assert promote_weak_avals([ref, jax.typeof(0)], [aval("float32"), ref]) == [None, None]
