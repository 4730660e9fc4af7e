"""Hypothesis strategies for carries, loop bodies and whole loop programs.

Importing it needs Hypothesis: `pip install 'carryloops[test]'`.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401  (asked for first, to say how to get it)
except ImportError as error:
    raise ImportError(
        "checks.strategies needs Hypothesis: pip install 'carryloops[test]'"
    ) from error

from checks.strategies.bodies import Body, bodies
from checks.strategies.leaves import arrays, keys, leaves, scalars
from checks.strategies.programs import loop_programs
from checks.strategies.pytrees import Pair, Record, carries, inits, pytrees, xs
from checks.strategies.sources import Program
from checks.strategies.types import avals, dtypes, shapes

__all__ = [
    "Body",
    "Pair",
    "Program",
    "Record",
    "arrays",
    "avals",
    "bodies",
    "carries",
    "dtypes",
    "inits",
    "keys",
    "leaves",
    "loop_programs",
    "pytrees",
    "scalars",
    "shapes",
    "xs",
]
