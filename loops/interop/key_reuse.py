"""The key reuse checker: a loop consumes a random key once for each step.

So a body may not consume a key that is the same at every step: neither a constant, nor a part of
the carry that it does not replace by a fresh key. A row of xs is another key at each step.

The signature of a loop says which of its inputs are consumed by it (sinks) and which of its outputs
are fresh keys (sources) or an input again (forwards).
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Any

from jax.errors import KeyReuseError

from loops.interop.when_imported import when_imported
from loops.primitives.checkpointed_loop import Loop, checkpointed_loop_p
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p


def scan_keys(checker: Any, eqn: Any) -> Any:
    """The signature of a scan is that of its body, whose inputs and outputs stand in its order."""
    num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    signature = _signature_of(checker, eqn.params["jaxpr"])
    consumed = {sink.idx for sink in signature.sinks}
    carry = range(num_consts, num_consts + num_carry)
    held = range(len(eqn.invars), len(eqn.invars) + len(eqn.params["jaxpr"].consts))
    _refuse_constants("scan body", consumed & {*range(num_consts), *held})
    _refuse_kept_carry("scan body", {i - num_consts for i in consumed & {*carry}}, signature)
    return signature


def while_keys(checker: Any, eqn: Any) -> Any:
    """The signature of a while loop.

    cond: [*cond_consts, *carry] -> [predicate]
    body: [*body_consts, *carry] -> [*carry]
    loop: [*cond_consts, *body_consts, *carry] -> [*carry]

    The condition reads the final carry too, so a key that it consumes is no fresh one after the
    loop.
    """
    cond_nconsts, body_nconsts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    num_consts, num_carry = cond_nconsts + body_nconsts, len(eqn.outvars)
    cond = _signature_of(checker, eqn.params["cond_jaxpr"])
    body = _signature_of(checker, eqn.params["body_jaxpr"])
    cond_carry = _consumed_carry("while_loop cond", cond, cond_nconsts, num_carry)
    body_carry = _consumed_carry("while_loop body", body, body_nconsts, num_carry)
    _refuse_kept_carry("while_loop cond", cond_carry.keys(), body)
    _refuse_kept_carry("while_loop body", body_carry.keys(), body)
    _refuse_both("while_loop", cond_carry.keys() & body_carry.keys())
    return checker.KeyReuseSignature(
        *(checker.Sink(num_consts + i, mask) for i, mask in (cond_carry | body_carry).items()),
        *(source for source in body.sources if source.idx not in cond_carry),
        *(
            checker.Forward(forward.in_idx + cond_nconsts, forward.out_idx)
            for forward in body.forwards
        ),
    )


def checkpointed_keys(checker: Any, eqn: Any) -> Any:
    """The signature of a checkpointed loop.

    cond: [*consts, *carry] -> [predicate]
    body: [*consts, *carry, *x] -> [*carry, *y]
    loop: [limit, *consts, *carry, *xs] -> [steps, *carry, *ys, *cache]

    One with a way back draws the numbers of the way there again, which is no reuse.
    """
    loop = Loop(**eqn.params)
    if loop.backward_jaxpr is not None:
        return checker.KeyReuseSignature()
    body = _signature_of(checker, loop.forward_jaxpr)
    first_x = loop.num_consts + loop.num_carry
    num_inputs = len(loop.forward_jaxpr.in_avals)
    rows = {sink.idx: sink.mask for sink in body.sinks if first_x <= sink.idx < num_inputs}
    body_carry = _consumed_carry(
        "loop body", body, loop.num_consts, loop.num_carry, may_consume=rows.keys()
    )
    _refuse_kept_carry("loop body", body_carry.keys(), body)
    cond_carry: dict[int, Any] = {}
    if loop.cond_jaxpr is not None:
        cond = _signature_of(checker, loop.cond_jaxpr)
        cond_carry = _consumed_carry("loop cond", cond, loop.num_consts, loop.num_carry)
        _refuse_kept_carry("loop cond", cond_carry.keys(), body)
        _refuse_both("loop", cond_carry.keys() & body_carry.keys())
    consumed = cond_carry | body_carry
    return checker.KeyReuseSignature(
        *(checker.Sink(1 + loop.num_consts + i, mask) for i, mask in consumed.items()),
        *(checker.Sink(1 + i, mask) for i, mask in rows.items()),
        *(checker.Source(s.idx + 1, s.mask) for s in body.sources if s.idx not in cond_carry),
        *(checker.Forward(f.in_idx + 1, f.out_idx + 1) for f in body.forwards),
    )


def _signature_of(checker: Any, jaxpr: Any) -> Any:
    return checker.jaxpr_type_signature(jaxpr.jaxpr)


def _consumed_carry(
    function: str,
    signature: Any,
    num_consts: int,
    num_carry: int,
    may_consume: Set[int] = frozenset(),
) -> dict[int, Any]:
    """The parts of the carry that a function consumes, and which of the keys in each.

    Raises if it consumes anything else but what it may: its other inputs are constants.
    """
    consumed = {sink.idx - num_consts: sink.mask for sink in signature.sinks}
    carry = {i: mask for i, mask in consumed.items() if 0 <= i < num_carry}
    others = {i + num_consts for i in consumed.keys() - carry.keys()}
    _refuse_constants(function, others - may_consume)
    return carry


def _refuse_both(loop: str, both: Set[int]) -> None:
    if both:
        raise KeyReuseError(
            f"{loop} cond and body functions both use the same key: each step consumes part "
            f"{min(both)} of the carry twice. Split it, and carry one for each."
        )


def _refuse_constants(function: str, consumed: Set[int]) -> None:
    if consumed:
        raise KeyReuseError(
            f"{function} function leads to key reuse when repeatedly executed, because key "
            "constants are repeatedly consumed: a key that it closes over, or that the carry hands "
            f"on unchanged (input {min(consumed)} of its jaxpr), is the same at every step. Carry "
            "the key and split it in the body, scan over keys that were split before, or fold the "
            "index of the step in."
        )


def _refuse_kept_carry(function: str, consumed: Set[int], body: Any) -> None:
    """Raise if a consumed part of the carry is not replaced by a fresh key."""
    kept = consumed - {source.idx for source in body.sources}
    if kept:
        raise KeyReuseError(
            f"{function} function leads to key reuse when repeatedly executed, because consumed "
            f"inputs don't match sourced outputs: it consumes the key in part {min(kept)} of the "
            "carry, and the body hands on no fresh key there. Split the key, consume one half and "
            "hand on the other."
        )


RULES = {scan_p: scan_keys, while_p: while_keys, checkpointed_loop_p: checkpointed_keys}


def _register(checker: Any) -> None:
    for primitive, rule in RULES.items():
        signature = checker.dynamic_key_reuse_signature(partial(rule, checker))
        checker.key_reuse_signatures[primitive] = signature


when_imported("jax.experimental.key_reuse._core", _register)
