"""`fori_loop`: a counted loop, on the road that its bounds allow.

Bounds whose values are known while tracing, or that are symbolic dimensions of `jax.export`, give a
`scan`, which can be differentiated in reverse; a traced bound gives a `while`.

    scan   carry (index, value)
    while  carry (index, upper, value), as long as index < upper
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from checks import CarryTypeError, explain_fori
from loops import _jax
from loops.bounds import Bounds, check_bounds
from loops.scan import scan_named
from loops.while_loop import while_loop_named
from loops.wrappers import fori_scan_body, fori_while_body, fori_while_cond

Carry = TypeVar("Carry")


@_jax.api_boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Carry], Carry],
    init_val: Carry,
    *,
    unroll: int | bool | None = None,
) -> Carry:
    """Run `body_fun` for each integer from `lower` up to, but not including, `upper`.

    It computes what this Python function does, compiled as one loop::

        def fori_loop(lower, upper, body_fun, init_val):
            val = init_val
            for i in range(lower, upper):
                val = body_fun(i, val)
            return val

    Where both bounds are known while tracing, or are symbolic dimensions of `jax.export`, the loop
    becomes a `scan`, and reverse-mode differentiation works; where one is traced it becomes a
    `while`, and reverse mode does not. Either way the index has the integer type of the bounds.

    Args:
      lower: the first index, an integer scalar.
      upper: one more than the last index, of the same integer type; a Python int takes the type of
        the other bound. If it is not above `lower`, nothing runs. Bounds that are traced floats
        count in floats; a float whose value is known is refused, never truncated.
      body_fun: `(index, carry) -> carry`.
      init_val: the initial carry, any pytree; see `scan` for the contract.
      unroll: how many steps one turn of the compiled loop runs; True or 0 for all of them. Only for
        bounds known while tracing.

    Returns:
      The carry after the last step.

    Raises:
      checks.CarryTypeError: the carry that comes out of `body_fun` differs in type.
      TypeError: a bound is no integer scalar, or the two have different integer types.
      OverflowError: an index does not fit the integer type.
      ValueError: `unroll` with a traced bound.

    Example:
      >>> print(fori_loop(0, 5, lambda i, total: total + i, 0))
      10
    """
    if not callable(body_fun):
        raise TypeError(f"lax.fori_loop: body_fun must be callable, got {type(body_fun).__name__}.")
    bounds = check_bounds(lower, upper)
    debug = _jax.debug_info("fori_loop", body_fun, 0, init_val)
    road = _by_while if bounds.length is None else _by_scan
    try:
        return road(bounds, body_fun, init_val, unroll, debug)
    except CarryTypeError as error:
        explain_fori(error, body_fun, slot=1 if road is _by_scan else 2)
        raise


def _by_scan(bounds: Bounds, body_fun: Any, init_val: Any, unroll: Any, debug: Any) -> Any:
    """Run a known number of steps with the index as the first part of the carry."""
    unroll = False if unroll is None else unroll
    init = (bounds.lower, init_val)
    scan_body = fori_scan_body(body_fun)
    (_, value), _ = scan_named(
        scan_body, init, None, bounds.length, False, unroll, debug, num_settled=1
    )
    return value


def _by_while(bounds: Bounds, body_fun: Any, init_val: Any, unroll: Any, debug: Any) -> Any:
    """Run until the index reaches a bound that is known only while running."""
    if unroll is not None and unroll is not False and unroll != 1:
        raise ValueError(
            "Can only use `unroll` in `fori_loop` if the loop bounds are statically known."
        )
    init = (bounds.lower, bounds.upper, init_val)
    while_body = fori_while_body(body_fun)
    debug = _jax.with_unnamed_argument(debug, 1)
    _, _, value = while_loop_named(fori_while_cond, while_body, init, debug, debug)
    return value
