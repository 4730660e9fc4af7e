"""The same program on several implementations of the loops: they have to do the same."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from checks.comparison import differences
from checks.errors import CarryTypeError
from checks.transformations import Transformation, standard


class Refusal(NamedTuple):
    """An error in the place of a result; two are the same if their kinds are."""

    kind: str
    error: Exception


class Agreement(NamedTuple):
    """What was compared under one transformation, and whether the result was an error in all."""

    transformation: str
    compared: tuple[str, ...]
    refused: bool


REVERSE_MODE = "reverse mode of a loop with an unknown number of steps"
NEEDS_VALUES = "a value that is not known while tracing"
CARRY_CONTRACT = "a carry that changes its type"
# How JAX's loops and those in Python say it.
_CONTRACT = ("carry input and carry output must have", "this body turns a carry")


def assert_loops_agree(
    program: Callable[..., Any],
    args: Sequence[Any],
    *,
    impls: Sequence[Any],
    transformations: Sequence[Transformation] | None = None,
    may_refuse: Sequence[Any] = (),
    rtol: float = 1e-4,
) -> list[Agreement]:
    """Run a program on several implementations of the loops, and compare what comes out.

    Values have to agree, and types, weak types among them; where one implementation raises an
    error, all have to raise one of the same kind. The first implementation is compared with each of
    the others.

    An implementation that has an attribute `unrolls` that is true, such as `checks.python_loops`,
    is taken for one that runs its loops in Python: it is run as `Transformation.by_hand` says, is
    left out where it would need a value that is traced, and may have derivatives in reverse where
    the others have none.

    Args:
      program: `program(loops, *args)`, where `loops` has `scan`, `while_loop`, `fori_loop` and
        whichever else of the loops' functions the program calls. A program of
        `checks.strategies.loop_programs` is one.
      args: the arguments.
      impls: at least two implementations, such as the modules `loops`, `jax.lax` and
        `checks.python_loops`.
      transformations: what to put the program through, see `checks.transformations`; the function
        itself, jit, vmap of all arguments, jvp and vjp by default.
      may_refuse: those of `impls` that may raise TypeError where the first has a result.
      rtol: by how much floats may differ.

    Returns:
      What was compared, an entry for each transformation.

    Raises:
      AssertionError: two implementations differ; says in what, and under which transformation.
      ValueError: there are fewer than two implementations.

    Example:
      >>> import jax.numpy as jnp, loops
      >>> from checks import python_loops
      >>> def total(loops, xs):
      ...     return loops.scan(lambda c, x: (c + x, c), 0.0, xs)
      >>> done = assert_loops_agree(total, [jnp.arange(3.0)], impls=[loops, jax.lax, python_loops])
      >>> done[0]
      Agreement(transformation='eager', compared=('jax.lax', 'checks.python_loops'), refused=False)
    """
    if len(impls) < 2:
        raise ValueError(f"impls must be at least two implementations, got {len(impls)}")
    if transformations is None:
        transformations = standard(len(args))
    return [_agreement(program, tuple(args), impls, t, may_refuse, rtol) for t in transformations]


def _agreement(
    program: Callable[..., Any],
    args: tuple[Any, ...],
    impls: Sequence[Any],
    transformation: Transformation,
    may_refuse: Sequence[Any],
    rtol: float,
) -> Agreement:
    args = transformation.prepare(args)
    first = outcome(program, impls[0], args, transformation)
    compared = []
    for impl in impls[1:]:
        other = outcome(program, impl, args, transformation)
        if _says_nothing(impl, first, other):
            continue
        allowed = any(impl is some for some in may_refuse) and not isinstance(first, Refusal)
        if allowed and isinstance(other, Refusal) and isinstance(other.error, TypeError):
            continue
        by_hand = transformation.weak_types_by_hand if _unrolls(impl) else True
        found = _compare(first, other, rtol, weak_types=transformation.weak_types and by_hand)
        if found:
            raise _disagreement(impls[0], impl, transformation, found, (first, other))
        compared.append(_name(impl))
    return Agreement(transformation.name, tuple(compared), isinstance(first, Refusal))


def outcome(
    program: Callable[..., Any], impl: Any, args: tuple[Any, ...], transformation: Transformation
) -> Any:
    """What comes out of the program, or why nothing does."""
    apply = transformation.by_hand if _unrolls(impl) else transformation.apply
    try:
        return jax.tree.map(_as_array, apply(lambda *a: program(impl, *a))(*args))
    except Exception as error:  # noqa: BLE001  (an error of any kind is an outcome)
        return Refusal(kind_of(error), error)


def _as_array(leaf: Any) -> Any:
    # A program may return a Python number, and JAX's loops return a carry of theirs unconverted.
    return leaf if isinstance(leaf, jax.Array | np.ndarray) else jnp.asarray(leaf)


def kind_of(error: Exception) -> str:
    """What two implementations have to agree in that refuse the same program.

    Example:
      >>> kind_of(jax.errors.UnexpectedTracerError("..."))
      'UnexpectedTracerError'
      >>> from checks import CarryStructureError
      >>> kind_of(CarryStructureError("..."))
      'a carry that changes its type'
    """
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return NEEDS_VALUES
    if isinstance(error, ValueError) and "Reverse-mode differentiation" in str(error):
        return REVERSE_MODE
    said = isinstance(error, TypeError) and any(text in str(error) for text in _CONTRACT)
    if said or isinstance(error, CarryTypeError):
        return CARRY_CONTRACT
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return type(error).__name__
    for kind in (TypeError, NotImplementedError, OverflowError, ValueError):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__


def _says_nothing(impl: Any, first: Any, other: Any) -> bool:
    """Whether an implementation in Python could not run, or could where no primitive can."""
    if not _unrolls(impl):
        return False
    needs_values = isinstance(other, Refusal) and other.kind == NEEDS_VALUES
    return needs_values or (isinstance(first, Refusal) and first.kind == REVERSE_MODE)


def _compare(first: Any, other: Any, rtol: float, *, weak_types: bool) -> list[str]:
    """The differences between two outcomes."""
    if isinstance(first, Refusal) and isinstance(other, Refusal):
        same = first.kind == other.kind
        return [] if same else [f"raises {first.error!r} instead of {other.error!r}"]
    if isinstance(first, Refusal):
        return [f"raises {first.error!r} instead of returning {other}"]
    if isinstance(other, Refusal):
        return [f"returns {first} instead of raising {other.error!r}"]
    return differences(first, other, rtol=rtol, weak_types=weak_types)


def _disagreement(
    first: Any, other: Any, transformation: Transformation, found: list[str], outcomes: Any
) -> AssertionError:
    message = (
        f"{_name(first)} and {_name(other)} disagree under {transformation}; "
        f"{_name(first)} has\n  " + "\n  ".join(found)
    )
    error = AssertionError(message)
    error.__cause__ = next((o.error for o in outcomes if isinstance(o, Refusal)), None)
    return error


def _unrolls(impl: Any) -> bool:
    return bool(getattr(impl, "unrolls", False))


def _name(impl: Any) -> str:
    return getattr(impl, "name", None) or getattr(impl, "__name__", repr(impl))
