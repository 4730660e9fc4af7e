"""The carry contract of a body, tested for every carry that a strategy draws."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from checks.carry import _check_carry_type
from checks.comparison import differences, is_float
from checks.errors import CarryMismatch, CarryTypeError
from checks.promotion import promote_weak_avals
from checks.python_loops import as_type
from checks.transformations import cotangents_of, of_floats, tangents_of

_NAMES = {"scan": "scan body", "fori": "scan body", "while": "while_loop body"}


class Checks(NamedTuple):
    """Which promises of a body are checked; see `assert_carry_contract`."""

    loop: str
    loops: Any
    steps: int
    weak_types: bool
    finite: bool
    jit: bool
    vmap: bool
    gradient: bool
    rtol: float


def assert_carry_contract(
    body: Callable[..., Any],
    *,
    carries: Any,
    xs: Any = None,
    loop: str = "scan",
    loops: Any = None,
    steps: int = 3,
    weak_types: bool = False,
    finite: bool = False,
    jit: bool = True,
    vmap: bool = True,
    gradient: bool = False,
    rtol: float = 1e-4,
    settings: Any = None,
) -> None:
    """Test that a loop body keeps its contract, for every carry that a strategy draws.

    For each carry the body is traced, as a loop would, and run a few steps on its own. Always
    checked is the contract: the carry that comes out has the structure, shapes and dtypes of the
    one that goes in; a weakly typed one may be promoted, as the loops do it.

    Args:
      body: `(carry, x) -> (carry, y)` of a scan, or as `loop` says.
      carries: a Hypothesis strategy of initial carries.
      xs: a strategy of what a scan runs over, a leading axis in each leaf; `x` is None without it.
      loop: `scan`; `while` for a body `carry -> carry`; `fori` for `(index, carry) -> carry`.
      loops: an implementation, such as the module `loops` or `jax.lax`: its loop over the body has
        to give what the steps give one by one. For a while loop it runs `steps` steps.
      steps: how many steps are run without `xs`.
      weak_types: also refuse a weak type that comes out strong, or the reverse: loops accept it,
        but the first may cost a second trace.
      finite: no float of a carry or y becomes infinite or NaN.
      jit: the body gives the same compiled and not.
      vmap: the body gives the same for the carries of all steps at once and one by one.
      gradient: derivatives agree with finite differences, and reverse mode with forward mode. Where
        the body has a corner the derivative may be that of either side. Only leaves of at least 32
        bits are differentiated.
      rtol: by how much floats may differ.
      settings: `hypothesis.settings`; the current profile by default.

    Raises:
      CarryTypeError: the contract is broken. As with the other errors, the smallest carry for which
        it is stands in a note.
      AssertionError: one of the other promises is.
      ImportError: Hypothesis is missing.
      ValueError: `loop` is unknown.

    Example:
      >>> import hypothesis
      >>> import checks, checks.strategies
      >>> def body(carry, x):
      ...     return {"mean": carry["mean"] + 0.1 * (x - carry["mean"])}, None
      >>> checks.assert_carry_contract(
      ...     body,
      ...     carries=checks.strategies.inits({"mean": jnp.float32(0)}),
      ...     xs=checks.strategies.xs(jnp.float32(0)),
      ...     settings=hypothesis.settings(max_examples=10, derandomize=True),
      ... )
    """
    if loop not in _NAMES:
        raise ValueError(f"loop must be one of {list(_NAMES)}, got {loop!r}")
    hypothesis = _import_hypothesis()
    wanted = Checks(loop, loops, steps, weak_types, finite, jit, vmap, gradient, rtol)
    rows = hypothesis.strategies.none() if xs is None else xs
    has_rows = xs is not None
    if settings is None:
        settings = hypothesis.settings()

    @hypothesis.settings(
        settings,
        deadline=None,  # the first example pays for compiling
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(carry=carries, xs=rows)
    def carry_contract(carry: Any, xs: Any) -> None:
        check_one(body, carry, xs if has_rows else None, wanted)

    carry_contract()


def _import_hypothesis() -> Any:
    try:
        import hypothesis  # noqa: PLC0415  (an extra, needed by this alone)
        import hypothesis.strategies  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "assert_carry_contract needs Hypothesis: pip install 'carryloops[test]'"
        ) from error
    return hypothesis


class Step(NamedTuple):
    """One step that was run: what went in and what came out."""

    index: Any
    carry: Any
    x: Any
    new_carry: Any
    y: Any


def check_one(body: Callable[..., Any], carry: Any, xs: Any, wanted: Checks) -> None:
    """Check a body for one carry."""
    step = _as_step(body, wanted.loop)
    length = wanted.steps if xs is None else _length(xs)
    row = jax.tree.map(lambda leaf: _struct(_shorter(jax.typeof(jnp.asarray(leaf)))), xs)
    settled = settle(body, step, carry, row, wanted)
    done = list(_run(body, step, settled, xs, length, wanted))
    for one in done if wanted.finite else ():
        _check_finite(one)
    for one in (done[:1] + done[-1:]) if wanted.jit else ():
        again = jax.jit(step)(one.index, one.carry, one.x)
        _check_same("compiled", again, (one.new_carry, one.y), wanted.rtol)
    if wanted.vmap and done:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *done)
        lanes = jax.vmap(step)(stacked.index, stacked.carry, stacked.x)
        _check_same("batched", lanes, (stacked.new_carry, stacked.y), wanted.rtol)
    if wanted.gradient and done:
        _check_gradient(step, done[0], wanted.rtol)
    if wanted.loops is not None:
        _check_loop(body, carry, xs, done, settled, wanted)


def _as_step(body: Callable[..., Any], loop: str) -> Callable[..., Any]:
    """The body as `(index, carry, x) -> (carry, y)`."""

    def step(index: Any, carry: Any, x: Any) -> Any:
        if loop == "while":
            return body(carry), None
        if loop == "fori":
            return body(index, carry), None
        out = body(carry, x)
        if not isinstance(out, tuple | list) or len(out) != 2:
            raise TypeError(f"scan body output must be a pair, got {out}.")
        return tuple(out)

    return step


def _length(xs: Any) -> int:
    lengths = {np.shape(leaf)[0] for leaf in jax.tree.leaves(xs)}
    if len(lengths) != 1:
        raise ValueError(f"the leaves of xs have different lengths: {sorted(lengths)}")
    return lengths.pop()


def settle(
    body: Callable[..., Any], step: Callable[..., Any], carry: Any, row: Any, wanted: Checks
) -> Any:
    """The initial carry as a loop would run it: of the types at which promotion settles.

    Raises:
      CarryTypeError: the body returns another type than it takes.
    """
    leaves, treedef = jax.tree.flatten(carry)
    avals = [jax.typeof(jnp.asarray(leaf)) for leaf in leaves]
    began_weak = [aval.weak_type for aval in avals]
    if wanted.weak_types:
        began_weak = [False] * len(avals)
    index = _struct(jax.typeof(jnp.asarray(0)))
    while True:
        inputs = jax.tree.unflatten(treedef, [_struct(aval) for aval in avals])
        # A function of its own each time: eval_shape remembers what it saw by function.
        out, _ = jax.eval_shape(functools.partial(step), index, inputs, row)
        out_avals = [_aval(leaf) for leaf in jax.tree.leaves(out)]
        in_carry = jax.tree.unflatten(treedef, avals)
        same_tree = jax.tree.structure(out) == treedef
        promoted = promote_weak_avals(avals, out_avals, began_weak) if same_tree else []
        if wanted.weak_types or not any(p is not None for p in promoted):
            break
        avals = [a if p is None else p for a, p in zip(avals, promoted, strict=True)]
    name = _NAMES[wanted.loop]
    _check_carry_type(name, body, in_carry, jax.tree.structure(out), out_avals)
    if wanted.weak_types:
        _check_weak_types(name, in_carry, out_avals)
    arrays = [as_type(leaf, aval) for leaf, aval in zip(leaves, avals, strict=True)]
    return jax.tree.unflatten(treedef, arrays)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _shorter(aval: Any) -> ShapedArray:
    return ShapedArray(aval.shape[1:], aval.dtype, weak_type=aval.weak_type)


def _aval(struct: Any) -> ShapedArray:
    return ShapedArray(struct.shape, struct.dtype, weak_type=struct.weak_type)


def _check_weak_types(name: str, in_carry: Any, out_avals: list[ShapedArray]) -> None:
    """Raise where a leaf's weak type changes, which the loops' own check lets pass."""
    leaves = jax.tree_util.tree_leaves_with_path(in_carry)
    differing = [
        (path, before, after)
        for (path, before), after in zip(leaves, out_avals, strict=True)
        if before.weak_type != after.weak_type
    ]
    if not differing:
        return
    words = {True: "weakly", False: "strongly"}
    sentences = [
        f"carry{jax.tree_util.keystr(path)} goes in {words[before.weak_type]} typed and comes out "
        f"{words[after.weak_type]} typed"
        for path, before, after in differing
    ]
    raise CarryTypeError(
        f"{name} function changes weak types: {'; '.join(sentences)}.",
        name=name,
        mismatches=tuple(
            CarryMismatch(path, f"carry{jax.tree_util.keystr(path)}", before, after, "other")
            for path, before, after in differing
        ),
    )


def _run(
    body: Callable[..., Any],
    step: Callable[..., Any],
    carry: Any,
    xs: Any,
    length: int,
    wanted: Checks,
) -> Iterator[Step]:
    """The steps, each checked against the contract as it is run."""
    treedef = jax.tree.structure(carry)
    avals = [jax.typeof(leaf) for leaf in jax.tree.leaves(carry)]
    for position in range(length):
        x = jax.tree.map(lambda leaf, i=position: jnp.asarray(leaf)[i], xs)
        index = jnp.asarray(position)
        out, y = jax.tree.map(jnp.asarray, step(index, carry, x))
        out_leaves, out_tree = jax.tree.flatten(out)
        in_carry = jax.tree.unflatten(treedef, avals)
        out_avals = [jax.typeof(leaf) for leaf in out_leaves]
        _check_carry_type(_NAMES[wanted.loop], body, in_carry, out_tree, out_avals)
        yield Step(index, carry, x, out, y)
        kept = [as_type(leaf, aval) for leaf, aval in zip(out_leaves, avals, strict=True)]
        carry = jax.tree.unflatten(treedef, kept)


def _check_finite(step: Step) -> None:
    for part, tree in (("carry", step.new_carry), ("y", step.y)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if is_float(leaf) and not bool(jnp.all(jnp.isfinite(leaf))):
                where = f"{part}{jax.tree_util.keystr(path)}"
                raise AssertionError(f"{where} is {leaf} after step {step.index}: not finite")


def _check_same(how: str, got: Any, want: Any, rtol: float) -> None:
    found = differences(got, want, rtol=rtol, weak_types=False)
    if found:
        raise AssertionError(
            f"the body gives another (carry, y) {how} than on its own:\n  " + "\n  ".join(found)
        )


def _check_gradient(step: Callable[..., Any], one: Step, rtol: float) -> None:
    """Forward mode against differences to either side, and reverse against forward mode."""
    fun, floats = _of_wide_floats(step, one)
    if not floats:
        return
    tangents = tangents_of(floats)
    out, pushed = jax.jvp(fun, floats, tangents)
    size = 1e-2 if any(x.dtype == np.float32 for x in floats) else 1e-5
    sides = [_difference_quotient(fun, floats, tangents, out, h) for h in (size, -size)]
    for got, left, right in zip(pushed, *sides, strict=True):
        low, high = jnp.minimum(left, right), jnp.maximum(left, right)
        slack = max(rtol, size) * (1 + jnp.abs(got))
        if not bool(jnp.all((low - slack <= got) & (got <= high + slack))):
            raise AssertionError(
                f"the body's derivative is {got}, but differences of {size} to either side "
                f"give {left} and {right}"
            )
    _, pull = jax.vjp(fun, *floats)
    cotangents = cotangents_of(out)
    forward, backward = _inner(cotangents, pushed), _inner(pull(cotangents), tangents)
    if not np.allclose(forward, backward, rtol=max(rtol, 1e-3), atol=1e-3):
        raise AssertionError(
            f"the body's derivative is {forward} forward but {backward} in reverse, "
            "along the same direction"
        )


def _of_wide_floats(step: Callable[..., Any], one: Step) -> tuple[Callable[..., Any], Any]:
    """The step as a function of its real floats that finite differences can tell apart."""
    inner, floats = of_floats(step, (one.index, one.carry, one.x))
    is_wide = [x.dtype in (np.float32, np.float64) for x in floats]

    def fun(*wide: Any) -> list[Any]:
        rest = iter(wide)
        filled = [next(rest) if w else x for x, w in zip(floats, is_wide, strict=True)]
        leaves = jax.tree.leaves(inner(*filled))
        return [leaf for leaf in leaves if leaf.dtype in (np.float32, np.float64)]

    return fun, tuple(x for x, w in zip(floats, is_wide, strict=True) if w)


def _difference_quotient(fun: Any, floats: Any, tangents: Any, out: Any, size: float) -> list[Any]:
    moved = fun(*(x + jnp.asarray(size, x.dtype) * t for x, t in zip(floats, tangents)))
    return [(there - here) / jnp.asarray(size, here.dtype) for there, here in zip(moved, out)]


def _inner(left: Any, right: Any) -> float:
    return sum(float(jnp.vdot(a, b)) for a, b in zip(left, right, strict=True))


def _check_loop(
    body: Callable[..., Any], carry: Any, xs: Any, done: list[Step], settled: Any, wanted: Checks
) -> None:
    """The loop of an implementation against the steps one by one."""
    length = len(done)
    want = done[-1].new_carry if done else settled
    if wanted.loop == "fori":
        got = wanted.loops.fori_loop(0, length, body, carry)
    elif wanted.loop == "while":
        counted = lambda pair: (pair[0] + 1, body(pair[1]))  # noqa: E731
        start = (jnp.int32(0), carry)
        _, got = wanted.loops.while_loop(lambda pair: pair[0] < length, counted, start)
    else:
        got, ys = wanted.loops.scan(body, carry, xs, length)
        if done:
            want_ys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one.y for one in done])
            got, want = (got, ys), (want, want_ys)
    _check_same("in a loop", got, want, wanted.rtol)
