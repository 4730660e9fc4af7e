"""The notes on broken bodies name the right line, and the advice, pasted, makes the body pass."""

import types
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
from tests.messages import broken_dtypes, broken_shapes, broken_structures
from tests.messages.broken import CASES

TABLES = (broken_dtypes, broken_shapes, broken_structures)


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


def refusal(run, case) -> Any:
    """The error that a case is refused with."""
    with pytest.raises(checks.CarryTypeError) as caught:
        run(case.body, value(case.init), value(case.xs))
    return caught.value


def table_of(case):
    """The module that a case is in."""
    return next(table for table in TABLES if table.__name__ == case.body.__module__)


def marked_line(case):
    """The line of the table that ends in the marker, in the body or in a helper that names it."""
    lines = Path(table_of(case).__file__).read_text().splitlines()
    first = case.body.__code__.co_firstlineno
    helper = [n for n, text in enumerate(lines, 1) if f"# <- here ({case.body.__name__})" in text]
    return (
        helper[0]
        if helper
        else next(n for n, text in enumerate(lines, 1) if n >= first and text.endswith("# <- here"))
    )


def pasted(case, suggestions):
    """The body and the initial carry with all suggestions applied to a copy of the table."""
    file = Path(table_of(case).__file__)
    init, edits = value(case.init), []
    names = {"jnp": jnp, "jax": jax, "np": np}
    for path, suggestion in suggestions:
        place = suggestion.place
        if place is not None:
            assert file == Path(place.file)
            edits.append(Edit(place.file, place.span, place.code, suggestion.code))
        code = suggestion.code if place is None else suggestion.init_code
        if code:
            init = with_subtree(init, path, eval(code, names, {"init": init}))  # noqa: S307
    module = types.ModuleType("pasted")
    source = edited_source(file.read_text(), dict.fromkeys(edits))
    source = source.replace("import broken\n", "import not_in_the_table as broken\n")
    exec(compile(source, str(file), "exec"), module.__dict__)  # noqa: S102
    return getattr(module, case.body.__name__), init


@pytest.mark.parametrize("run", [by_scan, by_fori, by_while])
def test_the_note_names_the_line(case, run):
    """The provenance of a mismatch, and a note, have the line with the marker."""
    error = refusal(run, case)
    line = marked_line(case)

    assert line in {m.provenance.line for m in error.mismatches}
    assert f"{Path(table_of(case).__file__).name}:{line}" in "\n".join(error.__notes__)


def test_the_advice_makes_the_body_pass(case):
    """With every suggestion pasted the loop runs; where none is known, none is given."""
    error = refusal(by_scan, case)
    suggestions = [(m.path, m.suggestion) for m in error.mismatches if m.suggestion is not None]
    assert case.advice == bool(suggestions)
    if suggestions:
        body, init = pasted(case, suggestions)
        by_scan(body, init, value(case.xs))
