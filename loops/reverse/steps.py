"""One step of a checkpointed loop there, and one back, lane by lane where lanes end apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from loops import _jax
from loops.passes.freeze_lanes import select_lanes
from loops.primitives.checkpointed_loop import Lanes, Loop, LoopInputs
from loops.primitives.layout import cut
from loops.primitives.while_loop import while_of_functions


class Steps:
    """The steps of one loop, with its constants and xs.

    A lane that has ended keeps its carry on the way there and its `back` on the way back: both are
    selected after they are computed, so what is computed for a lane that has ended, a NaN for
    instance, never meets a derivative.
    """

    def __init__(self, loop: Loop, inputs: LoopInputs) -> None:
        self.loop, self.consts, self.xs = loop, inputs.consts, inputs.xs

    def running(self, t: Any, limit: Any, carry: Sequence[Any]) -> Any:
        """Whether a step follows: a scalar, or one answer for each lane."""
        is_below = lax.lt(jnp.broadcast_to(t, limit.shape), limit)
        if self.loop.cond_jaxpr is None:
            return is_below
        (holds,) = _jax.call_jaxpr(self.loop.cond_jaxpr, *self.consts, *carry)
        return lax.bitwise_and(is_below, holds)

    def forward(
        self, t: Any, running: Any, carry: Sequence[Any], ys: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The carry after step `t`, and ys with its row. The ys may be left out."""
        row, loop = self._row(t), self.loop
        xs = _read_rows(self.xs, row)
        outputs = _jax.call_jaxpr(loop.forward_jaxpr, *self.consts, *carry, *xs)
        new_carry, new_ys = cut(outputs, [loop.num_carry])
        if loop.lanes is not None:
            new_carry = _select_all(running, new_carry, carry, loop.lanes.carry)
            new_ys = [select_lanes(running, y, _zeros_like(y)) for y in new_ys]
        return new_carry, _write_rows(ys, new_ys, row) if ys else []

    def advance(self, start: Any, stop: Any, steps: Any, carry: Sequence[Any]) -> list[Any]:
        """The carry at step `stop`, from the one at `start`, which is not after it."""

        def is_before(t: Any, *_: Any) -> Any:
            return t < stop

        def step(t: Any, *carry: Any) -> list[Any]:
            return [t + 1, *self.forward(t, t < steps, carry, [])[0]]

        return while_of_functions(is_before, step, [start, *carry])[1:]

    def backward(
        self, t: Any, running: Any, carry: Sequence[Any], back: Sequence[Any], rows: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """What the way back has before step `t`, and its rows with the one of that step."""
        row, loop = self._row(t), self.loop
        consts, xs, back_in = self.consts, _read_rows(self.xs, row), back
        if loop.lanes is not None and not all((*loop.lanes.back, *loop.lanes.rows)):
            consts, carry, back_in, xs = self._without_ended_lanes(
                loop.lanes, running, carry, back, xs
            )
        outputs = _jax.call_jaxpr(loop.backward_jaxpr, *consts, *carry, *back_in, *xs)
        new_back, new_rows = cut(outputs, [loop.num_back])
        if loop.lanes is not None:
            new_back = _select_all(running, new_back, back, loop.lanes.back)
            zeros = [_zeros_like(y) for y in new_rows]
            new_rows = _select_all(running, new_rows, zeros, loop.lanes.rows)
        return new_back, _write_rows(rows, new_rows, row)

    def _without_ended_lanes(
        self,
        lanes: Lanes,
        running: Any,
        carry: Sequence[Any],
        back: Sequence[Any],
        xs: Sequence[Any],
    ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Inputs of a step back for which lanes that have ended add nothing to a sum over lanes.

        What the step is linear in is zero in them, and all else is what a lane that runs has: zero
        times the infinity of a lane that went on too long would be a NaN.
        """
        linear_carry, linear_xs = self.loop.is_linear()
        replace = _LanesThatRun(running)
        return (
            replace(self.consts, lanes.consts, [False] * len(self.consts)),
            replace(carry, lanes.carry, linear_carry),
            replace(back, lanes.back, [True] * len(back)),
            replace(xs, lanes.xs, linear_xs),
        )

    def _row(self, t: Any) -> Any:
        return self.loop.length - 1 - t if self.loop.reverse and self.loop.length else t


class _LanesThatRun:
    """Puts other values in the place of those of lanes that have ended."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.first = lax.argmax(running.reshape(-1), 0, jnp.int32)

    def __call__(
        self, values: Sequence[Any], has_lanes: Sequence[bool], is_linear: Sequence[bool]
    ) -> list[Any]:
        """Zeros where the step is linear, and else the values of the first lane that runs."""
        return [
            self._replaced(x, linear) if lanes else x
            for x, lanes, linear in zip(values, has_lanes, is_linear, strict=True)
        ]

    def _replaced(self, x: Any, is_linear: bool) -> Any:
        if is_linear:
            return select_lanes(self.running, x, _zeros_like(x))
        flat = x.reshape((-1, *x.shape[self.running.ndim :]))
        one = lax.dynamic_index_in_dim(flat, self.first, keepdims=False)
        return select_lanes(self.running, x, jnp.broadcast_to(one, x.shape))


def any_lane(running: Any) -> Any:
    """Whether a lane runs."""
    return lax.reduce_or(running, tuple(range(running.ndim))) if running.ndim else running


def rows_of_zeros(loop: Loop, avals: Sequence[Any]) -> list[Any]:
    """Buffers for ys of which some rows may never be written."""
    return [_jax.zeros_like_aval(_jax.unmapped_leading_aval(loop.length, aval)) for aval in avals]


def _select_all(
    running: Any, new: Sequence[Any], old: Sequence[Any], has_lanes: Sequence[bool]
) -> list[Any]:
    return [
        select_lanes(running, a, b) if lanes else a
        for a, b, lanes in zip(new, old, has_lanes, strict=True)
    ]


def _zeros_like(x: Any) -> Any:
    return _jax.zeros_like_aval(jax.typeof(x))


def _read_rows(xs: Sequence[Any], row: Any) -> list[Any]:
    return [
        lax.dynamic_index_in_dim(x, row, keepdims=False, allow_negative_indices=False) for x in xs
    ]


def _write_rows(buffers: Sequence[Any], values: Sequence[Any], row: Any) -> list[Any]:
    return [
        lax.dynamic_update_index_in_dim(buffer, value, row, 0, allow_negative_indices=False)
        for buffer, value in zip(buffers, values, strict=True)
    ]
