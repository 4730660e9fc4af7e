"""A component whose structure changes, as advice about it sees it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.tree_util import keystr

from checks.edits import Edit
from checks.source import Place
from checks.trial import Change
from checks.written import WrittenBody


@dataclass(frozen=True)
class StructureProblem:
    """A component whose structure differs: the pytrees of types that go in and come out.

    `path` leads to it in the carry, and `carry` is all of that as it goes in. `sites` are the
    expressions that the body returns for it, and `parameter` is what the body calls what goes in.
    """

    path: tuple[Any, ...]
    carry: Any
    before: Any
    after: Any
    sites: tuple[Place, ...]
    parameter: str
    written: WrittenBody

    @property
    def init(self) -> str:
        """The component in the initial carry, as an expression."""
        return f"init{keystr(self.path)}"


def edited(problem: StructureProblem, rewrite: Callable[[str], str | None]) -> Iterator[Change]:
    """A returned expression rewritten, each that is known in turn."""
    for site in problem.sites:
        if site.span is not None and site.code is not None and site.text:
            new = rewrite(site.text)
            if new is not None:
                yield Change((Edit(site.file, site.span, site.code, new),))
