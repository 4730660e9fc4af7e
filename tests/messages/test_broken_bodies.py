"""The notes on broken bodies name the right line, and the advice, pasted, makes the body pass."""

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import checks
import loops
from checks.edits import Edit, edited_source
from checks.trial import with_subtree
from tests.messages import (
    broken_calls,
    broken_dtypes,
    broken_first_steps,
    broken_habits,
    broken_later_use,
    broken_models,
    broken_science,
    broken_shapes,
    broken_solvers,
    broken_structures,
    broken_training,
    helpers_elsewhere,
)
from tests.messages.broken import CASES, Case

TABLES = (
    *(broken_dtypes, broken_shapes, broken_structures),
    *(broken_training, broken_models, broken_science, broken_solvers),
    *(broken_calls, broken_habits, broken_first_steps, broken_later_use),
)


@pytest.fixture(params=CASES)
def case(request):
    """Each broken body, in the mode that it is about."""
    found = CASES[request.param]
    promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with promotion[0], promotion[1], jax.enable_x64(found.x64):
        yield found


def value(init_or_function):
    """What a table entry stands for: functions make their arrays in the mode of the test."""
    return init_or_function() if callable(init_or_function) else init_or_function


def by_scan(body, init, xs):
    """Run a body in a scan."""
    return loops.scan(body, init, xs)[0]


def by_fori(body, init, xs):
    """Run a body in a counted loop."""
    return loops.fori_loop(0, len(xs), lambda i, c: body(c, xs[i])[0], init)


def by_while(body, init, xs):
    """Run a body in a while loop."""
    return loops.while_loop(lambda c: False, lambda c: body(c, xs[0])[0], init)


def as_written(case: Case):
    """The loop that a body of the table is written for."""
    if case.bounds is not None:
        lower, upper = value(case.bounds)
        return lambda body, init, _: loops.fori_loop(lower, upper, body, init)
    if case.cond is not None:
        return lambda body, init, _: loops.while_loop(case.cond, body, init)
    return by_scan


def refusal(run, case) -> Any:
    """The error that a case is refused with."""
    with pytest.raises(checks.CarryTypeError) as caught:
        run(case.filled_in(case.body), value(case.init), value(case.xs))
    return caught.value


def table_of(case):
    """The module that a case is in."""
    return next(table for table in TABLES if table.__name__ == case.body.__module__)


def marked_place(case) -> tuple[Path, int]:
    """The file and line that ends in the marker, in the body or in a helper that names it."""
    named = f"# <- here ({case.body.__name__})"
    for module in (helpers_elsewhere, table_of(case)):
        lines = Path(module.__file__).read_text().splitlines()
        for number, text in enumerate(lines, 1):
            if named in text:
                return Path(module.__file__), number
    first = inspect.unwrap(case.body).__code__.co_firstlineno
    file = Path(table_of(case).__file__)
    lines = enumerate(file.read_text().splitlines(), 1)
    return file, next(n for n, text in lines if n >= first and text.endswith("# <- here"))


def pasted(case, suggestions):
    """The body and the initial carry with all suggestions applied to a copy of the table."""
    file = Path(table_of(case).__file__)
    init, edits = value(case.init), []
    for path, suggestion in suggestions:
        place = suggestion.place
        if place is not None:
            assert file == Path(place.file)
            edits.append(Edit(place.file, place.span, place.code, suggestion.code))
        code = suggestion.code if place is None else suggestion.init_code
        if code:
            names = vars(table_of(case))
            init = with_subtree(init, path, eval(code, dict(names), {"init": init}))  # noqa: S307
    module = types.ModuleType("pasted")
    source = edited_source(file.read_text(), dict.fromkeys(edits))
    source = source.replace("import broken\n", "import not_in_the_table as broken\n")
    exec(compile(source, str(file), "exec"), module.__dict__)  # noqa: S102
    for name, thing in vars(table_of(case)).items():
        if isinstance(thing, type):  # the classes of the initial carry
            setattr(module, name, thing)
    return getattr(module, case.body.__name__), init


def ways() -> Iterator[tuple[str, Any]]:
    """Each body with each loop that it can run in."""
    for name, case in CASES.items():
        is_scan = case.bounds is None and case.cond is None
        yield from (
            (name, run) for run in ((by_scan, by_fori, by_while) if is_scan else [as_written])
        )


@pytest.mark.parametrize(("case", "run"), list(ways()), indirect=["case"])
def test_the_note_names_the_line(case, run):
    """The provenance of a mismatch, and a note, have the line with the marker."""
    error = refusal(as_written(case) if run is as_written else run, case)
    file, line = marked_place(case)

    places = {(Path(m.provenance.file), m.provenance.line) for m in error.mismatches}
    assert (file, line) in places
    assert f"{file.name}:{line}" in "\n".join(error.__notes__)


def test_the_advice_makes_the_body_pass(case):
    """With every suggestion pasted the loop runs; where none is known, none is given."""
    run = as_written(case)
    error = refusal(run, case)
    suggestions = [(m.path, m.suggestion) for m in error.mismatches if m.suggestion is not None]
    if case.bounds is not None:  # the index, and perhaps a bound, stand before the user's carry
        suggestions = [(path[1:], suggestion) for path, suggestion in suggestions]
    assert bool(case.advice) == bool(suggestions)
    if isinstance(case.advice, str):
        assert case.advice in {suggestion.code for _, suggestion in suggestions}
    if suggestions:
        body, init = pasted(case, suggestions)
        got = run(case.filled_in(body), init, value(case.xs))
        if case.in_python:
            assert_same_numbers(in_python(case), got)


def in_python(case: Case) -> Any:
    """What a Python loop makes of a body as it is, in which types change from step to step.

    None where the body refuses in some step what it made in the one before.
    """
    body, xs = case.filled_in(case.body), value(case.xs)
    carry = jax.tree.map(lambda leaf: leaf, value(case.init))  # a body may write into it
    try:
        if case.cond is not None:
            while case.cond(carry):
                carry = body(carry)
        elif case.bounds is not None:
            for i in range(*map(int, value(case.bounds))):
                carry = body(jnp.int32(i), carry)
        else:
            for i in range(len(jax.tree.leaves(xs)[0])):
                carry, _ = body(carry, jax.tree.map(lambda leaf, i=i: leaf[i], xs))
    except Exception:  # noqa: BLE001  JAX, NumPy and Python refuse in their own ways
        return None
    return carry


def assert_same_numbers(want: Any, got: Any) -> None:
    """Compare two pytrees that have as many numbers, whatever their dtypes and axes of one."""
    pairs = list(zip(jax.tree.leaves(want), jax.tree.leaves(got)))
    sizes = [[np.size(leaf) for leaf in jax.tree.leaves(tree)] for tree in (want, got)]
    for old, new in pairs if sizes[0] == sizes[1] else ():
        if not jnp.issubdtype(jnp.result_type(new), jax.dtypes.prng_key):
            numbers = [np.ravel(leaf).astype(complex) for leaf in (old, new)]
            np.testing.assert_allclose(*numbers, rtol=2e-2, atol=1e-2)
