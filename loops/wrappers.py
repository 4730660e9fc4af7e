"""Functions made around the user's body, one for each body, so that JAX's trace cache knows them.

JAX caches a trace by the identity of the function. A wrapper made anew at each call would be traced
and compiled anew each time, so wrappers are cached by the user's function, which the cache and the
wrapper hold weakly: neither keeps the function, nor what it closes over, alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from loops import _jax


def one_for_each_function(make: Callable[..., Callable]) -> Callable[[Callable], Callable]:
    """Decorate `make(get_function)`, which builds a wrapper, to build one for each function.

    `get_function()` returns the user's function while the wrapper runs.
    """

    @_jax.cached_weakly
    def wrapper_of(fun: Callable) -> Callable:
        return make(_only_alive(weakref.ref(fun)))

    def wrap(fun: Callable) -> Callable:
        try:
            return wrapper_of(fun)
        except TypeError:  # an object that cannot be referred to weakly, or not hashed
            return make(lambda: fun)

    wrap.__doc__ = make.__doc__
    return wrap


def _only_alive(reference: Callable[[], Any]) -> Callable[[], Callable]:
    def get() -> Callable:
        fun = reference()
        if fun is None:
            raise ReferenceError("the body of a loop is gone; the caller of the loop must hold it")
        return fun

    return get


@one_for_each_function
def finished_body(get_function: Callable[[], Callable]) -> Callable:
    """The same body, traced apart: JAX's cache may hold a trace of it with unfinished loops."""

    def body(*args: Any) -> Any:
        return get_function()(*args)

    return body


@one_for_each_function
def fori_scan_body(get_function: Callable[[], Callable]) -> Callable:
    """A `fori_loop` body as the body of a scan with carry (index, value)."""

    def scan_body(loop_carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        i, value = loop_carry
        return (i + 1, get_function()(i, value)), None

    return scan_body


@one_for_each_function
def fori_while_body(get_function: Callable[[], Callable]) -> Callable:
    """A `fori_loop` body as the body of a while loop with carry (index, upper, value)."""

    def while_body(loop_carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        i, upper, value = loop_carry
        return i + 1, upper, get_function()(i, value)

    return while_body


def fori_while_cond(loop_carry: tuple[Any, Any, Any]) -> Any:
    """Whether the index of a `fori_loop` is below its upper bound."""
    i, upper, _ = loop_carry
    return i < upper


@one_for_each_function
def map_body(get_function: Callable[[], Callable]) -> Callable:
    """A function of one row as the body of a scan without carry."""

    def scan_body(_: tuple[()], x: Any) -> tuple[tuple[()], Any]:
        return (), get_function()(x)

    return scan_body
