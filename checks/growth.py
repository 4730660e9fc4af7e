"""Where an array grows in a loop's body, and whether a longer buffer could take its place.

A buffer holds rows that are not there yet. It does what the growing array does if every operation
between the carry and what is returned works on each row by itself, or reads rows from the end that
is being added to.

    append(c, c[-1] + x)     may be a buffer: only the newest row is read
    append(c, c.mean())      may not: the mean would count rows that are not there yet
"""

from typing import Any, Literal, NamedTuple

from jax.core import ShapedArray

from checks.jaxprs import called_jaxpr, is_literal, open_jaxpr
from checks.tracing import LoopBody, key_paths, trace
from checks.trial import subtree_at, with_subtree

Side = Literal["end", "front"]

# Operations whose result has in each place what they make of the operands' numbers there.
ELEMENTWISE = frozenset(
    (
        *("abs", "add", "sub", "mul", "div", "neg", "sign", "square", "sqrt", "rsqrt", "pow"),
        *("integer_pow", "exp", "exp2", "expm1", "log", "log1p", "logistic", "erf", "tanh"),
        *("sin", "cos", "tan", "floor", "ceil", "round", "rem", "min", "max", "select_n"),
        *("and", "or", "not", "xor", "eq", "ne", "lt", "le", "gt", "ge"),
        *("convert_element_type", "reduce_precision", "copy", "copy_p", "stop_gradient"),
    )
)
_LONGER = 7  # rows more than the carry has, so that its first row is told from its last


class Growth(NamedTuple):
    """At which side rows are added, and whether rows of that side are read besides."""

    side: Side
    reads_newest: bool


def growth_of(body: LoopBody, carry: Any, path: tuple[Any, ...], axis: int) -> Growth | None:
    """How a component of a carry grows, or None where no buffer could take its place.

    Args:
      body: the body.
      carry: the pytree of types that goes in.
      path: of the component.
      axis: the axis that grows.
    """
    aval = subtree_at(carry, path)
    shape = [n + _LONGER * (i == axis) for i, n in enumerate(aval.shape)]
    longer = with_subtree(carry, path, aval.update(shape=tuple(shape)))
    try:
        traced = trace(
            lambda before, carry, after: body.fun(*before, carry, *after),
            body.before,
            longer,
            body.after,
        )
    except Exception:  # noqa: BLE001  one length alone may fit, and fail in any way
        return None
    jaxpr, index = open_jaxpr(traced.jaxpr), key_paths(carry).index(path)
    walk = _Walk(axis)
    first = len(key_paths(body.before))
    reached = walk.through(jaxpr, {jaxpr.invars[first + index]})
    alone = [i for i, is_reached in enumerate(reached) if is_reached] == [index]
    if walk.side is None or not alone or not walk.reads <= {walk.side}:
        return None
    return Growth(walk.side, bool(walk.reads))


class _Walk:
    """Follows an array through a jaxpr, as far as its rows stay apart."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.side: Side | None = None
        self.reads: set[str] = set()

    def through(self, jaxpr: Any, reached: set[Any]) -> list[bool]:
        """Which outputs are the array, operated on row by row, given which variables are."""
        for eqn in jaxpr.eqns:
            positions = [i for i, v in enumerate(eqn.invars) if not is_literal(v) and v in reached]
            if positions:
                reached |= {eqn.outvars[i] for i in self._outputs(eqn, positions)}
        return [not is_literal(v) and v in reached for v in jaxpr.outvars]

    def _outputs(self, eqn: Any, positions: list[int]) -> list[int]:
        """Which outputs of an equation are the array; what mixes rows is noted as such."""
        name, operand = eqn.primitive.name, eqn.invars[positions[0]]
        if (called := called_jaxpr(eqn)) is not None:
            inner = open_jaxpr(called)
            marks = self.through(inner, {inner.invars[i] for i in positions})
            return [i for i, is_reached in enumerate(marks) if is_reached]
        if name in ELEMENTWISE and _shape(eqn.outvars[0]) == _shape(operand):
            return [0]
        if name in ("concatenate", "pad"):
            self._add(_side_of(eqn, positions, self.axis))
            return [0]
        self.reads.add(_end_read(eqn, self.axis) if name == "slice" else "any")
        return []

    def _add(self, side: Side | None) -> None:
        if side is None or self.side is not None:
            self.reads.add("any")
        self.side = side


def _shape(variable: Any) -> Any:
    aval = variable.aval
    return aval.shape if isinstance(aval, ShapedArray) else None


def _side_of(eqn: Any, positions: list[int], axis: int) -> Side | None:
    """The side at which an equation adds rows to the array."""
    if eqn.primitive.name == "concatenate":
        if eqn.params["dimension"] != axis:
            return None
        last = len(eqn.invars) - 1
        return "end" if positions == [0] else "front" if positions == [last] else None
    config = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    low, high, interior = config.pop(axis)
    if positions != [0] or interior or any(map(any, config)) or min(low, high) < 0:
        return None
    return "end" if high and not low else "front" if low and not high else None


def _end_read(eqn: Any, axis: int) -> str:
    """The side from which a slice takes its rows."""
    start, limit = eqn.params["start_indices"][axis], eqn.params["limit_indices"][axis]
    size, num_rows = _shape(eqn.invars[0])[axis], limit - start
    if num_rows + _LONGER > size or eqn.params["strides"] is not None:
        return "any"
    return "end" if limit == size else "front" if start == 0 else "any"
