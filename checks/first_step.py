"""Whether a loop that starts from zeros does in its first step what it did without them.

    total = x if total is None else total + x            the same
    mean = x if mean is None else 0.9 * mean + 0.1 * x   another: its mean would start from zero

Only where it is the same are zeros advice in the place of None.
"""

from typing import Any

from checks.equal_values import ValueNumbers
from checks.tracing import LoopBody, trace
from checks.trial import InitChange, with_subtree


def same_first_step(body: LoopBody, carry: Any, change: InitChange, names: dict[str, Any]) -> bool:
    """Whether all that a body returns is the same if its carry starts as a change says.

    Args:
      body: the body.
      carry: the types of the carry as it starts now.
      change: the part that starts otherwise, and the code that makes it.
      names: what names stand for in that code.
    """

    def changed(before: Any, carry: Any, after: Any) -> Any:
        part = eval(change.code, {**names, "init": carry})  # noqa: S307  our own
        return body.fun(*before, with_subtree(carry, change.path, part), *after)

    try:
        first, second = body.trace_all(carry), trace(changed, body.before, carry, body.after)
    except Exception:  # noqa: BLE001  the user's body may fail in any way
        return False
    numbers = ValueNumbers()
    outputs = [numbers.of_outputs(traced.jaxpr) for traced in (first, second)]
    return first.out_tree == second.out_tree and outputs[0] == outputs[1]
