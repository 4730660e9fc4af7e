"""The steps of a transposed loop; `transposition` has the equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loops import _jax
from loops.passes.accumulate_in_place import accumulate_in_place
from loops.primitives.checkpointed_loop import Loop
from loops.primitives.layout import cut, merge, partition


class LinearParts(NamedTuple):
    """Which parts of a loop are linear: tangents, and what a step makes of them."""

    consts: list[bool]
    carry: list[bool]
    back: list[bool]
    xs: list[bool]


class TransposedSteps:
    """One step there and one back of the transposed loop, made out of those of a linear one."""

    def __init__(self, loop: Loop, linear: LinearParts) -> None:
        self.loop, self.linear = loop, linear
        sizes = [loop.num_consts, loop.num_carry]
        consts, carry, xs = cut(loop.forward_jaxpr.in_avals, sizes)
        back: list[Any] = []
        self.rows: list[Any] = []
        if loop.backward_jaxpr is not None:
            back, self.rows = cut(loop.backward_jaxpr.out_avals, [loop.num_back])
        self.ys = loop.forward_jaxpr.out_avals[loop.num_carry :]
        self._avals = {"consts": consts, "carry": carry, "back": back, "xs": xs}

    def _values(self, group: str) -> list[Any]:
        """The types of what is not linear."""
        return partition(getattr(self.linear, group), self._avals[group])[0]

    def _cotangents(self, group: str) -> list[Any]:
        """The types of the cotangents of what is linear."""
        linear = partition(getattr(self.linear, group), self._avals[group])[1]
        return [aval.to_ct_aval() for aval in linear]

    def _row_cotangents(self) -> list[Any]:
        return [aval.to_ct_aval() for aval in (*self.ys, *self.rows)]

    def there(self) -> Any:
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
        ]

        def step(*args: Any) -> list[Any]:
            consts, carry, back_cts, xs, row_cts = _cut_like(groups, args)
            return [
                *_values_of(
                    self.loop.forward_jaxpr,
                    self._forward_marks(),
                    [*consts, *carry, *xs],
                    self.linear.carry,
                ),
                *self._through_back(consts, carry, back_cts, xs, row_cts),
            ]

        avals = [aval for group in groups for aval in group]
        jaxpr = _jax.trace_closed(step, avals, _jax.without_names(self.loop.forward_jaxpr))
        everything = [True] * len(jaxpr.out_avals)
        return _jax.eliminate_dead_code(jaxpr, everything, [True] * len(avals)).jaxpr

    def _forward_marks(self) -> list[bool]:
        return [*self.linear.consts, *self.linear.carry, *self.linear.xs]

    def _through_back(
        self,
        consts: list[Any],
        carry: list[Any],
        back_cts: list[Any],
        xs: list[Any],
        row_cts: list[Any],
    ) -> list[Any]:
        """The cotangents of `back` before a step back, from those after it.

        No step there knows the values r in `back`. None needs to: a step back is linear in r, and
        so in r and r' together once all other tangents are zero. (`stop_gradient`, which vmap puts
        into branches, is linear too, though it has no transpose; here it may be left out, because
        nobody wants a cotangent of r.)
        """
        if not any(self.linear.back):
            return []
        accumulators = [_jax.ValAccum(aval) for aval in self._cotangents("back")]
        ignored = [_jax.NullAccum(aval.to_ct_aval()) for aval in self._values("back")]
        values = [
            *merge(self.linear.consts, consts, self._zeros("consts")),
            *merge(self.linear.carry, carry, self._zeros("carry")),
            *merge(self.linear.back, ignored, accumulators),
            *merge(self.linear.xs, xs, self._zeros("xs")),
        ]
        cotangents = [*self._back_cts(back_cts), *row_cts[len(self.ys) :]]
        try:
            _pull_back(_without_stops(self.loop.backward_jaxpr), values, cotangents)
        except (AssertionError, NotImplementedError) as error:
            raise NotImplementedError(
                "Second derivative in reverse of a loop with `checkpoints` or `max_steps` whose "
                "body has a custom_vjp with a backward rule that is not linear in its cotangent."
            ) from error
        return [_jax.instantiate_zeros(acc.freeze()) for acc in accumulators]

    def _zeros(self, group: str) -> list[Any]:
        linear = partition(getattr(self.linear, group), self._avals[group])[1]
        return [_jax.zeros_like_aval(aval) for aval in linear]

    def _ignored(self, group: str) -> list[Any]:
        return [_jax.NullAccum(aval) for aval in self._cotangents(group)]

    def _back_cts(self, back_cts: list[Any]) -> list[Any]:
        zeros = [_jax.Zero(aval.to_ct_aval()) for aval in self._values("back")]
        return merge(self.linear.back, zeros, back_cts)

    def back(self) -> Any:
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
            _pull_back(
                loop.forward_jaxpr,
                [*all_consts, *all_carry, *all_xs],
                [*merge(linear.carry, zeros, carry_cts), *ys_cts],
            )
            new_back: list[Any] = []
            if loop.backward_jaxpr is not None:
                all_back = merge(linear.back, back, self._ignored("back"))
                _pull_back(
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
        jaxpr = _jax.trace_closed(step, avals, _jax.without_names(loop.forward_jaxpr))
        return accumulate_in_place(jaxpr)


def _cut_like(groups: Sequence[Sequence[Any]], values: Sequence[Any]) -> list[list[Any]]:
    """Cut values into groups as long as those given."""
    return cut(values, [len(group) for group in groups])[:-1]


@_jax.cached_by_jaxpr
def _without_stops(jaxpr: Any) -> Any:
    """The same values from a jaxpr without `stop_gradient`."""

    def without_stop(eqn: Any) -> Any:
        if eqn.primitive is _jax.stop_gradient_p:
            return eqn.replace(primitive=_jax.copy_p, params={})
        params = _jax.map_parameters(
            lambda value: _without_stops(value) if _jax.is_jaxpr(value) else value, eqn.params
        )
        return _jax.with_parameters(eqn, params)

    return _jax.map_equations(without_stop, jaxpr)


def _pull_back(jaxpr: Any, args: Sequence[Any], cotangents: Sequence[Any]) -> None:
    """Pull cotangents back into the accumulators among `args`.

    A nested call may return values beside tangents, and JAX's backward pass would take all that it
    returns for linear. So the values are computed first.

    before: [*args] -> [*outputs]    after: [*residuals, *linear args] -> [*linear outputs]
    """
    is_linear = [isinstance(x, _jax.GradAccum) for x in args]
    values, accumulators = partition(is_linear, args)
    split = _jax.split_known(jaxpr, is_linear, [False] * len(jaxpr.out_avals))
    known = _jax.call_jaxpr(split.known_jaxpr, *values)
    residuals = known[split.unknowns_out.count(False) :]
    linear_cts = partition(split.unknowns_out, cotangents)[1]
    _jax.backward_pass(split.unknown_jaxpr, [*residuals, *accumulators], linear_cts)


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
