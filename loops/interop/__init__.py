"""Roads between our loops and JAX's, and interpreters that are none of JAX's transformations.

Importing this package registers the rules, those of optional modules when these are loaded.
"""

from loops.interop import checkify, checkpointed, jet, key_reuse, pallas, sparsify

__all__ = ["checkify", "checkpointed", "jet", "key_reuse", "pallas", "sparsify"]
