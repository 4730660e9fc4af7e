"""Random programs do what JAX's loops and plain Python ones do, under each transformation.

The examples are few and the same every time. HYPOTHESIS_PROFILE=dev searches, and `make fuzz` runs
as many as one likes; `tests/properties/fuzz.py` says how to read what it finds.
"""

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops
from checks import assert_loops_agree, python_loops
from checks import transformations as t
from checks.loops_agree import kind_of
from checks.strategies import loop_programs
from tests.helpers.implementations import JAX, OURS, PYTHON
from tests.properties.cases import POLICIES, Case, cases, check
from tests.properties.fuzz import Tally, run_chunk

# A program is compiled for each implementation, so a third of the profile's number is enough.
few = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 3)

SINGLE = {
    "eager": t.eager(),
    "jit": t.jit(),
    "disable_jit": t.disable_jit(),
    "jvp": t.jvp(),
    "linearize": t.linearize(),
    "vjp": t.compose(t.jit(), t.vjp()),
    "vjp of checkpoint": t.compose(t.jit(), t.compose(t.vjp(), t.checkpoint(POLICIES["half"]))),
}


@pytest.mark.parametrize("name", SINGLE)
@few
@given(program=loop_programs())
def test_programs_agree_under(name, program):
    """Values, types and errors are the oracles', under one transformation."""
    check(Case(program, SINGLE[name]))


@few
@given(data=st.data())
def test_programs_agree_in_lanes(data):
    """Whichever arguments are batched."""
    program = data.draw(loop_programs())
    axes = st.tuples(*[st.sampled_from([0, None])] * len(program.parameters))
    check(Case(program, t.vmap(data.draw(axes.filter(lambda drawn: 0 in drawn)))))


@few
@given(cases())
def test_programs_agree_under_compositions(case):
    """Under one transformation of another; some programs break the contract."""
    check(case)


@few
@given(program=loop_programs(drift=True))
def test_broken_programs_are_refused_alike(program):
    """Where a body returns another type than it took, all refuse."""
    check(Case(program, t.jit()))


def test_fuzz_counts_programs_and_finds_nothing():
    """A chunk of the command runs as many programs as it is told to."""
    tally = Tally()

    assert run_chunk(0, 0, 10, tally) is None
    assert 10 == tally.programs
    assert tally.counts["compared with jax.lax"] > 0


def test_fuzz_finds_a_planted_difference(monkeypatch):
    """A loop that forgets a step is found, and the program is printed as source that runs."""

    def forgetful(lower, upper, body_fun, init_val, **options):
        return loops.fori_loop(lower, upper - 1, body_fun, init_val, **options)

    planted = OURS.__class__("forgetful", loops.scan, loops.while_loop, forgetful, loops.map)
    monkeypatch.setattr("tests.properties.cases.OURS", planted)
    found = run_chunk(0, 0, 100, Tally(), shrink=False)

    assert found is not None
    assert "loops.fori_loop(" in found
    namespace = {}
    exec(found, namespace)  # noqa: S102
    assert callable(namespace["program"])


class Wrong:
    """JAX's loops, with one replaced."""

    unrolls = False
    while_loop, fori_loop = staticmethod(jax.lax.while_loop), staticmethod(jax.lax.fori_loop)

    def __init__(self, scan):
        self.scan, self.name = scan, "wrong"


def test_each_kind_of_disagreement_is_told():
    """A value, a type, a weak type, a structure and an error in the place of a result."""

    def total(loops, xs):
        return loops.scan(lambda c, x: (c + x, c), 0.0, xs)[0]

    def changed(change):
        def scan(*args):
            carry, ys = loops.scan(*args)
            return change(carry), ys

        return Wrong(scan)

    def refuse(_):
        raise OverflowError("too long")

    xs = jnp.arange(3.0)
    for change, text in [
        (lambda c: c + 1, "instead of"),
        (lambda c: c.astype(jnp.int32), "type float32[] instead of int32[]"),
        (lambda c: (c,), "structure"),
        (refuse, "too long"),
    ]:
        with pytest.raises(AssertionError) as caught:
            assert_loops_agree(total, [xs], impls=[loops, changed(change)])
        assert "loops and wrong disagree under eager" in str(caught.value)
        assert text in str(caught.value)


def test_weak_types_are_compared():
    """A result that is weak in one implementation alone is a difference."""

    def count(loops, xs):
        return loops.scan(lambda c, x: (c + 1, None), 0, xs)[0]

    def strong(*args):
        carry, ys = loops.scan(*args)
        return jnp.int32(carry), ys

    with pytest.raises(AssertionError, match=r"type int32\[\] \(weak\) instead of int32\[\]"):
        assert_loops_agree(count, [jnp.ones(2)], impls=[loops, Wrong(strong)])


def test_errors_of_different_kinds_are_a_difference():
    """All have to refuse for the same reason."""

    def bad(loops, xs):
        return loops.scan(lambda c, x: ((c, x), None), 0.0, xs)

    def refuse(*_):
        raise ValueError("no")

    (done,) = assert_loops_agree(
        bad, [jnp.ones(2)], impls=[OURS, JAX, PYTHON], transformations=[t.jit()]
    )
    assert done.refused
    with pytest.raises(AssertionError, match="raises"):
        assert_loops_agree(bad, [jnp.ones(2)], impls=[loops, Wrong(refuse)])


def test_python_loops_may_do_more():
    """Reverse mode of a while_loop is refused by both primitives, and by no loop in Python."""

    def halve(loops, x):
        return loops.while_loop(lambda c: c > 1, lambda c: c / 2, x)

    (done,) = assert_loops_agree(
        halve,
        [jnp.float32(9)],
        impls=[loops, jax.lax, python_loops],
        transformations=[t.vjp()],
    )
    assert (("jax.lax",), True) == (done.compared, done.refused)


def test_two_implementations_are_needed():
    """One alone says nothing."""
    with pytest.raises(ValueError, match="at least two"):
        assert_loops_agree(lambda loops: 0, [], impls=[loops])


def test_vmap_needs_an_axis():
    """Lanes that share all arguments are none."""
    with pytest.raises(ValueError, match="needs an argument to batch"):
        t.vmap((None, None))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OverflowError("..."), "OverflowError"),
        (KeyError("..."), "KeyError"),
        (NotImplementedError("..."), "NotImplementedError"),
        (TypeError("this body turns a carry"), "a carry that changes its type"),
    ],
)
def test_kinds_of_errors(error, kind):
    """Builtin classes, and what the loops' own errors say."""
    assert kind == kind_of(error)
