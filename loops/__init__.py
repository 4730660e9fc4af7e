"""JAX's loop primitives built again, with a carry contract that explains itself."""

from pathlib import Path as _Path

import checks as _checks
from loops import _jax as _door
from loops import interop as _interop  # noqa: F401  (importing it registers more rules)
from loops import rules as _rules  # noqa: F401  (importing it registers the rules)
from loops.checkpointed import Checkpoints
from loops.cut_off import MaxStepsWarning
from loops.fori_loop import fori_loop
from loops.interop.replace_lax import replace_lax
from loops.interop.to_lax import to_lax
from loops.map import map
from loops.primitives import (
    checkpointed_lowering as _checkpointed_lowering,  # noqa: F401  (registers it)
)
from loops.primitives import scan_lowering as _scan_lowering  # noqa: F401  (registers it)
from loops.primitives import while_lowering as _while_lowering  # noqa: F401  (registers it)
from loops.primitives.checkpointed_loop import checkpointed_loop_p
from loops.primitives.scan import scan_p
from loops.primitives.while_loop import while_p
from loops.scan import scan
from loops.while_loop import while_loop

for _package in (_checks.__file__, __file__):
    _door.register_package(str(_Path(_package).parent))

__all__ = [
    "Checkpoints",
    "MaxStepsWarning",
    "checkpointed_loop_p",
    "fori_loop",
    "map",
    "replace_lax",
    "scan",
    "scan_p",
    "to_lax",
    "while_loop",
    "while_p",
]
