"""The carry contract of loops: compare, promote, explain."""

from checks.advice import Suggestion
from checks.carry import _check_carry_type as _check_carry_type
from checks.errors import CarryMismatch, CarryStructureError, CarryTypeError
from checks.naming import explain_fori
from checks.promotion import explain_passes, promote_weak_avals, promote_weak_dtype
from checks.provenance import Provenance
from checks.report import CarryLeaf, CarryReport, Promotion
from checks.static import check_fori, check_scan, check_while
from checks.varying import missing_varying_axes

__all__ = [
    "CarryLeaf",
    "CarryMismatch",
    "CarryReport",
    "CarryStructureError",
    "CarryTypeError",
    "Promotion",
    "Provenance",
    "Suggestion",
    "check_fori",
    "check_scan",
    "check_while",
    "explain_fori",
    "explain_passes",
    "missing_varying_axes",
    "promote_weak_avals",
    "promote_weak_dtype",
]
