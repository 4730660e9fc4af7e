"""A leaf whose type changes, as advice about it sees it, and the changes that advice is made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.sharding import PartitionSpec
from jax.tree_util import keystr

from checks.edits import Edit
from checks.later_use import may_change_shape
from checks.provenance import Provenance, Upstream
from checks.source import Place
from checks.trial import Change, InitChange
from checks.written import WrittenBody

Rewrite = Callable[[str], str | None]  # an expression's text to another's


@dataclass(frozen=True)
class LeafProblem:
    """A leaf with an input type that is not its output type, and what is known about it.

    `path` leads to it in the user's carry, `carry` are the types of all of that as it goes in, and
    `parameter` is what the body calls the leaf. `jaxpr` is the body's, `sites` are the expressions
    to change, and `upstream` the reductions that the output was computed with.
    `from_carry` says whether what has the foreign type was computed from the carry, and
    `from_itself` whether from this leaf. `has_siblings` says whether other leaves are broken as
    well, and `ends_loop` whether the condition of a while loop reads it, and not as a float.
    """

    path: tuple[Any, ...]
    carry: Any
    parameter: str
    before: ShapedArray
    after: ShapedArray
    provenance: Provenance | None
    jaxpr: Any
    sites: tuple[Place, ...]
    upstream: tuple[Upstream, ...]
    from_carry: bool
    from_itself: bool
    written: WrittenBody
    has_siblings: bool
    ends_loop: bool

    @property
    def init(self) -> str:
        """The component in the initial carry, as an expression."""
        return f"init{keystr(self.path)}"


def dtype_code(dtype: Any, alias: str | None) -> str:
    """A dtype as the user would write it."""
    name = np.dtype(dtype).name
    name = "bool_" if name == "bool" else name
    return f"{alias}.{name}" if alias and hasattr(jnp, name) else repr(np.dtype(dtype).name)


def each_site(problem: LeafProblem, rewrites: list[Rewrite]) -> Iterator[Change]:
    """Every rewrite of every expression, one at a time."""
    for rewrite in rewrites:
        yield from (rewritten(site, rewrite) for site in problem.sites)


def each_early_site(
    problem: LeafProblem, rewrites: list[Rewrite], *, only_ones: bool
) -> Iterator[Change]:
    """The same for rewrites to another shape, where what follows would not notice.

    Args:
      problem: the leaf.
      rewrites: the rewrites.
      only_ones: whether they add or take away axes of one element alone.
    """
    for rewrite in rewrites:
        for site in problem.sites:
            yield early_change(problem, site, rewrite, only_ones=only_ones)


def early_change(problem: LeafProblem, site: Place, rewrite: Rewrite, *, only_ones: bool) -> Change:
    """A change of the shape of one expression; an empty one where what follows would notice."""
    change = rewritten(site, rewrite)
    fits = change.edits and may_change_shape(problem.jaxpr, site, only_ones=only_ones)
    return change if fits else Change()


def rewritten(site: Place, rewrite: Rewrite) -> Change:
    """A change of one expression; an empty one where the rewrite does not apply."""
    edit = changed_site(site, rewrite)
    return Change() if edit is None else Change((edit,))


def changed_site(site: Place, rewrite: Rewrite) -> Edit | None:
    """The edit that rewrites an expression; None where the rewrite does not apply."""
    if site.span is None or site.code is None or not site.text:
        return None
    new = rewrite(site.text)
    return None if new is None else Edit(site.file, site.span, site.code, new)


def init_of_type(problem: LeafProblem, dtype: Any, shape: tuple[Any, ...]) -> Change:
    """A change of the initial value to another dtype, shape, or both."""
    alias = problem.written.jnp or "jnp"
    code = problem.init
    if dtype != problem.before.dtype:
        code = f"{alias}.asarray({code}, {dtype_code(dtype, problem.written.jnp)})"
    if shape != problem.before.shape:
        code = f"{alias}.broadcast_to({code}, {shape!r})"
        code = placed(code, problem.after, problem.written)
    return Change((), (InitChange(problem.path, code),))


def placed(code: str, aval: ShapedArray, written: WrittenBody) -> str:
    """Code of an array with the sharding of a type, where that is explicit on some axis."""
    spec = aval.sharding.spec
    return resharded(code, spec, written) if any(part is not None for part in spec) else code


def resharded(code: str, spec: Any, written: WrittenBody) -> str:
    """Code of an array with another explicit sharding."""
    name = written.alias(PartitionSpec, "P") or f"{written.jax}.sharding.PartitionSpec"
    parts = ", ".join(map(repr, spec))
    return f"{written.jax}.sharding.reshard({code}, {name}({parts}))"
