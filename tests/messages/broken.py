"""A table of loop bodies that break the carry contract, as users write them.

The line that changes the type ends in `# <- here`. A body for which nobody can say what was meant
has `advice=False`: its error names the line and gives no advice. Where more than one change would
make the body pass, `advice` is the code that its author would write.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Case:
    """A body, what it is run on, and its right advice: the code, or whether there is any.

    The body is `(carry, x) -> (carry, y)`, or with `bounds` that of a `fori_loop`, or with `cond`
    that of a `while_loop`. Its first arguments are `given`. Where a Python loop, in which types may
    change from step to step, does not compute what is meant, it is not to be run `in_python`.
    """

    body: Callable[..., Any]
    init: Any
    xs: Any
    x64: bool
    advice: bool | str
    bounds: Any
    cond: Callable[[Any], Any] | None
    given: tuple[Any, ...]
    in_python: bool = True

    def filled_in(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body with the arguments that are given."""
        return functools.partial(body, *self.given) if self.given else body


CASES: dict[str, Case] = {}
XS = jnp.arange(1.0, 5.0)


def broken(
    init: Any,
    xs: Any = XS,
    *,
    x64: bool = False,
    advice: bool | str = True,
    bounds: Any = None,
    cond: Callable[[Any], Any] | None = None,
    given: tuple[Any, ...] = (),
    in_python: bool = True,
) -> Callable:
    """Adds a body to the table. `init` and `xs` may be functions, which are called under x64."""

    def add(body: Callable) -> Callable:
        CASES[body.__name__] = Case(body, init, xs, x64, advice, bounds, cond, given, in_python)
        return body

    return add


def not_in_the_table(*_: Any, **__: Any) -> Callable:
    """Takes the place of `broken` in a copy of a table that advice was pasted into."""
    return lambda body: body
