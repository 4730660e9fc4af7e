"""Body evaluations of gradients with few stored carries, counted while they run.

Those of the way there and one for each step back are left out, so what is counted is what a
schedule costs. Where the number of steps is known at entry the limit is the least possible; for a
while loop it is a twentieth more than what placement online is known to reach.
"""

from collections.abc import Iterator

from tests.benchmarks.counts import Count
from tests.helpers.evaluations import KINDS, LEAST, ONLINE, computed_again


def evaluation_counts() -> Iterator[Count]:
    """A count for each kind of loop, number of steps and number of checkpoints."""
    for kind in KINDS:
        for (steps, checkpoints), least in LEAST.items():
            limit = 1.05 * ONLINE[steps, checkpoints] if kind == "while" else least
            what = f"steps computed again, {kind} of {steps} steps, {checkpoints} checkpoints"
            if kind == "while":
                what += f" (least possible if known at entry: {least})"
            yield Count(what, computed_again(kind, steps, checkpoints), round(limit))
