"""The strategies give what they say, shrink to what they say, and refuse wrong arguments."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from jax.core import ShapedArray

import loops
from checks import CarryTypeError, strategies
from checks.strategies import Pair, Record

s: Any = strategies  # of any type, because wrong arguments are among the tests
ROOT = Path(__file__).resolve().parents[2]


def smallest(strategy, condition=lambda _: True):
    """What a strategy shrinks to."""
    return hypothesis.find(strategy, condition)


@pytest.mark.parametrize(
    ("strategy", "target"),
    [
        (s.dtypes(), "dtype('float32')"),
        (s.dtypes(kinds=["int", "bool"]), "dtype('int32')"),
        (s.shapes(), "()"),
        (s.shapes(min_dims=1, min_side=2), "(2,)"),
        (s.avals(), "ShapedArray(float32[])"),
        (s.avals(weak=True), "ShapedArray(float32[], weak_type=True)"),
        (s.arrays(), "Array(0., dtype=float32)"),
        (s.scalars(), "Array(0., dtype=float32)"),
        (s.scalars(weak=True), "0.0"),
        (s.leaves(), "Array(0., dtype=float32)"),
        (
            s.inits({"a": 1, "b": (jnp.ones(2),)}),
            "{'a': 0, 'b': (Array([0., 0.], dtype=float32),)}",
        ),
        (s.xs(jnp.int32(1)), "Array([], shape=(0,), dtype=int32)"),
    ],
    ids=repr,
)
def test_shrink_targets(strategy, target):
    """Each strategy shrinks to what its docstring names."""
    assert target == repr(smallest(strategy))


@pytest.mark.parametrize(
    ("condition", "smallest_carry"),
    [
        (lambda c: True, 7),
        (lambda c: c is None, None),
        (lambda c: isinstance(c, Pair), Pair(7, 7)),
        (lambda c: isinstance(c, Record), Record(7, 7)),
        (lambda c: isinstance(c, list) and len(c) == 1, [7]),
        (lambda c: isinstance(c, dict) and len(c) == 2, {"a": 7, "b": 7}),
        (lambda c: isinstance(c, list) and any(isinstance(x, dict) for x in c), [{}]),
    ],
)
def test_carries_shrink(condition, smallest_carry):
    """A carry shrinks to the least that has what a condition asks for."""
    assert smallest_carry == smallest(s.carries(st.just(7)), condition)


@pytest.mark.parametrize(
    ("loop", "drift", "result"),
    [
        ("scan", None, "return v0, None"),
        ("while", None, "return v0"),
        ("fori", None, "return v0"),
        ("scan", "dtype", 'return v0.astype("int32"), None'),
        ("while", "structure", "return (v0,)"),
        ("fori", "shape", "return jnp.asarray(v0)[None]"),
        ("scan", "weak", 'return jax.lax.convert_element_type(v0, "float32"), None'),
    ],
)
def test_bodies_shrink(loop, drift, result):
    """A body shrinks to one that hands a number on, but for the drift."""
    body = smallest(s.bodies(loop=loop, drift=drift))
    lines = [line.strip() for line in body.source.splitlines()]

    assert [line for line in lines if line.startswith(("v", "return"))] == ["v0 = carry", result]


@pytest.mark.parametrize("kind", ["scan", "fori", "while"])
def test_programs_shrink(kind):
    """A program shrinks to one loop of no steps that hands its argument on."""
    source = str(smallest(s.loop_programs(kinds=[kind])))
    steps = {"scan": "length=0", "fori": "fori_loop(0, 0,", "while": "v1 < 0"}

    assert steps[kind] in source
    assert "args = (jnp.float32(0.0),)" in source
    assert source.count("def ") == (2 if kind != "while" else 3)


def test_floats_are_rounded_and_may_be_infinite():
    """What a strategy gives for a float's elements need not be exact in its dtype."""
    assert smallest(s.inits(jnp.bfloat16(0), elements=st.just(0.1))) == jnp.bfloat16(0.1)
    assert jnp.isinf(smallest(s.inits(jnp.float16(0), elements=st.just(np.inf))))
    assert jnp.isnan(smallest(s.inits(jnp.float32(0), elements=st.just(np.nan))))


def test_keys_shrink():
    """A key shrinks to that of seed zero."""
    assert [0, 0] == jax.random.key_data(smallest(s.keys())).tolist()


@given(s.carries())
def test_carries_can_be_carried(carry):
    """Every carry goes through a scan that hands it on, and keeps its types."""
    out, _ = loops.scan(lambda c, _: (c, None), carry, None, length=2)

    assert jax.tree.structure(carry) == jax.tree.structure(out)
    for before, after in zip(jax.tree.leaves(carry), jax.tree.leaves(out), strict=True):
        assert jax.typeof(jnp.asarray(before)) == jax.typeof(after)


@pytest.mark.parametrize(
    "condition",
    [
        lambda leaf: isinstance(leaf, int),
        lambda leaf: isinstance(leaf, complex),
        lambda leaf: leaf.dtype == jnp.bfloat16,
        lambda leaf: leaf.dtype == bool and leaf.ndim == 2,
        lambda leaf: leaf.size == 0,
        lambda leaf: leaf.weak_type and leaf.ndim,
        lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key),
    ],
)
def test_leaves_have_all_sorts(condition):
    """Numbers of Python, narrow and weak and empty arrays and keys are among the leaves."""

    def has(leaf):
        try:
            return condition(leaf)
        except AttributeError:
            return False

    smallest(s.leaves(), has)


def test_wide_dtypes_are_drawn_in_x64_mode(x64):
    """The 64-bit dtypes are there where JAX has them."""
    assert np.float64 == smallest(s.dtypes(), lambda dtype: dtype == np.float64)


@given(st.data())
def test_inits_have_the_types_of_what_they_are_like(data):
    """An init differs from what it is like in its values alone."""
    like = data.draw(s.carries())
    init = data.draw(s.inits(like))

    kind = lambda leaf: (type(leaf), jax.typeof(jnp.asarray(leaf)))
    assert jax.tree.map(kind, like) == jax.tree.map(kind, init)


@given(st.data())
def test_xs_have_one_axis_more(data):
    """Rows of one type, stacked."""
    row = data.draw(s.avals())
    xs = data.draw(s.xs({"x": row}, lengths=st.just(2)))

    want = ShapedArray((2, *row.shape), row.dtype, weak_type=row.weak_type)
    assert want == jax.typeof(xs["x"])


def run(body):
    """Run a body in the loop that it is for."""
    if body.loop == "scan":
        return loops.scan(body, body.carry, body.x[None])[0]
    if body.loop == "fori":
        return loops.fori_loop(0, 1, body, body.carry)
    return loops.while_loop(lambda _: False, body, body.carry)


@pytest.mark.parametrize("loop", ["scan", "while", "fori"])
@given(data=st.data())
def test_bodies_keep_the_contract(loop, data):
    """A body without a drift is accepted, and its carry comes out with the types of its init."""
    body = data.draw(s.bodies(loop=loop))
    out = run(body)

    kind = lambda leaf: jax.typeof(jnp.asarray(leaf))
    assert jax.tree.map(kind, body.carry) == jax.tree.map(kind, out)


@pytest.mark.parametrize("drift", ["dtype", "shape", "structure"])
@pytest.mark.parametrize("loop", ["scan", "while", "fori"])
@given(data=st.data())
def test_drifts_are_refused_where_they_are(loop, drift, data):
    """A body with a drift is refused, and the error names the leaf that drifts and no other."""
    body = data.draw(s.bodies(loop=loop, drift=drift))
    with pytest.raises(CarryTypeError) as caught:
        run(body)

    (mismatch,) = caught.value.mismatches
    slots = len(mismatch.path) - len(body.path)  # a fori_loop has its carry beside the index
    assert body.path == mismatch.path[slots:]
    assert drift == mismatch.kind


@given(s.bodies(drift="weak"))
def test_a_drift_in_the_weak_type_is_no_error(body):
    """A weak leaf that comes out strong with the same dtype is accepted, and comes out strong."""
    out = dict(jax.tree_util.tree_leaves_with_path(run(body)))

    assert not out[body.path].weak_type


def test_a_path_may_be_chosen():
    """The drift is in the leaf that is asked for."""
    carry = {"a": jnp.float32(0), "b": [jnp.int32(0), jnp.float32(0)]}
    path = jax.tree_util.tree_leaves_with_path(carry)[1][0]
    body = smallest(s.bodies(carries=st.just(carry), drift="dtype", path=path))

    assert "carry['b'][0]" == body.component


@given(s.loop_programs())
def test_programs_are_reproduced_by_their_source(program):
    """The printed source, run by itself, is the same program with the same arguments."""
    namespace = {}
    exec(str(program), namespace)  # noqa: S102

    with jax.numpy_dtype_promotion("standard"):
        jaxprs = [
            str(jax.make_jaxpr(lambda *a, f=f: f(loops, *a))(*args))
            for f, args in (
                (program, program.arguments()),
                (namespace["program"], namespace["args"]),
            )
        ]
    assert jaxprs[0] == jaxprs[1]


@pytest.mark.parametrize("kind", ["scan", "fori", "while"])
def test_programs_have_the_loops_that_are_asked_for(kind):
    """A program of one kind calls no other loop."""
    calls = {"scan": "loops.scan(", "fori": "loops.fori_loop(", "while": "loops.while_loop("}
    source = str(smallest(s.loop_programs(kinds=[kind])))

    assert [kind] == [name for name, call in calls.items() if call in source]


@pytest.mark.parametrize("text", ["jax.lax.cond", ".at[", "jax.random.uniform", "def loop2("])
def test_programs_have_all_sorts(text):
    """Conditionals, updates in place, random numbers and loops in loops are drawn."""
    smallest(s.loop_programs(), lambda program: text in str(program))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: s.dtypes(kinds=["quaternion"]), "each of kinds must be one of"),
        (lambda: s.dtypes(kinds=[]), "kinds must be a collection"),
        (lambda: s.dtypes(kinds="float"), "kinds must be a collection"),
        (lambda: s.shapes(min_dims=3, max_dims=2), "min_dims=3 is above max_dims=2"),
        (lambda: s.shapes(min_side=-1), "min_side must be at least 0"),
        (lambda: s.shapes(max_side=1.5), "max_side must be an integer"),
        (lambda: s.avals(dtypes="float32"), "dtypes must be a strategy"),
        (lambda: s.avals(weak="yes"), "weak must be True, False or None"),
        (lambda: s.arrays(elements=[1.0]), "elements must be a strategy"),
        (lambda: s.scalars(weak=2), "weak must be True, False or None"),
        (lambda: s.keys(shapes=(2,)), "shapes must be a strategy"),
        (lambda: s.carries(max_leaves=0), "max_leaves must be at least 1"),
        (lambda: s.pytrees(containers=["set"]), "each of containers must be one of"),
        (lambda: s.pytrees(3), "leaves must be a strategy"),
        (lambda: s.inits(1.0, elements=0.0), "elements must be a strategy"),
        (lambda: s.xs(1.0, lengths=3), "lengths must be a strategy"),
        (lambda: s.xs(1.0, lengths=st.just(-1)), "each of lengths must be at least 0"),
        (lambda: s.bodies(loop="for"), "loop must be one of"),
        (lambda: s.bodies(drift="size"), "drift must be one of"),
        (lambda: s.bodies(carries=1.0), "carries must be a strategy"),
        (lambda: s.bodies(max_statements=-1), "max_statements must be at least 0"),
        (lambda: s.loop_programs(kinds=["map"]), "each of kinds must be one of"),
        (lambda: s.loop_programs(max_depth=0), "max_depth must be at least 1"),
        (lambda: s.loop_programs(drift="dtype"), "drift must be True or False"),
        (lambda: s.loop_programs(weak_inits=1), "weak_inits must be True or False"),
        (lambda: s.loop_programs(max_steps=-1), "max_steps must be at least 0"),
        (lambda: s.loop_programs(max_statements=None), "max_statements must be an integer"),
        (lambda: s.bodies(drift="dtype", path="a"), "path must be a key path"),
        (lambda: s.bodies(path=()), "path must be a key path, and only with a drift"),
        (lambda: s.avals(dtypes=st.just("floot")), "each of dtypes must be a dtype"),
        (lambda: s.avals(shapes=st.just(3)), "each of shapes must be a tuple of integers"),
        (lambda: s.avals(shapes=st.just((-1,))), "each side of each of shapes must be at least 0"),
        (lambda: s.keys(shapes=st.just(None)), "each of shapes must be a tuple of integers"),
        (lambda: s.arrays(avals=st.just(3)), "each of avals must have a shape and a dtype"),
        (lambda: s.inits(jnp.int32(0), elements=st.just(0.5)), "numbers that int32 holds, got"),
        (lambda: s.inits(jnp.int8(0), elements=st.just(300)), "numbers that int8 holds, got"),
        (lambda: s.inits(jnp.float16(0), elements=st.just(1e6)), "numbers that float16 holds"),
        (lambda: s.inits(jnp.float32(0), elements=st.just(1j)), "numbers that float32 holds"),
        (lambda: s.inits(jnp.bool_(0), elements=st.just(2)), "numbers that bool holds"),
        (lambda: s.inits(jnp.float32(0), elements=st.just("1")), "numbers that float32 holds"),
    ],
)
def test_wrong_arguments_are_named(strategy, message):
    """A wrong argument raises when a value is drawn, not before, and the message names it."""
    made = strategy()

    with pytest.raises(InvalidArgument, match=message):
        hypothesis.find(made, lambda _: True)


def test_strategies_need_hypothesis_only_where_they_are_used():
    """`checks` is imported without Hypothesis, and `checks.strategies` says how to get it."""
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import checks\n"
        "try:\n    checks.strategies\n"
        "except ImportError as error:\n    print(error)\n"
        "try:\n    checks.assert_carry_contract(abs, carries=None)\n"
        "except ImportError as error:\n    print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert 2 == ran.stdout.count("pip install 'carryloops[test]'"), ran.stdout
