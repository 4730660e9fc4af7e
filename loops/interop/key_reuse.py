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
    both = cond_carry.keys() & body_carry.keys()
    if both:
        raise KeyReuseError(
            "while_loop cond and body functions both use the same key: each step consumes part "
            f"{min(both)} of the carry twice. Split it, and carry one for each."
        )
    return checker.KeyReuseSignature(
        *(checker.Sink(num_consts + i, mask) for i, mask in (cond_carry | body_carry).items()),
        *(source for source in body.sources if source.idx not in cond_carry),
        *(
            checker.Forward(forward.in_idx + cond_nconsts, forward.out_idx)
            for forward in body.forwards
        ),
    )


def _signature_of(checker: Any, jaxpr: Any) -> Any:
    return checker.jaxpr_type_signature(jaxpr.jaxpr)


def _consumed_carry(
    function: str, signature: Any, num_consts: int, num_carry: int
) -> dict[int, Any]:
    """The parts of the carry that a function consumes, and which of the keys in each.

    Raises if it consumes anything else: its other inputs are constants.
    """
    consumed = {sink.idx - num_consts: sink.mask for sink in signature.sinks}
    carry = {i: mask for i, mask in consumed.items() if 0 <= i < num_carry}
    _refuse_constants(function, {i + num_consts for i in consumed.keys() - carry.keys()})
    return carry


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


def _register(checker: Any) -> None:
    for primitive, rule in ((scan_p, scan_keys), (while_p, while_keys)):
        signature = checker.dynamic_key_reuse_signature(partial(rule, checker))
        checker.key_reuse_signatures[primitive] = signature


when_imported("jax.experimental.key_reuse._core", _register)
