"""Strategies for loop bodies: such that keep the carry contract, and such that break it."""

import dataclasses
import functools
import inspect
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from jax.core import ShapedArray

from checks.strategies.pytrees import carries as all_carries
from checks.strategies.pytrees import inits, type_of
from checks.strategies.sources import IMPORTS, Assign, Block, function_source, run_source
from checks.strategies.types import python_type_of
from checks.strategies.validation import check_choice, check_size, check_strategy

LOOPS = ("scan", "while", "fori")
DRIFTS = ("dtype", "shape", "structure", "weak")
KeyPath = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A loop body: called as the loop calls it, it runs its source.

    Args:
      loop: `scan` for `(carry, x) -> (carry, y)`, `while` for `carry -> carry` and `fori` for
        `(index, carry) -> carry`.
      carry: a carry that it takes.
      x: a row that it takes, of a scan.
      source: Python source that defines `body`.
      drift: how the carry that comes out differs from the one that goes in, None if it does not.
      path: key path of the leaf of `carry` that differs.
    """

    loop: str
    carry: Any
    x: Any
    source: str
    drift: str | None
    path: KeyPath | None

    @functools.cached_property
    def _function(self) -> Any:
        return run_source(self.source)["body"]

    @property
    def __name__(self) -> str:
        return "body"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)  # errors name the carry after the parameter

    def __call__(self, *args: Any) -> Any:
        """Run the body."""
        return self._function(*args)

    @property
    def component(self) -> str:
        """The leaf that drifts, as the body's author writes it; empty if none does."""
        return "" if self.path is None else f"carry{jax.tree_util.keystr(self.path)}"

    def __repr__(self) -> str:
        drift = f", whose {self.component} drifts in {self.drift}" if self.drift else ""
        source = textwrap.indent(self.source, "    ")
        return f"<the body\n{source}\n    for the carry {self.carry!r}{drift}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        printer.text(repr(self))  # in the place of all fields, which Hypothesis would print


@st.composite
def bodies(
    draw: st.DrawFn,
    *,
    loop: str = "scan",
    carries: st.SearchStrategy[Any] | None = None,
    drift: str | None = None,
    path: KeyPath | None = None,
    max_statements: int = 8,
) -> Body:
    """Loop bodies that keep the carry contract, or break it in one leaf and in a chosen way.

    Shrinks towards a body that hands its carry on, apart from the drift.

    Args:
      draw: given by Hypothesis.
      loop: `scan`, `while` or `fori`: how the body is called.
      carries: a strategy of carries to write a body for; `carries()` by default.
      drift: None for a body that keeps the contract, or what differs in the carry that comes out:
        `dtype` (of a strong number, which no promotion mends), `shape`, `structure` (there is a
        tuple in the place of the leaf), or `weak` (a weak leaf comes out strong with the same
        dtype, which loops accept).
      path: key path of the leaf to drift, as `jax.tree_util.tree_leaves_with_path` gives it for
        the carry. By default one of the leaves that can is drawn.
      max_statements: the greatest number of statements before the result.

    Returns:
      A strategy of `Body`.

    Raises:
      hypothesis.errors.InvalidArgument: an argument is not of those described.

    Example:
      >>> import hypothesis
      >>> import loops
      >>> body = hypothesis.find(bodies(drift="shape"), lambda body: True)
      >>> print(body.source)
      import jax
      import jax.numpy as jnp
      <BLANKLINE>
      def body(carry, x):
          v0 = carry
          return jnp.asarray(v0)[None], None
      <BLANKLINE>
      >>> body.component, body.drift
      ('carry', 'shape')
      >>> loops.scan(body, body.carry, body.x[None])
      Traceback (most recent call last):
      ...
      checks.errors.CarryTypeError: scan body function carry input and ...
    """
    check_choice(loop, "loop", LOOPS)
    check_strategy(carries, "carries")
    if drift is not None:
        check_choice(drift, "drift", DRIFTS)
    if path is not None and (drift is None or not isinstance(path, tuple)):
        raise InvalidArgument(f"path must be a key path, and only with a drift, got {path!r}")
    check_size(max_statements, "max_statements")
    carry = draw(all_carries() if carries is None else carries)
    if drift is not None:
        path, carry = _choose_leaf(draw, carry, drift, path, carries is None)
    text = _BodyText(draw, carry, loop == "scan", max_statements)
    source = text.source(loop, drift, path)
    x = draw(inits(ShapedArray((), jnp.dtype("float32")))) if loop == "scan" else None
    return Body(loop, carry, x, source, drift, path)


def _choose_leaf(
    draw: st.DrawFn, carry: Any, drift: str, path: KeyPath | None, may_change: bool
) -> tuple[KeyPath, Any]:
    """A leaf that can drift in that way, in a carry that is changed to have one if it may be."""
    with_paths = jax.tree_util.tree_leaves_with_path(carry)
    able = [p for p, leaf in with_paths if can_drift(leaf, drift) and path in (None, p)]
    if not able and may_change and path is None:
        carry = 0.0 if drift == "weak" else jnp.float32(0)
        able = [()]
    assume(able)
    return draw(st.sampled_from(able)), carry


def can_drift(leaf: Any, drift: str) -> bool:
    """Whether a leaf's type can change in that way and no promotion mends it.

    Example:
      >>> can_drift(1.0, "dtype"), can_drift(jnp.float32(1), "dtype"), can_drift(1.0, "weak")
      (False, True, True)
    """
    aval = type_of(leaf)
    if drift == "weak":
        return aval.weak_type
    is_key = jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
    return drift != "dtype" or not (aval.weak_type or is_key)


class _BodyText:
    """A body's source while it is drawn: the variables so far, by their types."""

    def __init__(self, draw: st.DrawFn, carry: Any, has_x: bool, max_statements: int) -> None:
        self.draw, self.carry = draw, carry
        self.statements: list[Assign] = []
        self.by_type: dict[ShapedArray, list[str]] = {}
        self.avals: list[ShapedArray] = []
        self.count = 0
        if has_x:
            self.by_type[ShapedArray((), jnp.dtype("float32"))] = ["x"]
        for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
            self.avals.append(type_of(leaf))
            self.assign(f"carry{jax.tree_util.keystr(path)}", self.avals[-1])
        self.first = [f"v{i}" for i in range(len(self.avals))]
        if self.avals:
            for _ in range(draw(st.integers(0, max_statements))):
                self.draw_statement()

    def assign(self, expression: str, aval: ShapedArray) -> None:
        name = f"v{self.count}"
        self.count += 1
        self.statements.append(Assign(name, expression))
        self.by_type.setdefault(aval, []).append(name)

    def draw_statement(self) -> None:
        """One more variable, of the type of a leaf and computed from others of that type."""
        aval = self.draw(st.sampled_from(self.avals))
        names = st.sampled_from(self.by_type[aval])
        template = self.draw(st.sampled_from(_templates(aval)))
        self.assign(template.format(self.draw(names), self.draw(names)), aval)

    def source(self, loop: str, drift: str | None, path: KeyPath | None) -> str:
        """The whole source, the carry that it returns made of variables of the right types."""
        paths = [p for p, _ in jax.tree_util.tree_leaves_with_path(self.carry)]
        results = []
        for leaf_path, aval, first in zip(paths, self.avals, self.first, strict=True):
            names = [first, *(n for n in self.by_type[aval] if n != first)]
            name = self.draw(st.sampled_from(names))
            drifts = drift if leaf_path == path else None
            results.append(drifted(name, aval, drifts))
        result = container_source(jax.tree.unflatten(jax.tree.structure(self.carry), results))
        if loop == "scan":
            y = self.draw(st.sampled_from(["None", "x", *self.first]))
            result = f"{result}, {y}"
        parameters = {"scan": "carry, x", "while": "carry", "fori": "i, carry"}[loop]
        block = Block(tuple(self.statements), ())
        body = function_source("body", parameters, block, result)
        classes = [name for name in ("Pair", "Record") if f"{name}(" in result]
        more = f"from checks.strategies import {', '.join(classes)}\n" if classes else ""
        return f"{IMPORTS}{more}\n{body}"


def _templates(aval: ShapedArray) -> tuple[str, ...]:
    """Expressions of two operands of this type whose results have this type."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return ("{0}[::-1]", "{1}") if aval.shape else ("jax.random.fold_in({0}, 1)",)
    if aval.dtype == bool:
        return ("jnp.logical_not({0})", "{0} ^ {1}", "{0} & {1}")
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        smooth = ("0.5 * ({0} + {1})", "jnp.tanh({0})", "jnp.cos({0} - {1})")
        real = ("jnp.maximum({0}, {1})", "jnp.where({0} > {1}, {0}, {1})")
        return smooth if jnp.issubdtype(aval.dtype, jnp.complexfloating) else smooth + real
    return ("{0} + 1", "{0} + {1}", "{0} * {1}", "jnp.minimum({0}, {1})")


def drifted(name: str, aval: ShapedArray, drift: str | None) -> str:
    """The variable, with its type changed in that way.

    Example:
      >>> drifted("v0", ShapedArray((2,), jnp.dtype("float32")), "dtype")
      'v0.astype("int32")'
    """
    match drift:
        case "shape":
            return f"jnp.asarray({name})[None]"
        case "structure":
            return f"({name},)"
        case "weak":
            return f'jax.lax.convert_element_type({name}, "{aval.dtype}")'
        case "dtype" if jnp.issubdtype(aval.dtype, jnp.complexfloating):
            return f"jnp.real({name})"
        case "dtype":
            other = "float32" if python_type_of(aval.dtype) is int else "int32"
            return f'{name}.astype("{other}")'
        case _:
            return name


def container_source(tree: Any) -> str:
    """A pytree of expressions as one expression.

    Example:
      >>> print(container_source({"a": ("x", None), "b": ["y"]}))
      {'a': (x, None,), 'b': [y]}
    """
    match tree:
        case str() | None:
            return str(tree)
        case dict():
            items = ", ".join(f"{key!r}: {container_source(value)}" for key, value in tree.items())
            return f"{{{items}}}"
        case list():
            return f"[{', '.join(map(container_source, tree))}]"
        case tuple() if hasattr(tree, "_fields"):
            return f"{type(tree).__name__}({', '.join(map(container_source, tree))})"
        case tuple():
            return f"({''.join(container_source(item) + ', ' for item in tree)})".replace(
                ", )", ",)"
            )
        case _:
            values = [getattr(tree, f.name) for f in dataclasses.fields(tree)]
            arguments = [v if isinstance(v, str) and not v else container_source(v) for v in values]
            return f"{type(tree).__name__}({', '.join(a for a in arguments if a)})"
