"""The two primitives, `scan_p` and `while_p`: parameters, abstract evaluation and lowering.

Importing this package registers the lowerings.
"""

from loops.primitives import scan_lowering, while_lowering

__all__ = ["scan_lowering", "while_lowering"]
