"""Advice for a carry that grows: the buffer ends up with what the growing array would have held."""

import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import checks
import loops

XS = jnp.array([2.0, 3.0, 5.0])
NAMES = {"jnp": jnp, "jax": jax}

# Expressions that return `c` with more rows than it had.
KEEP_ROWS_APART = [
    "jnp.append(c, x)",
    "jnp.append(x, c)",
    "jnp.append(c, c[-1] + x)",
    "jnp.append(c[0] * x, c)",
    "jnp.append(0.5 * c, x)",
    "jnp.append(c, x) + 1.0",
    "jnp.concatenate([c, c[-1:] * x])",
    "jnp.concatenate([c, jnp.stack([x, x])])",
    "jnp.hstack([x, c])",
    "jnp.pad(c, (0, 1)) * x",
    "jnp.pad(c, (2, 0))",
    "jax.jit(jnp.append)(c, x)",
    "jnp.where(c[-1] > 4, jnp.append(c, x), jnp.append(c, x))",
]
MIX_ROWS = [
    "jnp.append(c, c.mean())",
    "jnp.append(c + jnp.ones(3), x)",  # takes three rows and no more
    "jnp.append(c, c[0] + x)",
    "jnp.append(x, c[-1] + c)",
    "jnp.append(c, x).cumsum()",
    "jnp.append(c, x)[::-1]",
    "jnp.concatenate([c[1:], c[:1] * x, c[:1]])",
    "jnp.concatenate([c, x[None], c[:0]]) - c.max()",
    "jnp.pad(c, (1, 1))",
    "jnp.sort(jnp.append(c, x))",
]
# The same of a list or tuple `c`.
ONLY_LENGTHEN = ["c + [x]", "[*c, x * 2]", "c + (x,)", "(*c, 2 * x)"]
DO_MORE = [
    "[x, *c]",
    "c + [x, x]",
    "c + [x * len(c)]",
    "c + [c[-1] * x]",
    "c + [c[0] * x]",
    "c[::-1] + [x]",
    "[c[0] + x, *c[1:], x]",
    "c + [x] if len(c) < 3 else c + [2 * x]",
]


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Bodies here promote as users' do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def grown(expression: str, init: Any) -> Any:
    """What a Python loop makes of the growing array."""
    for x in XS:
        init = eval(expression, {**NAMES, "c": init, "x": x})  # noqa: S307  our own
    return init


def advice(expression: str, init: Any, count: list = []) -> Any:  # noqa: B006
    """What is suggested for a scan's body that returns the expression."""
    count.append(expression)
    file, source = f"<growing {len(count)}>", f"lambda c, x: ({expression}, x)"
    linecache.cache[file] = len(source), None, [source], file
    body = eval(compile(source, file, "eval"), dict(NAMES))  # noqa: S307  our own
    with pytest.raises(checks.CarryTypeError) as caught:
        loops.scan(body, init, XS)
    return caught.value.mismatches[0].suggestion


@pytest.mark.parametrize("expression", KEEP_ROWS_APART[:-1])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_buffer_holds_the_grown_array(expression, rows):
    """Wherever rows are added and whichever row is read besides."""
    init = jnp.arange(1.0, rows + 1)
    suggestion = advice(expression, init)
    start = eval(suggestion.init_code, {**NAMES, "init": init})  # noqa: S307  our own
    mended = expression.replace(suggestion.replaces, suggestion.code)
    run = lambda c, x: (eval(mended, {**NAMES, "c": c, "x": x}), None)  # noqa: S307  our own

    np.testing.assert_allclose(grown(expression, init), loops.scan(run, start, XS)[0])


@pytest.mark.parametrize("expression", [*MIX_ROWS, KEEP_ROWS_APART[-1]])
def test_no_buffer_where_rows_are_mixed(expression):
    """What would count, sort or read rows that are not there yet gets no advice."""
    assert advice(expression, jnp.arange(1.0, 4.0)) is None


@pytest.mark.parametrize("expression", ONLY_LENGTHEN)
@pytest.mark.parametrize("length", [0, 2])
def test_rows_hold_the_elements_of_a_list(length, expression):
    """The last row is written and the others move, from an empty list or from one that is not."""
    kind = list if "[" in expression else tuple
    init = kind(jnp.arange(1.0, length + 1))
    suggestion = advice(expression, init)
    start = eval(suggestion.init_code, {**NAMES, "init": init})  # noqa: S307  our own
    mended = expression.replace(suggestion.replaces, suggestion.code)
    run = lambda c, x: (eval(mended, {**NAMES, "c": c, "x": x}), None)  # noqa: S307  our own

    np.testing.assert_allclose(grown(expression, init), loops.scan(run, start, XS)[0])


@pytest.mark.parametrize("expression", DO_MORE)
def test_no_rows_where_a_list_is_read(expression):
    """Its elements and its length are others in an array that is long enough from the start."""
    assert advice(expression, list(jnp.arange(1.0, 3.0))) is None


def test_no_array_of_keys():
    """There are no zeros of a key's type."""
    key = jax.random.key(0)
    with pytest.raises(checks.CarryStructureError) as caught:
        loops.scan(lambda c, x: ([*c, key], x), [key], XS)
    assert caught.value.mismatches[0].suggestion is None


def test_elements_at_the_index():
    """In a counted loop the row is written where the index says, also in place of `append`."""

    def body(i, state):
        position, path = state["position"], state["path"]
        path.append(position)
        return {"position": 2 * position, "path": path}

    for first in (0, 2):
        init = {"position": jnp.float32(1), "path": [jnp.float32(7)]}
        with pytest.raises(checks.CarryStructureError) as caught:
            loops.fori_loop(first, first + 3, body, init)
        suggestion: Any = caught.value.mismatches[0].suggestion
        where = {0: "i + 1", 2: "i - 1"}[first]
        assert suggestion.code == f"path = path.at[{where}].set(position)"
        assert suggestion.replaces == "path.append(position)"
        path = eval(suggestion.init_code, {**NAMES, "init": init})  # noqa: S307  our own
        np.testing.assert_allclose(path, [7, 0, 0, 0])


def test_no_buffer_where_the_ys_hold_the_carry():
    """The ys of each step would have another shape."""
    with pytest.raises(checks.CarryTypeError) as caught:
        loops.scan(lambda c, x: (jnp.append(c, x), c.sum()), jnp.ones(2), XS)
    assert caught.value.mismatches[0].suggestion is None


def test_rows_at_the_index():
    """In a counted loop the row is written where the index says, from whichever bound."""
    for bounds in [(0, 3), (2, 5), (jnp.int32(-1), jnp.int32(2))]:
        with pytest.raises(checks.CarryTypeError) as caught:
            loops.fori_loop(*bounds, lambda i, c: jnp.append(c, i * 2.0), jnp.ones(2))
        suggestion: Any = caught.value.mismatches[0].suggestion
        init = eval(suggestion.init_code, {**NAMES, "init": jnp.ones(2)})  # noqa: S307  our own
        mended = eval(f"lambda i, c: {suggestion.code}", dict(NAMES))  # noqa: S307  our own

        assert ".at[i" in suggestion.code
        want = [1, 1, *(2.0 * np.arange(int(bounds[0]), int(bounds[1])))]
        np.testing.assert_allclose(want, loops.fori_loop(*bounds, mended, init))


def test_rows_of_an_unpacked_part():
    """The array may have a name of its own in the body."""

    def body(i, state):
        x, rows = state
        return 2 * x, jnp.append(rows, x)

    with pytest.raises(checks.CarryTypeError) as caught:
        loops.fori_loop(0, 3, body, (jnp.float32(1), jnp.zeros(1)))
    suggestion: Any = caught.value.mismatches[0].suggestion
    assert suggestion.code == "rows.at[i + 1].set(x)"
