"""A table of loop bodies that break the carry contract, as users write them.

The line that changes the type ends in `# <- here`. A body for which nobody can say what was meant
has `advice=False`: its error names the line and gives no advice.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Case:
    """A body `(carry, x) -> (carry, y)`, what it is run on, and whether there is right advice."""

    body: Callable[..., Any]
    init: Any
    xs: Any
    x64: bool
    advice: bool


CASES: dict[str, Case] = {}
XS = jnp.arange(1.0, 5.0)


def broken(init: Any, xs: Any = XS, *, x64: bool = False, advice: bool = True) -> Callable:
    """Adds a body to the table. `init` and `xs` may be functions, which are called under x64."""

    def add(body: Callable) -> Callable:
        CASES[body.__name__] = Case(body, init, xs, x64, advice)
        return body

    return add


def not_in_the_table(*_: Any, **__: Any) -> Callable:
    """Takes the place of `broken` in a copy of a table that advice was pasted into."""
    return lambda body: body
