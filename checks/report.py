"""What a static check found out about a loop's carry, as a table."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jax.core import AbstractValue

from checks.provenance import Provenance
from checks.rewriting import one_line


@dataclass(frozen=True)
class Promotion:
    """A weakly typed leaf that the loop converts before it starts.

    Args:
      before: the type that the caller gave it.
      after: the type that it is converted to.
      by: the line of the body that made another type of it, where that is known.
    """

    before: AbstractValue
    after: AbstractValue
    by: Provenance | None = None

    def __str__(self) -> str:
        by = f" by {self.by.place}: `{one_line(self.by.place.text)}`" if self.by else ""
        return f"from {described(self.before)}{by}"


@dataclass(frozen=True)
class CarryLeaf:
    """One leaf of a carry.

    Args:
      path: its key path in the user's carry.
      component: its name in the body, such as `state['velocity']`.
      type_in: the type that the loop starts with, after promotion.
      type_out: the type that the body returns for it.
      promotion: what it was promoted from and by what, or None.
      is_unchanged: whether the body hands it on as it came.
      is_read_by_condition: whether the condition of the loop reads it; None for a loop without one.
      nbytes: its size; None where a dimension is symbolic.
      role: `carry`, or `index` or `bound` for what a `fori_loop` carries beside the user's value.
    """

    path: tuple[Any, ...]
    component: str
    type_in: AbstractValue
    type_out: AbstractValue
    promotion: Promotion | None
    is_unchanged: bool
    is_read_by_condition: bool | None
    nbytes: int | None
    role: str = "carry"


@dataclass(frozen=True)
class CarryReport:
    """A loop whose body keeps its carry's types.

    Args:
      loop: `scan`, `while_loop` or `fori_loop`.
      body: the name of the body.
      leaves: each leaf of the carry.
      traces: how often a loop traces the body to learn that.
      steps: how many steps it runs; None where that is known only while running.
      road: the primitive that the loop becomes, `scan` or `while`.
      reason: why it takes that road.

    Example:
      >>> from checks import check_fori
      >>> report = check_fori(0, 10, lambda i, total: total + 0.5, 0)
      >>> print(report)  # doctest: +ELLIPSIS
      fori_loop of `<lambda>`: becomes a scan of 10 steps (both bounds are known while tracing)
      traced 2 times, carries 8 bytes from step to step
      leaf   in            out           condition  unchanged  promoted
      i      int32 (weak)  int32 (weak)  -          no         no
      total  float32       float32       -          no         from int32 (weak) by ...
    """

    loop: str
    body: str
    leaves: tuple[CarryLeaf, ...]
    traces: int
    steps: Any
    road: str
    reason: str

    @property
    def nbytes(self) -> int | None:
        """The bytes that change from step to step; None where a dimension is symbolic."""
        return _total(leaf for leaf in self.leaves if not leaf.is_unchanged)

    @property
    def nbytes_unchanged(self) -> int | None:
        """The bytes that the body hands on as they came; None where a dimension is symbolic."""
        return _total(leaf for leaf in self.leaves if leaf.is_unchanged)

    def leaf(self, component: str) -> CarryLeaf:
        """The leaf of a name such as `state['velocity']`.

        Raises:
          KeyError: there is none.
        """
        for leaf in self.leaves:
            if leaf.component == component:
                return leaf
        raise KeyError(component)

    def __str__(self) -> str:
        rows = [_HEADINGS, *map(_cells, self.leaves)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([*self._summary(), *lines])

    def _summary(self) -> list[str]:
        steps = "" if self.steps is None else f" of {_count(self.steps, 'step')}"
        carried = f"carries {_bytes(self.nbytes)} from step to step"
        if self.nbytes_unchanged != 0:
            carried += f", hands on {_bytes(self.nbytes_unchanged)} unchanged"
        return [
            f"{self.loop} of `{self.body}`: becomes a {self.road}{steps} ({self.reason})",
            f"traced {_count(self.traces, 'time')}, {carried}",
        ]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(text)}</th>" for text in _HEADINGS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(leaf)) + "</tr>"
            for leaf in self.leaves
        )
        summary = "<br>".join(html.escape(line) for line in self._summary())
        return f"<p>{summary}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_HEADINGS = ("leaf", "in", "out", "condition", "unchanged", "promoted")


def _cells(leaf: CarryLeaf) -> tuple[str, ...]:
    read = {None: "-", True: "reads it", False: "no"}[leaf.is_read_by_condition]
    return (
        leaf.component,
        described(leaf.type_in),
        described(leaf.type_out),
        read,
        "yes" if leaf.is_unchanged else "no",
        "no" if leaf.promotion is None else str(leaf.promotion),
    )


def described(aval: AbstractValue) -> str:
    """A type in short, with a word on whether it is weak."""
    weak = " (weak)" if getattr(aval, "weak_type", False) else ""
    return f"{aval.str_short().removesuffix('[]')}{weak}"


def _count(number: Any, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _total(leaves: Iterable[CarryLeaf]) -> int | None:
    sizes = [leaf.nbytes for leaf in leaves]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _bytes(number: int | None) -> str:
    return "an unknown number of bytes" if number is None else _count(number, "byte")
