"""The carry contract of loops: compare, promote, explain."""

from checks.carry import _check_carry_type as _check_carry_type
from checks.errors import CarryMismatch, CarryStructureError, CarryTypeError
from checks.naming import explain_fori
from checks.promotion import explain_passes, promote_weak_avals, promote_weak_dtype
from checks.varying import missing_varying_axes

__all__ = [
    "CarryMismatch",
    "CarryStructureError",
    "CarryTypeError",
    "explain_fori",
    "explain_passes",
    "missing_varying_axes",
    "promote_weak_avals",
    "promote_weak_dtype",
]
