"""The static checks beside the loops: the same types, numbers of traces, and errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import checks
import loops
from tests.helpers.equations import equations, scan_layout


def counted(fun) -> Any:
    """A function that counts its calls in `.calls`, and has no cached trace."""

    def body(*args):
        body.calls += 1  # pyrefly: ignore[missing-attribute]
        return fun(*args)

    body.calls = 0  # pyrefly: ignore[missing-attribute]
    return body


# What a body may do with a leaf and an x, both scalars of any of these types.
INITS = [0, 0.0, 1j, True, np.int8(1), jnp.int32(1), jnp.float32(1), np.float16(1)]
STEPS = {
    "kept": lambda c, x: c,
    "added": lambda c, x: c + x,
    "doubled": lambda c, x: c * 2,
    "halved": lambda c, x: c / 2,
    "compared": lambda c, x: c == x,
    "float": lambda c, x: c * 0.5,
    "replaced": lambda c, x: x,
    "sized": lambda c, x: jnp.stack([c, c]),
}
CARRIES = st.lists(
    st.tuples(st.sampled_from(INITS), st.sampled_from(sorted(STEPS)), st.integers(0, 2)),
    min_size=1,
    max_size=3,
)
XS = st.sampled_from([jnp.zeros(3, d) for d in (jnp.int8, jnp.int32, jnp.float16, jnp.float32)])


def body_of(carries):
    """A body whose leaves feed each other in the drawn way."""

    def step(carry, x):
        read = [carry[source % len(carry)] for _, _, source in carries]
        return [STEPS[name](c, x) for (_, name, _), c in zip(carries, read, strict=True)]

    return step


def outcome(call) -> Any:
    """What a call returns, or the class, the text and the mismatches of its error."""
    try:
        return call()
    except TypeError as error:
        places = [(m.path, m.kind, m.suggestion) for m in getattr(error, "mismatches", ())]
        return type(error), str(error), places


def is_error(result):
    """Whether an outcome is an error."""
    return isinstance(result, tuple) and isinstance(result[0], type)


def assert_types_agree(leaves, avals):
    """The leaves that change have, in order, the types of a loop equation's carry."""
    changing = [leaf.type_in for leaf in leaves if not leaf.is_unchanged]
    assert [(a.shape, a.dtype) for a in changing] == [(a.shape, a.dtype) for a in avals]


@given(carries=CARRIES, xs=XS)
def test_scan_reports_agree(carries, xs):
    """A report has the types and the number of traces of the scan, or the scan's own error."""
    step, init = body_of(carries), [init for init, _, _ in carries]
    with jax.numpy_dtype_promotion("standard"):
        static, run = (counted(lambda c, x: (step(c, x), None)) for _ in range(2))
        report = outcome(lambda: checks.check_scan(static, init, xs))
        found = outcome(lambda: equations(lambda: loops.scan(run, init, xs), name="scan"))

    if is_error(report) or is_error(found):
        assert report == found
        return
    assert (report.traces, static.calls) == (run.calls, run.calls)
    assert (report.steps, report.road) == (3, "scan")
    for eqn in found:
        layout = scan_layout(eqn)
        first = layout.consts
        assert_types_agree(report.leaves, [v.aval for v in eqn.invars[first:][: layout.carry]])


@given(carries=CARRIES, xs=XS)
def test_while_reports_agree(carries, xs):
    """The same for a while loop, whose condition reads the first leaf."""
    step, init = body_of(carries), [init for init, _, _ in carries]
    cond = lambda c: jnp.abs(c[0]).sum() < 3
    with jax.numpy_dtype_promotion("standard"):
        static, run = (counted(lambda c: step(c, xs[0])) for _ in range(2))
        report = outcome(lambda: checks.check_while(cond, static, init))
        found = outcome(lambda: equations(lambda: loops.while_loop(cond, run, init), name="while"))

    if is_error(report) or is_error(found):
        assert report == found
        return
    (eqn,) = found
    assert (report.traces, static.calls) == (run.calls, run.calls)
    assert [True] + [False] * (len(init) - 1) == [x.is_read_by_condition for x in report.leaves]
    kept = [x for x in report.leaves if x.is_read_by_condition or not x.is_unchanged]
    assert [(x.type_in.shape, x.type_in.dtype) for x in kept] == [
        (v.aval.shape, v.aval.dtype) for v in eqn.outvars
    ]


@pytest.mark.parametrize("upper", [4, jax.ShapeDtypeStruct((), jnp.int32)], ids=["int", "traced"])
@given(carries=CARRIES, xs=XS)
def test_fori_reports_agree(upper, carries, xs):
    """The same for a counted loop on either road, index and bound included."""
    step, init = body_of(carries), [init for init, _, _ in carries]
    with jax.numpy_dtype_promotion("standard"):
        static, run = (counted(lambda i, c: step(c, xs[0])) for _ in range(2))
        report = outcome(lambda: checks.check_fori(0, upper, static, init))
        loop = lambda n: loops.fori_loop(0, n, run, init)
        name = "scan" if upper == 4 else "while"
        if upper == 4:
            found = outcome(lambda: equations(lambda: loop(4), name=name))
        else:
            found = outcome(lambda: equations(loop, upper, name=name))

    if is_error(report) or is_error(found):
        assert report == found
        return
    (eqn,) = found
    assert (report.road, report.traces, static.calls) == (name, run.calls, run.calls)
    if name == "scan":
        layout = scan_layout(eqn)
        operands = eqn.invars[layout.consts :][: layout.carry]
        assert_types_agree(report.leaves, [v.aval for v in operands])
    else:
        kept = [x for x in report.leaves if x.is_read_by_condition or not x.is_unchanged]
        assert [x.type_in.dtype for x in kept] == [v.aval.dtype for v in eqn.outvars]


def nest(loop, inner_init, calls):
    """A loop with a literal init around a loop with another, and how often each body is called."""

    def outer(c, x):
        calls["outer"] += 1

        def inner(d, y):
            calls["inner"] += 1
            return d + y, None

        total, _ = loops.scan(inner, inner_init, jnp.ones(2, jnp.float32))
        return c + total + x, None

    return loop(outer, 0.0, jnp.ones(3, jnp.float32))


@pytest.mark.parametrize("inner_init", [0, 0.0, np.float32(0)], ids=repr)
def test_traces_of_a_nest_agree(inner_init):
    """A loop inside the body is traced by the check as often as by the loop."""
    static, run = {"outer": 0, "inner": 0}, {"outer": 0, "inner": 0}
    report = nest(checks.check_scan, inner_init, static)
    jax.make_jaxpr(lambda: nest(loops.scan, inner_init, run))()

    assert report.traces == run["outer"]
    assert run["inner"] >= static["inner"]


def test_a_body_may_close_over_tracers():
    """A check may stand inside jit, grad and vmap, and sees the types of what is closed over."""

    def fun(x):
        report = checks.check_scan(lambda c, _: (c + x, None), 0, length=2)
        assert ("float32[]", 2) == (report.leaf("c").type_in.str_short(), report.traces)
        return x

    for transform in (jax.jit, jax.grad, jax.vmap, lambda f: jax.jit(jax.grad(f))):
        transform(fun)(jnp.ones(2) if transform is jax.vmap else jnp.float32(1))


def test_nothing_is_computed_or_compiled():
    """Abstract inputs are enough; a callback in the body does not run."""
    ran = []

    def body(c, x):
        jax.debug.callback(ran.append, c)
        return c + x.sum(), c

    abstract = jax.ShapeDtypeStruct((), jnp.float32)
    report = checks.check_scan(body, abstract, jax.ShapeDtypeStruct((7, 3), jnp.float32))

    assert ([], 7, 4) == (ran, report.steps, report.nbytes)


def test_a_promotion_names_its_line():
    """The report says what a weak leaf was promoted from, and which expression made it so."""
    report = checks.check_while(lambda s: s["n"] < 3, _halves, {"n": 0, "x": 0})
    promotion: Any = report.leaf("s['x']").promotion

    assert "int32[]" == promotion.before.str_short()
    assert 's["x"] + jnp.float32(0.5)' == promotion.by.place.text
    assert report.leaf("s['n']").promotion is None


def _halves(s):
    half = s["x"] + jnp.float32(0.5)
    return {"n": s["n"] + 1, "x": half}


def test_a_report_is_a_table():
    """It prints a line for each leaf, and as HTML a row with the text escaped."""
    report = checks.check_fori(
        0, 5, lambda i, s: {"<a>": s["<a>"] + 1, "b": s["b"]}, {"<a>": 1, "b": 2}
    )
    heading, *rows = str(report).splitlines()[2:]

    assert ["leaf", "in", "out", "condition", "unchanged", "promoted"] == heading.split()
    assert ["i", "s['<a>']", "s['b']"] == [row.split()[0] for row in rows]
    assert str(report).startswith("fori_loop of `<lambda>`: becomes a scan of 5 steps")
    assert 3 == report._repr_html_().count("<tr><td>")
    assert "<td>s[&#x27;&lt;a&gt;&#x27;]</td>" in report._repr_html_()


@pytest.mark.parametrize(
    ("lower", "upper", "road", "reason", "steps"),
    [
        (0, 4, "scan", "both bounds are known while tracing", 4),
        (4, 0, "scan", "both bounds are known while tracing", 0),
        (np.int8(1), 4, "scan", "both bounds are known while tracing", 3),
        (0, jax.ShapeDtypeStruct((), jnp.int32), "while", "`upper` is a type without", None),
        (jax.ShapeDtypeStruct((), jnp.int32), 4, "while", "`lower` is a type without", None),
    ],
)
def test_the_road_of_a_counted_loop(lower, upper, road, reason, steps):
    """The report says which primitive the bounds lead to, and why."""
    report = checks.check_fori(lower, upper, lambda i, c: c + 1, jnp.int32(0))

    assert (road, steps) == (report.road, report.steps)
    assert report.reason.startswith(reason)


def test_a_traced_bound_takes_the_road_of_a_while():
    """Under jit a bound is traced, and the report says so."""

    def fun(n):
        report = checks.check_fori(0, n, lambda i, c: c + 1, jnp.int32(0))
        assert ("while", True) == (report.road, report.reason.startswith("`upper` is traced"))
        return n

    jax.jit(fun)(jnp.int32(3))
    assert "scan" == checks.check_fori(0, jnp.int32(3), lambda i, c: c + 1, 0).road


@pytest.mark.parametrize(
    ("static", "run"),
    [
        (lambda: checks.check_scan(_sums, 0.0), lambda: loops.scan(_sums, 0.0)),
        (
            lambda: checks.check_scan(_sums, 0.0, (jnp.ones(2), jnp.ones(3))),
            lambda: loops.scan(_sums, 0.0, (jnp.ones(2), jnp.ones(3))),
        ),
        (
            lambda: checks.check_scan(_sums, 0.0, jnp.ones(2), 3),
            lambda: loops.scan(_sums, 0.0, jnp.ones(2), 3),
        ),
        (
            lambda: checks.check_scan(_no_pair, 0.0, jnp.ones(2)),
            lambda: loops.scan(_no_pair, 0.0, jnp.ones(2)),
        ),
        (
            lambda: checks.check_while(lambda c: c < 3, lambda c: c, jnp.ones(3)),
            lambda: loops.while_loop(lambda c: c < 3, lambda c: c, jnp.ones(3)),
        ),
        (
            lambda: checks.check_fori(0, 2.5, lambda i, c: c, 0),
            lambda: loops.fori_loop(0, 2.5, lambda i, c: c, 0),
        ),
        (
            lambda: checks.check_fori(np.int8(0), np.int16(2), lambda i, c: c, 0),
            lambda: loops.fori_loop(np.int8(0), np.int16(2), lambda i, c: c, 0),
        ),
    ],
)
def test_other_errors_are_the_loops(static, run):
    """Arguments that a loop refuses are refused with the same words."""
    with pytest.raises((TypeError, ValueError)) as ours:
        run()
    with pytest.raises(type(ours.value)) as checked:
        static()
    assert str(ours.value) == str(checked.value)


def _sums(c, x):
    return c + sum(leaf.sum() for leaf in jax.tree.leaves(x)), None


def _no_pair(c, x) -> Any:
    return c
