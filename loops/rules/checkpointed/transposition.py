"""Transposition: a linear loop gets a way back, and what had one is taken apart and put together.

Let a loop have a carry s and a way back r, with tangents s' and r' that it is linear in::

    there    s[t+1] = F(s[t])           s'[t+1] = F'(s[t]; s'[t])
    back     r[t]   = G(s[t], r[t+1])   r'[t]   = G'(s[t], r[t+1]; s'[t], r'[t+1])

Given cotangents of s'[n] and r'[0], the transposed program computes those of s'[0] and r'[n].
The cotangent of r' runs forwards, beside s; that of s' runs backwards, beside r::

    there    r~[t+1] = (G' by r')^T (s[t]) r~[t]
    back     s~[t]   = (F' by s')^T (s[t]) s~[t+1]  +  (G' by s')^T (s[t], r[t+1]) r~[t]

So it is again a loop with a way back. The first line needs no r, because G is linear in r. What the
loop is linear in of the constants adds up on the way back; of the xs, each row is returned by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.primitives.checkpointed_loop import (
    Lanes,
    Loop,
    LoopInputs,
    LoopOutputs,
    checkpointed_loop_p,
)
from loops.primitives.layout import cut, keep, merge, partition
from loops.rules.checkpointed.dead_code import live_loop
from loops.rules.checkpointed.partial_evaluation import (
    inputs_of_later_half,
    run_known_half,
    split_loop,
    without_debugging,
)
from loops.rules.fixpoint import grow_to_fixpoint


class LinearParts(NamedTuple):
    """Which parts of a loop are linear: tangents, and what a step makes of them."""

    consts: list[bool]
    carry: list[bool]
    back: list[bool]
    xs: list[bool]


def checkpointed_loop_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> None:
    """Pull cotangents back through a linear loop, into the accumulators among `args`."""
    loop = Loop(**params)
    inputs, cts = loop.inputs(args), loop.outputs(cotangents)
    if loop.cond_jaxpr is not None:
        loop, inputs, cts = _without_condition(loop, inputs, cts)
    used = LoopOutputs(False, *(_are_nonzero(group) for group in cts[1:]))
    if not any(used.flat()):
        return
    live = live_loop(without_debugging(loop), used)
    _run_transposed(
        live.loop,
        live.loop.inputs(keep(live.inputs.flat(), inputs.flat())),
        live.loop.outputs(keep(live.outputs._replace(steps=True).flat(), cts.flat())),
    )


_jax.accumulating_transposes[checkpointed_loop_p] = checkpointed_loop_transpose


def _are_nonzero(cotangents: Sequence[Any]) -> list[bool]:
    return [not _jax.is_zero(ct) for ct in cotangents]


def _are_linear(args: Sequence[Any]) -> list[bool]:
    return [isinstance(x, _jax.GradAccum) for x in args]


def _without_condition(
    loop: Loop, inputs: LoopInputs, cts: LoopOutputs
) -> tuple[Loop, LoopInputs, LoopOutputs]:
    """Run the values of a loop to learn how many steps it takes, and leave the linear loop."""
    split = split_loop(loop, loop.inputs(_are_linear(inputs.flat())), record=True)
    if split is None:
        raise NotImplementedError("transpose of a loop whose condition is not known")
    known = run_known_half(loop, split, inputs)
    later = split.later
    return (
        later.loop,
        inputs_of_later_half(split, inputs, known),
        cts._replace(
            carry=keep(later.inputs.carry, cts.carry),
            back=keep(later.inputs.back, cts.back),
            ys=keep(split.unknown_outputs.ys, cts.ys),
            rows=keep(split.unknown_outputs.rows, cts.rows),
            cache=[],
        ),
    )


def _run_transposed(loop: Loop, inputs: LoopInputs, cts: LoopOutputs) -> None:
    """Bind the transposed loop and hand out what it computes."""
    linear = _linear_parts(loop, inputs)
    transposed = _transposed_loop(loop, linear)
    consts, carry, back, xs = (
        partition(marks, values) for marks, values in zip(linear, inputs[1:5], strict=True)
    )
    # A linear part of the initial carry may be a plain zero, which wants no cotangent.
    outputs = transposed.bind(
        LoopInputs(
            inputs.limit,
            consts[0],
            [*carry[0], *map(_jax.instantiate_zeros, keep(linear.back, cts.back))],
            [
                *back[0],
                *map(_jax.instantiate_zeros, keep(linear.carry, cts.carry)),
                *(_jax.zeros_like_aval(acc.aval) for acc in consts[1]),
            ],
            [*xs[0], *map(_jax.instantiate_zeros, [*cts.ys, *cts.rows])],
            inputs.cache if transposed.cached is not None else [],
        )
    )
    accumulators = [*carry[1], *consts[1], *back[1], *xs[1]]
    results = [*outputs.back[len(back[0]) :], *outputs.carry[len(carry[0]) :], *outputs.rows]
    for accumulator, ct in zip(accumulators, results, strict=True):
        if isinstance(accumulator, _jax.GradAccum):
            accumulator.accum(ct)


def _linear_parts(loop: Loop, inputs: LoopInputs) -> LinearParts:
    consts, xs = _are_linear(inputs.consts), _are_linear(inputs.xs)

    def through(jaxpr: Any, before: list[bool], count: int) -> Any:
        num_others = len(jaxpr.out_avals) - count

        def transform(marks: list[bool]) -> tuple[None, list[bool]]:
            unknowns = [*before, *marks, *xs]
            split = _jax.split_known(jaxpr, unknowns, [*marks, *[False] * num_others])
            return None, split.unknowns_out[:count]

        return transform

    carry, _ = grow_to_fixpoint(
        _are_linear(inputs.carry), through(loop.forward_jaxpr, consts, loop.num_carry)
    )
    back: list[bool] = []
    if loop.backward_jaxpr is not None:
        back, _ = grow_to_fixpoint(
            _are_linear(inputs.back),
            through(loop.backward_jaxpr, [*consts, *carry], loop.num_back),
        )
    return LinearParts(consts, carry, back, xs)


def _transposed_loop(loop: Loop, linear: LinearParts) -> Loop:
    """The loop that pulls cotangents back.

    consts  [*values]                       carry  [*values, *cotangents of back]
    back    [*values, *cotangents of carry, *sums for the linear consts]
    xs      [*values, *cotangents of ys, *cotangents of rows]
    rows    [*cotangents of the linear xs]
    """
    parts = _Parts(loop, linear)
    was_linear_carry, was_linear_xs = loop.is_linear()
    keeps_cache = (
        loop.cached is not None
        and not any(linear.back)
        and all(loop.cached[i] for i, is_linear in enumerate(linear.carry) if not is_linear)
    )
    values = LinearParts(*([not m for m in marks] for marks in linear))
    num_cts = loop.num_ys + loop.num_rows
    return Loop(
        forward_jaxpr=parts.forward(),
        backward_jaxpr=parts.backward(),
        num_consts=sum(values.consts),
        num_carry=sum(values.carry) + sum(linear.back),
        num_back=sum(values.back) + sum(linear.carry) + sum(linear.consts),
        slots=loop.slots,
        length=loop.length,
        is_counted=loop.is_counted,
        reverse=loop.reverse,
        unroll=loop.unroll,
        transfer_jaxpr=loop.transfer_jaxpr,
        cached=(True,) * sum(values.carry) if keeps_cache else None,
        linear_carry=(*keep(values.carry, was_linear_carry), *[True] * sum(linear.back)),
        linear_xs=(*keep(values.xs, was_linear_xs), *[True] * num_cts),
        lanes=_transposed_lanes(loop.lanes, linear, values, num_cts),
    )


def _transposed_lanes(
    lanes: Lanes | None, linear: LinearParts, values: LinearParts, num_cts: int
) -> Lanes | None:
    """A cotangent has lanes where what it is of has them."""
    if lanes is None:
        return None
    return Lanes(
        consts=tuple(keep(values.consts, lanes.consts)),
        carry=(*keep(values.carry, lanes.carry), *keep(linear.back, lanes.back)),
        back=(
            *keep(values.back, lanes.back),
            *keep(linear.carry, lanes.carry),
            *keep(linear.consts, lanes.consts),
        ),
        xs=(*keep(values.xs, lanes.xs), *[True] * num_cts),
    )


class _Parts:
    """The jaxprs of the transposed loop, made out of those of a linear one."""

    def __init__(self, loop: Loop, linear: LinearParts) -> None:
        self.loop, self.linear = loop, linear
        sizes = [loop.num_consts, loop.num_carry]
        self.consts, self.carry, self.xs = cut(loop.forward_jaxpr.in_avals, sizes)
        self.ys = loop.forward_jaxpr.out_avals[loop.num_carry :]
        self.back: list[Any] = []
        self.rows: list[Any] = []
        if loop.backward_jaxpr is not None:
            self.back, self.rows = cut(loop.backward_jaxpr.out_avals, [loop.num_back])

    def _values(self, group: str) -> list[Any]:
        """The types of what is not linear."""
        return partition(getattr(self.linear, group), getattr(self, group))[0]

    def _cotangents(self, group: str) -> list[Any]:
        """The types of the cotangents of what is linear."""
        linear = partition(getattr(self.linear, group), getattr(self, group))[1]
        return [aval.to_ct_aval() for aval in linear]

    def _row_cotangents(self) -> list[Any]:
        return [aval.to_ct_aval() for aval in (*self.ys, *self.rows)]

    def forward(self) -> Any:
        """One step there.

        [*consts, *carry, *cotangents of back, *x, *cotangents of y, *cotangents of row]
            -> [*carry, *cotangents of back]
        """
        groups = [
            self._values("consts"),
            self._values("carry"),
            self._cotangents("back"),
            self._values("xs"),
            self._row_cotangents(),
            self._values("back"),
        ]
        num_back = len(groups[-1])

        def step(*args: Any) -> list[Any]:
            consts, carry, back_cts, xs, row_cts, back = _cut_like(groups, args)
            return [
                *_values_of(
                    self.loop.forward_jaxpr,
                    self._forward_marks(),
                    [*consts, *carry, *xs],
                    self.linear.carry,
                ),
                *self._through_back(consts, carry, back, back_cts, xs, row_cts),
            ]

        avals = [aval for group in groups for aval in group]
        jaxpr = _jax.trace_closed(step, avals, _jax.without_names(self.loop.forward_jaxpr))
        if not num_back:
            return jaxpr
        keep_inputs = [*[True] * (len(avals) - num_back), *[False] * num_back]
        everything = [True] * len(jaxpr.out_avals)
        live = _jax.eliminate_dead_code(jaxpr, everything, keep_inputs)
        if any(live.used_inputs[-num_back:]):
            raise NotImplementedError(
                "Second derivative in reverse of a loop with `checkpoints` or `max_steps` whose "
                "body has a custom_vjp with a backward rule that is not linear in its cotangent."
            )
        return live.jaxpr

    def _forward_marks(self) -> list[bool]:
        return [*self.linear.consts, *self.linear.carry, *self.linear.xs]

    def _through_back(
        self,
        consts: list[Any],
        carry: list[Any],
        back: list[Any],
        back_cts: list[Any],
        xs: list[Any],
        row_cts: list[Any],
    ) -> list[Any]:
        """The cotangents of `back` before a step back, from those after it."""
        if not any(self.linear.back):
            return []
        accumulators = [_jax.ValAccum(aval) for aval in self._cotangents("back")]
        values = [
            *merge(self.linear.consts, consts, self._ignored("consts")),
            *merge(self.linear.carry, carry, self._ignored("carry")),
            *merge(self.linear.back, back, accumulators),
            *merge(self.linear.xs, xs, self._ignored("xs")),
        ]
        rows = row_cts[len(self.ys) :]
        _jax.backward_pass(self.loop.backward_jaxpr, values, [*self._back_cts(back_cts), *rows])
        return [_jax.instantiate_zeros(acc.freeze()) for acc in accumulators]

    def _ignored(self, group: str) -> list[Any]:
        return [_jax.NullAccum(aval) for aval in self._cotangents(group)]

    def _back_cts(self, back_cts: list[Any]) -> list[Any]:
        zeros = [_jax.Zero(aval.to_ct_aval()) for aval in self._values("back")]
        return merge(self.linear.back, zeros, back_cts)

    def backward(self) -> Any:
        """One step back.

        [*consts, *carry, *cotangents of back, *back, *cotangents of carry, *sums,
         *x, *cotangents of y, *cotangents of row]
            -> [*back, *cotangents of carry, *sums, *cotangents of x]
        """
        loop, linear = self.loop, self.linear
        groups = [
            self._values("consts"),
            self._values("carry"),
            self._cotangents("back"),
            self._values("back"),
            self._cotangents("carry"),
            self._cotangents("consts"),
            self._values("xs"),
            self._row_cotangents(),
        ]

        def step(*args: Any) -> list[Any]:
            consts, carry, back_cts, back, carry_cts, sums, xs, row_cts = _cut_like(groups, args)
            const_accs = [
                _jax.ValAccum(aval, value)
                for aval, value in zip(self._cotangents("consts"), sums, strict=True)
            ]
            carry_accs = [_jax.ValAccum(aval) for aval in self._cotangents("carry")]
            xs_accs = [_jax.ValAccum(aval) for aval in self._cotangents("xs")]
            all_consts = merge(linear.consts, consts, const_accs)
            all_carry = merge(linear.carry, carry, carry_accs)
            all_xs = merge(linear.xs, xs, xs_accs)
            zeros = [_jax.Zero(aval.to_ct_aval()) for aval in self._values("carry")]
            ys_cts, rows_cts = cut(row_cts, [len(self.ys)])
            _jax.backward_pass(
                loop.forward_jaxpr,
                [*all_consts, *all_carry, *all_xs],
                [*merge(linear.carry, zeros, carry_cts), *ys_cts],
            )
            new_back: list[Any] = []
            if loop.backward_jaxpr is not None:
                all_back = merge(linear.back, back, self._ignored("back"))
                _jax.backward_pass(
                    loop.backward_jaxpr,
                    [*all_consts, *all_carry, *all_back, *all_xs],
                    [*self._back_cts(back_cts), *rows_cts],
                )
                marks = [*linear.consts, *linear.carry, *linear.back, *linear.xs]
                values = [*consts, *carry, *back, *xs]
                new_back = _values_of(loop.backward_jaxpr, marks, values, linear.back)
            accumulators = [*carry_accs, *const_accs, *xs_accs]
            return [*new_back, *(_jax.instantiate_zeros(a.freeze()) for a in accumulators)]

        avals = [aval for group in groups for aval in group]
        return _jax.trace_closed(step, avals, _jax.without_names(loop.forward_jaxpr))


def _cut_like(groups: Sequence[Sequence[Any]], values: Sequence[Any]) -> list[list[Any]]:
    """Cut values into groups as long as those given."""
    return cut(values, [len(group) for group in groups])[:-1]


def _values_of(
    jaxpr: Any, linear_in: Sequence[bool], values: Sequence[Any], linear_out: Sequence[bool]
) -> list[Any]:
    """The first outputs of a jaxpr, as far as they are not linear, from the inputs that are not."""
    others = len(jaxpr.out_avals) - len(linear_out)
    wanted = [*(not m for m in linear_out), *[False] * others]
    if not any(wanted):
        return []
    live = _jax.eliminate_dead_code(jaxpr, wanted, [not m for m in linear_in])
    return _jax.call_jaxpr(live.jaxpr, *values)
