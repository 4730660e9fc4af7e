"""Random bodies that break the contract: the advice, pasted into their source, mends them."""

import itertools
import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, example, given, target
from hypothesis import strategies as st

import checks
from checks.edits import Edit, edited_source

# What a line may compute of two values; most keep their types for some operands.
LINES = (
    *("{} + {}", "{} * {}", "jnp.maximum({}, {})", "jnp.where({} > 0, {}, 0.5)", "{} / {}"),
    *("({} - {}).sum()", "({} * {}).mean(axis=-1)", "{} * 0.5 + {}", "{} @ {}", "{} < {}"),
    *("jnp.stack([{}, {}])", "jnp.argmax({} + {})", "({} + {})[None]", "jnp.append({}, {})"),
    *("({} + {}).astype(jnp.int32)", "jnp.squeeze({} + {})", "_half({}) + {}"),
)
INITS = (
    *("jnp.float32(1)", "jnp.int32(1)", "jnp.bfloat16(1)", "jnp.bool_(True)", "0", "0.5"),
    *("jnp.ones((1,))", "jnp.ones((2,))", "jnp.ones((2, 1), jnp.int32)", "jnp.ones((2, 2))"),
)
COUNT = itertools.count()


@st.composite
def programs(draw) -> tuple[str, str]:
    """The source of a body of two to four lines, and of an initial carry of one to three leaves.

    Shrinks towards one leaf, a float32 scalar, that comes back as the first line of the table.
    """
    inits = draw(st.lists(st.sampled_from(INITS), min_size=1, max_size=3))
    names = [f"c{i}" for i in range(len(inits))]
    values, lines = [*names, "x"], []
    for number in range(draw(st.integers(1, 4))):
        pick = st.sampled_from(values)
        lines.append(f"v{number} = {draw(st.sampled_from(LINES)).format(draw(pick), draw(pick))}")
        values.append(f"v{number}")
    returned = [draw(st.sampled_from(values[::-1])) for _ in names]
    body = "\n    ".join(
        [f"({', '.join(names)},) = c", *lines, f"return [{', '.join(returned)}], x"]
    )
    helper = "def _half(v):\n    return v * 0.5\n\n\n"
    return f"{helper}def body(c, x):\n    {body}\n", f"[{', '.join(inits)}]"


def executed(source: str) -> Any:
    """The body that a source defines, in a file that can be read again."""
    file = f"<random body {next(COUNT)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names: dict[str, Any] = {"jnp": jnp, "jax": jax, "__name__": file}
    exec(compile(source, file, "exec"), names)  # noqa: S102
    return names["body"]


def mismatches(body, init) -> tuple[checks.CarryMismatch, ...]:
    """What a scan over floats has against a body; a body that does not run is no example."""
    try:
        checks.check_scan(body, init, jnp.ones(3, jnp.float32))
    except checks.CarryTypeError as error:
        return error.mismatches
    except (IndexError, TypeError, ValueError):
        assume(False)
    return ()


def pasted(source: str, init: list[Any], found: list[Any]) -> tuple[str, list[Any]]:
    """A body's source and an initial carry with the advice for some mismatches."""
    edits, new_init = {}, list(init)
    for mismatch in found:
        suggestion, (key,) = mismatch.suggestion, mismatch.path
        place = suggestion.place
        code = suggestion.code if place is None else suggestion.init_code
        if place is not None:
            edits[Edit(place.file, place.span, body_code(source), suggestion.code)] = None
        if code:
            new_init[key.idx] = eval(code, {"jnp": jnp, "init": init})  # noqa: S307
    return edited_source(source, edits), new_init


@given(programs())
def test_pasted_advice_mends_what_it_is_given_for(program):
    """With all the advice pasted no component is left broken that there was advice for."""
    source, init_source = program
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        init = eval(init_source, {"jnp": jnp})  # noqa: S307
        found = mismatches(executed(source), init)
        assume(found)
        advised = [m for m in found if m.suggestion is not None]
        target(len(advised))
        new_source, new_init = pasted(source, init, advised)
        left = mismatches(executed(new_source), new_init)

    assert not {m.path for m in left} & {m.path for m in advised}
    assert {m.path for m in left} <= {m.path for m in found}


def only_exchanges(suggestion) -> bool:
    """Whether advice writes the same names in another order."""
    place = suggestion.place
    return place is not None and sorted(place.text) == sorted(suggestion.code)


EXCHANGED = """
def body(c, x):
    (c0, c1, c2) = c
    v0 = c0 + c0
    return [v0, c2, v0], x
"""


@given(programs())
@example((EXCHANGED, "[jnp.float32(1), jnp.float32(1), jnp.int32(1)]"))
def test_advice_for_a_dtype_keeps_the_values(program):
    """One step of the body with the advice gives what it gave before, rounded at most.

    Where two components had changed places they are in their own again.
    """
    source, init_source = program
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        init = eval(init_source, {"jnp": jnp})  # noqa: S307
        found = mismatches(executed(source), init)
        advised = [m for m in found if m.kind == "dtype" and m.suggestion is not None]
        target(len(advised))
        new_source, new_init = pasted(source, init, advised)
        x = jnp.float32(0.75)
        before, _ = jax.jit(executed(source))(init, x)
        after, _ = jax.jit(executed(new_source))(new_init, x)

    if any(only_exchanges(m.suggestion) for m in advised):
        before, after = (
            sorted(values, key=lambda v: (v.shape, v.ravel().tolist()))
            for values in (before, after)
        )
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(np.float32(old), np.float32(new), rtol=2e-2)


def body_code(source: str) -> Any:
    """A code object for edits that are only pasted."""
    return executed(source).__code__


@given(programs())
def test_every_mismatch_names_a_line_of_the_body(program):
    """Whatever breaks, the line that is named is one of the body's or its helper's."""
    source, init_source = program
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        init = eval(init_source, {"jnp": jnp})  # noqa: S307
        for mismatch in mismatches(executed(source), init):
            provenance = mismatch.provenance
            assert provenance is not None
            assert provenance.place.text in source.splitlines()[provenance.line - 1]
            assert provenance.file.startswith("<random body")
