"""The primitive `checkpointed_loop`: a loop there, and perhaps back, that stores few carries.

    checkpointed_loop[cond_jaxpr forward_jaxpr backward_jaxpr num_consts num_carry num_back ...]
        inputs          [limit, *consts, *carry, *back, *xs, *cache]
        cond_jaxpr      [*consts, *carry]              -> [predicate]       or None
        forward_jaxpr   [*consts, *carry, *x]          -> [*carry, *y]
        backward_jaxpr  [*consts, *carry, *back, *x]   -> [*back, *row]     or None
        outputs         [steps, *carry, *back, *ys, *rows, *cache]

It computes::

    t = 0
    while t < limit and cond(consts, carry[t]):
        carry[t + 1], ys[t] = forward(consts, carry[t], xs[t])
        t += 1
    steps = t
    while t > 0:
        t -= 1
        back[t], rows[t] = backward(consts, carry[t], back[t + 1], xs[t])

On the way back the carries come from at most `slots` stored ones, and are computed again between
them. What a user calls has no way back. Its derivative is again such a loop, with tangents in the
carry, and what that transposes to is one that has a way back; derivatives of this one, forwards or
in reverse, are such loops too. So there are derivatives of any order, each in bounded memory.

The rows of ys and rows that belong to no step are zeros. The way back is linear in `back`, given
the rest. `recorded` marks the parts of the carry that the loop stores and returns as a cache, for
its own way back; `cached` marks those whose cache it gets. `linear_carry` and `linear_xs` mark what
the way back is linear in together with `back`. `limit` is an int32 scalar or, after batching, has
one number for each lane; `lanes` then says what else is there lane by lane.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from loops import _jax
from loops.equal_programs import first_equal_program
from loops.primitives.layout import cut, keep

checkpointed_loop_p = _jax.Primitive("checkpointed_loop")
checkpointed_loop_p.multiple_results = True

MAX_STEPS = 2**31 - 1  # steps are counted in int32; a limit of this many is no limit


class Lanes(NamedTuple):
    """What has an axis for the lanes of a loop whose lanes end at different steps.

    Where all lanes share a constant or a row of xs, what adds up for it on the way back has no such
    axis either. All ys have one.
    """

    consts: tuple[bool, ...]
    carry: tuple[bool, ...]
    back: tuple[bool, ...]
    xs: tuple[bool, ...]
    rows: tuple[bool, ...]


@functools.cache
def to_host() -> Any:
    """A jaxpr that moves a number to the host's memory.

    It is never run. Before JAX lowers a program it looks for such an equation in it, and where it
    finds none it takes no notice of those that come up while it lowers.
    """
    return jax.make_jaxpr(lambda x: jax.device_put(x, jax.memory.Space.Host))(np.float32(0))


class LoopInputs(NamedTuple):
    """The flat inputs of the loop, or anything that runs parallel to them."""

    limit: Any
    consts: list[Any]
    carry: list[Any]
    back: list[Any]
    xs: list[Any]
    cache: list[Any]

    def flat(self) -> list[Any]:
        """All of them in the order in which the primitive takes them."""
        return [self.limit, *self.consts, *self.carry, *self.back, *self.xs, *self.cache]


class LoopOutputs(NamedTuple):
    """The flat outputs of the loop, or anything that runs parallel to them."""

    steps: Any
    carry: list[Any]
    back: list[Any]
    ys: list[Any]
    rows: list[Any]
    cache: list[Any]

    def flat(self) -> list[Any]:
        """All of them in the order in which the primitive returns them."""
        return [self.steps, *self.carry, *self.back, *self.ys, *self.rows, *self.cache]


class Loop(NamedTuple):
    """The parameters of the primitive."""

    forward_jaxpr: Any
    num_consts: int
    num_carry: int
    slots: int
    cond_jaxpr: Any = None
    backward_jaxpr: Any = None
    num_back: int = 0
    length: int | None = None  # the most steps, and the leading axis of xs and ys; None: unbounded
    is_counted: bool = False  # all of `length` is run: the limit is known while tracing
    reverse: bool = False
    unroll: int = 1
    recorded: tuple[bool, ...] | None = None
    cached: tuple[bool, ...] | None = None
    linear_carry: tuple[bool, ...] = ()
    linear_xs: tuple[bool, ...] = ()
    lanes: Lanes | None = None
    transfer_jaxpr: Any = None  # that of `to_host`, if stored carries live in the host's memory

    @property
    def num_ys(self) -> int:
        """How many ys one step returns."""
        return len(self.forward_jaxpr.out_avals) - self.num_carry

    @property
    def num_rows(self) -> int:
        """How many rows one step of the way back returns."""
        return len(self.backward_jaxpr.out_avals) - self.num_back if self.backward_jaxpr else 0

    @property
    def num_xs(self) -> int:
        """How many xs there are."""
        return len(self.forward_jaxpr.in_avals) - self.num_consts - self.num_carry

    def inputs(self, values: Sequence[Any]) -> LoopInputs:
        """Group `[limit, *consts, *carry, *back, *xs, *cache]`."""
        sizes = [1, self.num_consts, self.num_carry, self.num_back, self.num_xs]
        (limit,), *groups = cut(values, sizes)
        return LoopInputs(limit, *groups)

    def outputs(self, values: Sequence[Any]) -> LoopOutputs:
        """Group `[steps, *carry, *back, *ys, *rows, *cache]`."""
        sizes = [1, self.num_carry, self.num_back, self.num_ys, self.num_rows]
        (steps,), *groups = cut(values, sizes)
        return LoopOutputs(steps, *groups)

    def bind(self, inputs: LoopInputs) -> LoopOutputs:
        """Bind the primitive."""
        return self.outputs(checkpointed_loop_p.bind(*inputs.flat(), **self._asdict()))

    def is_linear(self) -> tuple[list[bool], list[bool]]:
        """Which parts of carry and xs the way back is linear in."""
        return (
            list(self.linear_carry) or [False] * self.num_carry,
            list(self.linear_xs) or [False] * self.num_xs,
        )

    def stored_aval(self, aval: Any) -> Any:
        """The type of a part of the carry when it is stored."""
        on_host = self.transfer_jaxpr is not None
        return aval.update(memory_space=jax.memory.Space.Host) if on_host else aval

    def carry_avals(self) -> list[Any]:
        """The types of the carry."""
        return list(self.forward_jaxpr.out_avals[: self.num_carry])


def checkpointed_loop_abstract_eval(*avals: Any, **params: Any) -> tuple[list[Any], Any]:
    """The types of the outputs, and the effects of all jaxprs."""
    loop = Loop(**params)
    inputs = loop.inputs(avals)
    _check_types("carry", inputs.carry, loop.carry_avals())
    back_avals, row_avals = [], []
    if loop.backward_jaxpr is not None:
        back_avals, row_avals = cut(loop.backward_jaxpr.out_avals, [loop.num_back])
        _check_types("back", inputs.back, back_avals)
    cache: list[Any] = []
    if loop.recorded is not None:
        position = inputs.limit
        for size in position.shape:
            position = _jax.mapped_leading_aval(size, position)
        positions = _jax.unmapped_leading_aval(loop.slots, position)
        stored = [
            _jax.unmapped_leading_aval(loop.slots, loop.stored_aval(aval))
            for aval in keep(loop.recorded, loop.carry_avals())
        ]
        cache = [positions, *stored]
    outputs = LoopOutputs(
        inputs.limit,
        loop.carry_avals(),
        list(back_avals),
        [_jax.unmapped_leading_aval(loop.length, a) for a in _ys_avals(loop)],
        [_jax.unmapped_leading_aval(loop.length, a) for a in row_avals],
        cache,
    )
    jaxprs = [loop.forward_jaxpr, loop.cond_jaxpr, loop.backward_jaxpr]
    effects = set().union(*(jaxpr.effects for jaxpr in jaxprs if jaxpr is not None))
    return outputs.flat(), effects


checkpointed_loop_p.def_effectful_abstract_eval(checkpointed_loop_abstract_eval)


def _ys_avals(loop: Loop) -> list[Any]:
    return list(loop.forward_jaxpr.out_avals[loop.num_carry :])


def _check_types(what: str, avals_in: Sequence[Any], avals_out: Sequence[Any]) -> None:
    for aval_in, aval_out in zip(avals_in, avals_out, strict=True):
        if not _jax.types_match(aval_in, aval_out):
            raise _jax.JaxprTypeError(
                f"checkpointed_loop has {what} of type {aval_in.str_short()} going in and "
                f"{aval_out.str_short()} coming out"
            )


def checkpointed_loop_eagerly(*args: Any, **params: Any) -> list[Any]:
    """Compile a loop on its own and run it; equal loops are compiled once."""
    for name in ("forward_jaxpr", "cond_jaxpr", "backward_jaxpr"):
        if params[name] is not None:
            params[name] = first_equal_program(params[name])
    return _jax.apply_primitive(checkpointed_loop_p, *args, **params)


checkpointed_loop_p.def_impl(checkpointed_loop_eagerly)
checkpointed_loop_p.skip_canonicalization = True
checkpointed_loop_p.is_effectful = lambda params: any(
    jaxpr is not None and jaxpr.effects
    for jaxpr in (params["forward_jaxpr"], params["cond_jaxpr"], params["backward_jaxpr"])
)
