"""What errors say beyond their text: whatever the body is made of, and wherever it runs."""

import collections
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import checks
import loops
from checks import explanation
from tests.helpers.carries import Poly
from tests.messages.refused import code, refusal


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Bodies here promote as users' do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def widened(c, x):
    """A body that forgets an axis."""
    return c.sum(axis=0), x


class Layer:
    """A body that is a method, or the object itself."""

    def step(self, c, x):
        """Forget an axis."""
        return c.sum(axis=0), x

    def __call__(self, c, x):
        """The same."""
        return c.sum(axis=0), x


class Block(Layer):
    """A layer that inherits how it is called."""


def with_option(option, c, x):
    """A body with an argument to be filled in."""
    return c.sum(axis=0) + option, x


def wrapped(fun):
    """A decorator that keeps the function it wraps."""

    @functools.wraps(fun)
    def wrapper(*args):
        return fun(*args)

    return wrapper


@pytest.mark.parametrize(
    "body",
    [
        widened,
        Layer().step,
        Layer(),
        Block(),
        functools.partial(with_option, 1),
        jax.jit(widened),
        jax.checkpoint(widened),
        wrapped(widened),
        lambda c, x: (c.sum(axis=0), x),
        lambda c, x: widened(c, x),  # noqa: PLW0108  a call is what this one is about
    ],
    ids=[
        "function",
        "method",
        "object",
        "inherits",
        "partial",
        "jit",
        "checkpoint",
        "wraps",
        "lambda",
        "call",
    ],
)
def test_any_callable_gets_advice(body):
    """The line is found, and the advice tried, in whatever kind of callable the body is."""
    assert "c.sum(axis=0, keepdims=True)" == code(
        lambda: loops.scan(body, jnp.ones((1, 2)), length=2)
    )


def test_an_expression_over_several_lines_is_shown_on_one():
    """A comment in it must not take in what comes after it."""

    def body(c, x):
        y = (
            c * 0.5  # the one half
            + x  # and the other
        )
        return y, None

    (mismatch,) = refusal(
        lambda: loops.scan(body, jnp.ones(3, jnp.bfloat16), jnp.ones((4, 3)))
    ).mismatches
    assert "write `(c * 0.5 + x).astype(jnp.bfloat16)` for `c * 0.5 + x`" in str(
        mismatch.suggestion
    )
    assert "`c * 0.5 + x`" in str(mismatch.provenance)


def test_a_body_without_source_gets_the_equation_at_most():
    """A body whose source cannot be read is refused as ever; only its init is advised on."""
    names: dict[str, Any] = {"jnp": jnp}
    exec("def body(c, x):\n    return c * 0.5, x", names)  # noqa: S102
    (mismatch,) = refusal(lambda: loops.scan(names["body"], jnp.int32(1), length=2)).mismatches

    assert "mul" in mismatch.provenance.equation or "convert" in mismatch.provenance.equation
    assert "jnp.asarray(init, jnp.float32)" == mismatch.suggestion.code


def test_a_builtin_body_is_refused_as_ever():
    """A body that is no Python function has no line; its error has the lesson's text."""
    error = refusal(lambda: loops.while_loop(lambda c: c < 3, jnp.float32, jnp.int32(0)))

    assert str(error).startswith("while_loop body function carry input")


@pytest.mark.parametrize("first", [0, 2])
def test_a_growing_array_is_written_in_place(first):
    """In a counted loop the buffer is indexed, and holds what the growing array would have held."""

    def body(i, c):
        return jnp.concatenate([c, jnp.sqrt(i * 1.0)[None]])

    error = refusal(lambda: loops.fori_loop(first, first + 3, body, jnp.zeros(1)))
    suggestion = error.mismatches[0].suggestion
    init = eval(suggestion.init_code, {"jnp": jnp, "init": jnp.zeros(1)})  # noqa: S307
    mended = eval(f"lambda i, c: {suggestion.code}", {"jnp": jnp})  # noqa: S307

    assert ".at[i" in suggestion.code
    np.testing.assert_allclose(
        [0, *np.sqrt(range(first, first + 3))], loops.fori_loop(first, first + 3, mended, init)
    )


def test_a_buffer_of_a_scan_holds_the_grown_array():
    """Without an index the new rows come in at the end."""
    xs = jnp.arange(1.0, 4.0)
    error = refusal(lambda: loops.scan(lambda c, x: (jnp.append(c, x), None), jnp.zeros(2), xs))
    suggestion = error.mismatches[0].suggestion
    init = eval(suggestion.init_code, {"jnp": jnp, "init": jnp.zeros(2)})  # noqa: S307
    mended = eval(f"lambda c, x: ({suggestion.code}, None)", {"jnp": jnp})  # noqa: S307

    np.testing.assert_array_equal([0, 0, 1, 2, 3], loops.scan(mended, init, xs)[0])


def test_advice_keeps_the_condition_true():
    """An init that would pass the body but not the condition is no advice."""
    (mismatch,) = refusal(
        lambda: loops.while_loop(lambda c: c < 3, lambda c: c + jnp.ones(2), jnp.float32(0))
    ).mismatches

    assert "c + jnp.ones(2)" == mismatch.provenance.place.text
    assert mismatch.suggestion is None


def test_one_edit_may_mend_two_components():
    """Both get the advice, and the second says the same."""

    def body(c, x):
        mean = x.mean(axis=1)
        return (c[0] + mean, c[1] - mean), None

    init = jnp.ones((2, 1)), jnp.ones((2, 1))
    error = refusal(lambda: loops.scan(body, init, jnp.ones((3, 2, 5))))

    assert ["x.mean(axis=1, keepdims=True)"] * 2 == [m.suggestion.code for m in error.mismatches]


def test_a_class_that_has_no_name_in_the_file():
    """A plain tuple is made the named one that went in, whatever that is called."""
    state = collections.namedtuple("state", "m n")(jnp.ones(3), jnp.int32(0))

    def body(s, x):
        return (2 * s.m, s.n + 1), x

    assert "type(s)(2 * s.m, s.n + 1)" == code(lambda: loops.scan(body, state, XS))


def test_the_note_of_fori_speaks_of_the_users_body():
    """The line is in the user's body, the component its second argument, the init the user's."""

    def halve(i, state):
        return {"n": state["n"] * 0.5}

    for upper in (3, jnp.int32(3)):
        error = refusal(lambda n=upper: jax.jit(lambda m: loops.fori_loop(0, m, halve, INIT))(n))
        notes = "\n".join(error.__notes__)
        assert "state['n'] changes at " in notes
        assert "in test_the_note_of_fori_speaks_of_the_users_body.<locals>.halve" in notes
        assert "start state['n'] from `jnp.asarray(init['n'], jnp.float32)`" in notes


def test_the_note_of_fori_is_not_for_loops_inside():
    """The error of a loop in the body is not said to be about the argument of the body around."""

    def inner(c, x):
        return (c[0], c[1] + jnp.ones(2) * x), None

    def outer(i, total):
        return loops.scan(inner, (total, total), XS)[0][0]

    for upper in (3, jnp.int32(3)):
        error = refusal(lambda n=upper: loops.fori_loop(0, n, outer, 0.0))
        assert not any(note.startswith("for fori_loop") for note in error.__notes__)


INIT = {"n": jnp.int32(1)}


def test_under_disable_jit():
    """A body that runs step by step gets the same note."""
    run = lambda: loops.scan(lambda c, x: (c.sum(keepdims=False), x), jnp.ones(1), jnp.ones(2))
    compiled = refusal(run)
    with jax.disable_jit():
        stepwise = refusal(run)

    assert compiled.__notes__[0].splitlines()[0] == stepwise.__notes__[0].splitlines()[0]
    assert compiled.mismatches[0].suggestion == stepwise.mismatches[0].suggestion


def test_errors_can_be_pickled():
    """An error goes from process to process with all that it knows."""
    error = refusal(lambda: loops.scan(widened, jnp.ones((1, 2)), length=2))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert again.mismatches[0].suggestion == error.mismatches[0].suggestion
    assert again.mismatches[0].provenance == error.mismatches[0].provenance
    assert again.__notes__ == error.__notes__


def test_a_lines_of_a_cached_function_are_those_of_this_body():
    """JAX traces `where` once for equal types; the line is that of the call in this body."""

    def first(c, x):
        return jnp.where(c > 0, c, 0.5), x

    def second(c, x):
        c = c + 1
        return jnp.where(c > 0, c, 0.5), x

    lines = [
        refusal(lambda body=body: loops.scan(body, jnp.int32(1), length=2)).mismatches[0].provenance
        for body in (first, second)
    ]
    assert [
        body.__code__.co_firstlineno + offset for body, offset in ((first, 1), (second, 2))
    ] == [provenance.line for provenance in lines]


def test_custom_rules_are_looked_into():
    """The line inside a function with a rule of its own, custom_jvp or custom_vjp, is named."""

    def forward(x):
        return x * 0.5

    jvp, vjp = jax.custom_jvp(forward), jax.custom_vjp(forward)
    jvp.defjvp(lambda p, t: (forward(*p), t[0]))
    vjp.defvjp(lambda x: (forward(x), None), lambda _, g: (g,))
    for fun in (jvp, vjp):
        error = refusal(
            lambda fun=fun: loops.scan(lambda c, x: (fun(c), x), jnp.int32(1), length=2)
        )
        assert "x * 0.5" == error.mismatches[0].provenance.place.text


def test_branches_and_loops_of_both_kinds_are_looked_into():
    """The line inside a cond, switch, scan or while, ours or JAX's, is named."""

    def half(v):
        return v * 0.5

    inner = {
        "cond": lambda c: jax.lax.cond(True, half, half, c),
        "switch": lambda c: jax.lax.switch(1, [half, half, half], c),
        "scan": lambda c: jax.lax.scan(lambda v, _: (v, half(c)), 0, None, length=1)[1][0],
        "ours": lambda c: loops.scan(lambda v, _: (v, half(c)), 0, None, length=1)[1][0],
        "while": lambda c: loops.while_loop(lambda s: s[0] < 1, lambda s: (1, half(c)), (0, 0.0))[
            1
        ],
        "map": lambda c: loops.map(half, c[None])[0],
    }
    for name, fun in inner.items():
        error = refusal(
            lambda fun=fun: loops.scan(lambda c, x: (fun(c), x), jnp.int32(1), length=2)
        )
        assert "v * 0.5" == error.mismatches[0].provenance.place.text, name


def test_a_class_of_the_users():
    """A component inside a class with its own flattening is found by its key."""
    init = {"p": Poly(jnp.int32(0), 2)}
    error = refusal(
        lambda: loops.scan(lambda c, x: ({"p": Poly(c["p"].value + x, 2)}, None), init, XS)
    )

    assert 'c["p"].value + x' == error.mismatches[0].provenance.place.text
    # The class has no names for its parts, so no code can say where the new part goes.
    assert error.mismatches[0].suggestion is None


XS = jnp.arange(3.0)


def in_mesh(fun, *args, specs):
    """Trace a function on two devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(fun, mesh=mesh, in_specs=specs, out_specs=P("d"))).trace(*args)


def test_a_carry_that_stops_varying_is_cast():
    """The advice for an output that lost a mesh axis is the cast of that output."""

    def run(x):
        return loops.scan(lambda c, _: (jax.lax.psum(c, "d"), None), x, length=2)[0]

    error = refusal(lambda: in_mesh(run, jnp.ones(2), specs=P("d")))
    (mismatch,) = error.mismatches
    assert "varying axes" == mismatch.kind
    assert "jax.lax.pcast(jax.lax.psum(c, \"d\"), ('d',), to='varying')" == mismatch.suggestion.code


def test_a_carry_that_varies_and_widens_gets_both():
    """Where the dtype differs too, the loop does not cast, and the advice does."""

    def run(x):
        return loops.scan(lambda c, v: (c + v, None), jnp.int32(0), x)[0][None]

    error = refusal(lambda: in_mesh(run, jnp.ones(4), specs=P("d")))
    assert "jnp.asarray(init, jnp.float32)" == error.mismatches[0].suggestion.code


def test_nothing_is_done_unless_a_loop_is_refused(monkeypatch):
    """A loop whose carry is right, or settles by promotion, never asks for an explanation."""
    monkeypatch.setattr(explanation, "explain_mismatches", None)
    monkeypatch.setattr(explanation, "_Explanation", None)
    loops.scan(lambda c, x: (c + x, None), 0, jnp.ones(3))
    loops.fori_loop(0, jnp.int32(3), lambda i, c: c + 0.5, 0)


def test_advice_that_would_take_too_long_is_not_tried(monkeypatch):
    """With no time to try anything the line is still named."""
    monkeypatch.setattr(explanation, "Budget", lambda: checks.trial.Budget(seconds=-1.0))
    (mismatch,) = refusal(lambda: loops.scan(widened, jnp.ones((1, 2)), length=2)).mismatches

    assert "c.sum(axis=0)" == mismatch.provenance.place.text
    assert mismatch.suggestion is None


def test_an_explanation_that_fails_hides_nothing(monkeypatch):
    """The loop's own error comes through, whatever happens while it is explained."""
    monkeypatch.setattr(explanation, "follow", lambda *_: 1 / 0)
    error = refusal(lambda: loops.scan(widened, jnp.ones((1, 2)), length=2))

    assert "shape" == error.mismatches[0].kind
    assert (None, None) == (error.mismatches[0].provenance, error.mismatches[0].suggestion)
