"""The carry contract of loops: compare, promote, explain."""

import importlib as _importlib
from typing import Any as _Any

from checks.advice import Suggestion
from checks.body_contract import assert_carry_contract
from checks.carry import _check_carry_type as _check_carry_type
from checks.errors import CarryMismatch, CarryStructureError, CarryTypeError
from checks.loops_agree import assert_loops_agree
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
    "assert_carry_contract",
    "assert_loops_agree",
    "check_fori",
    "check_scan",
    "check_while",
    "explain_fori",
    "explain_passes",
    "missing_varying_axes",
    "promote_weak_avals",
    "promote_weak_dtype",
]


def __getattr__(name: str) -> _Any:
    """`checks.strategies`, imported where it is first used, because it needs Hypothesis."""
    if name == "strategies":
        return _importlib.import_module("checks.strategies")
    raise AttributeError(f"module 'checks' has no attribute {name!r}")
