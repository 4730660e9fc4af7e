"""The carry contract of a body, tested for every carry that a strategy draws."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from checks.body_steps import BODY_NAMES, Checks, Step, as_step, length_of, row_of, run, settle
from checks.comparison import differences, is_float
from checks.errors import CarryTypeError
from checks.finite_differences import check_gradient
from checks.static import check_fori, check_scan, check_while


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
    if loop not in BODY_NAMES:
        raise ValueError(f"loop must be one of {list(BODY_NAMES)}, got {loop!r}")
    hypothesis = _import_hypothesis()
    wanted = Checks(loop, loops, steps, weak_types, finite, jit, vmap, gradient, rtol)
    rows = hypothesis.strategies.none() if xs is None else xs
    has_rows = xs is not None
    last: list[Any] = []
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
        last[:] = [carry, xs]
        check_one(body, carry, xs if has_rows else None, wanted)

    try:
        carry_contract()
    except CarryTypeError as error:  # of the smallest carry, which is what was run last
        _explain(error, body, last[0], last[1] if has_rows else None, wanted)
        raise


def _import_hypothesis() -> Any:
    try:
        import hypothesis  # noqa: PLC0415  (an extra, needed by this alone)
        import hypothesis.strategies  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "assert_carry_contract needs Hypothesis: pip install 'carryloops[test]'"
        ) from error
    return hypothesis


def _explain(error: CarryTypeError, body: Any, carry: Any, xs: Any, wanted: Checks) -> None:
    """Add what the static checks know: the line that changed the type, and advice that was tried.

    Only for the error that is shown, because trying takes longer than all other checks.
    """
    try:
        if wanted.loop == "while":
            check_while(lambda _: True, body, carry)
        elif wanted.loop == "fori":
            check_fori(0, wanted.steps, body, carry)
        else:
            check_scan(body, carry, xs, None if jax.tree.leaves(xs) else wanted.steps)
    except CarryTypeError as explained:
        if str(explained) == str(error):
            error.mismatches = explained.mismatches
        for note in getattr(explained, "__notes__", []):
            error.add_note(note)


def check_one(body: Callable[..., Any], carry: Any, xs: Any, wanted: Checks) -> None:
    """Check a body for one carry."""
    step = as_step(body, wanted.loop)
    length = wanted.steps if xs is None else length_of(xs)
    settled = settle(body, step, carry, row_of(xs), wanted)
    done = list(run(body, step, settled, xs, length, wanted))
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
        check_gradient(step, done[0], wanted.rtol)
    if wanted.loops is not None:
        _check_loop(body, carry, xs, done, settled, wanted)


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
