"""Where two pytree structures part ways.

The walk reads treedefs alone and never builds an instance of a class of the user's, which may
refuse types in the place of arrays. Only the names of children come from the carry itself.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.core import AbstractValue, ShapedArray
from jax.tree_util import GetAttrKey, PyTreeDef, flatten_one_level_with_keys

KeyPath = tuple[Any, ...]
_NodeData = tuple[type, Any]  # a node's class and its metadata


class StructureDifference(NamedTuple):
    """A place where two structures differ: what is there, in words and as types of leaves."""

    path: KeyPath
    input_thing: str
    output_thing: str
    explanation: str
    input_type: AbstractValue | None
    output_type: AbstractValue | None


class Subtree(NamedTuple):
    """A part of a carry: its structure and the types of its leaves."""

    tree: PyTreeDef
    avals: Sequence[AbstractValue]

    def children(self) -> Iterator["Subtree"]:
        """The subtrees one level down."""
        start = 0
        for child in self.tree.children():
            stop = start + child.num_leaves
            yield Subtree(child, self.avals[start:stop])
            start = stop

    @property
    def leaf_type(self) -> AbstractValue | None:
        """The aval of a subtree that is a leaf."""
        return self.avals[0] if self.tree.node_data() is None else None


def structure_differences(
    in_carry: Any, inputs: Subtree, outputs: Subtree, path: KeyPath = ()
) -> Iterator[StructureDifference]:
    """Walks two structures together, down to the nodes at which they differ.

    Args:
      in_carry: the pytree that has the structure of `inputs`; its children name the paths.
      inputs: structure and types of what goes in.
      outputs: structure and types of what comes out.
      path: where the two stand in the whole carry.

    Yields:
      A `StructureDifference` for each node that differs; nothing is looked for below it.
    """
    in_node, out_node = inputs.tree.node_data(), outputs.tree.node_data()
    if in_node is None and out_node is None:
        return
    found = _node_difference(in_carry, inputs, outputs)
    if found is not None:
        yield StructureDifference(path, *found, inputs.leaf_type, outputs.leaf_type)
        return
    children = zip(named_children(in_carry), inputs.children(), outputs.children())
    for (key, child), child_in, child_out in children:
        yield from structure_differences(child, child_in, child_out, (*path, key))


_Found = tuple[str, str, str]  # the input's thing, the output's thing, the explanation


def _node_difference(in_carry: Any, inputs: Subtree, outputs: Subtree) -> _Found | None:
    """How two nodes differ by themselves, their children left aside."""
    in_node, out_node = inputs.tree.node_data(), outputs.tree.node_data()
    if in_node is None or out_node is None or in_node[0] is not out_node[0]:
        return _thing(inputs), _thing(outputs), _which_is_odd(in_node, out_node)
    in_count, out_count = len(inputs.tree.children()), len(outputs.tree.children())
    if in_count != out_count:
        return _count_difference(in_node, out_node, in_count, out_count)
    if in_node[1] != out_node[1]:
        return _metadata_difference(in_carry, in_node, out_node)
    return None


def _count_difference(
    in_node: _NodeData, out_node: _NodeData, in_count: int, out_count: int
) -> _Found:
    kind = in_node[0]
    if issubclass(kind, (list, tuple)):
        sequence = f"a {kind.__name__} of length"
        return f"{sequence} {in_count}", f"{sequence} {out_count}", "the lengths do not match"
    explanation = "the numbers of children do not match" + _key_changes(in_node, out_node)
    return _with_children(kind, in_count), _with_children(kind, out_count), explanation


def _with_children(kind: type, count: int) -> str:
    return f"a {kind} with {count} {'child' if count == 1 else 'children'}"


def _metadata_difference(in_carry: Any, in_node: _NodeData, out_node: _NodeData) -> _Found:
    detail = _key_changes(in_node, out_node) or _static_changes(in_carry, in_node, out_node)
    explanation = "the pytree node metadata does not match" + detail
    return _with_metadata(*in_node), _with_metadata(*out_node), explanation


def _with_metadata(kind: type, data: Any) -> str:
    # A dictionary's metadata are its keys, in a list; messages show them as a tuple.
    return f"a {kind} with pytree metadata {tuple(data) if kind is dict else data!r}"


def _thing(subtree: Subtree) -> str:
    node, leaf = subtree.tree.node_data(), subtree.leaf_type
    if leaf is not None:
        kind = "an array" if isinstance(leaf, ShapedArray) else "a leaf"
        return f"{kind} of type {leaf.str_short()}"
    return "None" if node is None or node[0] is type(None) else f"a {node[0]}"


def _which_is_odd(in_node: Any, out_node: Any) -> str:
    if any(node is not None and node[0] is type(None) for node in (in_node, out_node)):
        return "only one of the two is None"
    if in_node is None or out_node is None:
        return "only one of the two is a leaf"
    return "their Python types differ"


def _keys(node: _NodeData) -> tuple[Any, ...] | None:
    """The keys of a dictionary of any kind, from the metadata of its node."""
    kind, data = node
    if kind is dict or kind is collections.OrderedDict:
        return tuple(data)
    return tuple(data[1]) if kind is collections.defaultdict else None


def _key_changes(in_node: _NodeData, out_node: _NodeData) -> str:
    """Which keys of a dictionary the output lacks and adds."""
    in_keys, out_keys = _keys(in_node), _keys(out_node)
    if in_keys is None or out_keys is None or in_keys == out_keys:
        return ""
    lacks = [repr(key) for key in in_keys if key not in out_keys]
    adds = [repr(key) for key in out_keys if key not in in_keys]
    if not lacks and not adds:
        return ": the output has its keys in another order"
    changes = [
        f"{verb} the {_plural('key', k)}" for verb, k in (("lacks", lacks), ("adds", adds)) if k
    ]
    return ": the output " + " and ".join(changes)


def _static_changes(in_carry: Any, in_node: _NodeData, out_node: _NodeData) -> str:
    """Which static fields of a dataclass changed, where its metadata are the fields' values."""
    in_data, out_data = in_node[1], out_node[1]
    if not dataclasses.is_dataclass(in_carry) or not isinstance(in_data, tuple):
        return ""
    children = {getattr(key, "name", None) for key, _ in named_children(in_carry)}
    static = [f.name for f in dataclasses.fields(in_carry) if f.name not in children]
    # By identity: the values of fields may be arrays, of which `==` makes no truth value.
    values = [getattr(in_carry, name, None) for name in static]
    if list(map(id, values)) != list(map(id, in_data)) or len(out_data) != len(in_data):
        return ""
    changed = [name for name, old, new in zip(static, in_data, out_data) if old != new]
    return f": the output changes the static {_plural('field', changed)}"


def _plural(noun: str, names: list[str]) -> str:
    return f"{noun if len(names) == 1 else noun + 's'} {', '.join(names)}"


def named_children(node: Any) -> list[tuple[Any, Any]]:
    """The children of a pytree's node, each with its key."""
    # JAX 0.10.2 gives every child of a namedtuple the first field's name.
    fields = getattr(node, "_fields", None) if isinstance(node, tuple) else None
    if fields is not None:
        return [(GetAttrKey(name), child) for name, child in zip(fields, node)]
    return list(flatten_one_level_with_keys(node)[0])
