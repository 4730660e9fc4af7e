"""What each of JAX's transformations does with a loop; one file a transformation.

Importing this package registers the rules with JAX. Within a file the order is: scan's rule and its
registration, then while's.
"""

from loops.rules import (
    batching,
    checkpoint,
    checkpointed,
    dead_code,
    forward_mode,
    hijax,
    linearization,
    partial_evaluation,
    state_discharge,
    transposition,
    typechecks,
)

__all__ = [
    "batching",
    "checkpoint",
    "checkpointed",
    "dead_code",
    "forward_mode",
    "hijax",
    "linearization",
    "partial_evaluation",
    "state_discharge",
    "transposition",
    "typechecks",
]
