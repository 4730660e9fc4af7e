"""How the flat inputs and outputs of the two primitives are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class ScanInputs(NamedTuple):
    """The flat inputs of a scan, or anything that runs parallel to them."""

    consts: list[Any]
    carry: list[Any]
    xs: list[Any]

    def flat(self) -> list[Any]:
        """All three groups in the order in which the primitive takes them."""
        return [*self.consts, *self.carry, *self.xs]


class ScanOutputs(NamedTuple):
    """The flat outputs of a scan, or anything that runs parallel to them."""

    carry: list[Any]
    ys: list[Any]


class WhileInputs(NamedTuple):
    """The flat inputs of a while loop, or anything that runs parallel to them."""

    cond_consts: list[Any]
    body_consts: list[Any]
    carry: list[Any]


def split_scan_inputs(values: Sequence[Any], num_consts: int, num_carry: int) -> ScanInputs:
    """Group `[*consts, *carry, *xs]`."""
    values, end = list(values), num_consts + num_carry
    return ScanInputs(values[:num_consts], values[num_consts:end], values[end:])


def split_scan_outputs(values: Sequence[Any], num_carry: int) -> ScanOutputs:
    """Group `[*carry, *ys]`."""
    values = list(values)
    return ScanOutputs(values[:num_carry], values[num_carry:])


def split_while_inputs(values: Sequence[Any], cond_nconsts: int, body_nconsts: int) -> WhileInputs:
    """Group `[*cond_consts, *body_consts, *carry]`."""
    values, end = list(values), cond_nconsts + body_nconsts
    return WhileInputs(values[:cond_nconsts], values[cond_nconsts:end], values[end:])


def cut(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Cut values into groups of the given sizes, and one more of what is left."""
    groups, start = [], 0
    for size in sizes:
        groups.append(list(values[start : start + size]))
        start += size
    return [*groups, list(values[start:])]


def partition(marks: Sequence[bool], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values whose mark is False, and those whose mark is True."""
    pairs = list(zip(marks, values, strict=True))
    return [v for mark, v in pairs if not mark], [v for mark, v in pairs if mark]


def keep(marks: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    """The values whose mark is True."""
    return [v for mark, v in zip(marks, values, strict=True) if mark]


def merge(marks: Sequence[bool], unmarked: Sequence[Any], marked: Sequence[Any]) -> list[Any]:
    """Undo `partition`."""
    false_values, true_values = iter(unmarked), iter(marked)
    return [next(true_values) if mark else next(false_values) for mark in marks]
