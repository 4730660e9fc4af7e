"""The rules of `checkpointed_loop_p`, one file a transformation; importing it registers them."""

from loops.rules.checkpointed import batching as _batching  # noqa: F401
from loops.rules.checkpointed import checkpoint as _checkpoint  # noqa: F401
from loops.rules.checkpointed import dead_code as _dead_code  # noqa: F401
from loops.rules.checkpointed import forward_mode as _forward_mode  # noqa: F401
from loops.rules.checkpointed import linearization as _linearization  # noqa: F401
from loops.rules.checkpointed import partial_evaluation as _partial_evaluation  # noqa: F401
from loops.rules.checkpointed import transposition as _transposition  # noqa: F401
