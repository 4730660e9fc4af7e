"""Asserting that two trees of results are the same."""

from typing import Any

import jax

from checks.comparison import differences, is_float, type_of

__all__ = ["assert_same", "is_float", "type_of", "types_of"]


def assert_same(got: Any, want: Any, *, rtol: float = 1e-5, weak_types: bool = True) -> None:
    """Fails with every leaf that differs: where it is, and what each side has there."""
    found = differences(got, want, rtol=rtol, weak_types=weak_types)
    assert not found, "\n".join(found)


def types_of(tree: Any) -> list[tuple[Any, ...]]:
    """The types of all leaves."""
    return [type_of(leaf) for leaf in jax.tree.leaves(tree)]
