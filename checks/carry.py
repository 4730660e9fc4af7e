"""The carry contract: what comes out of a loop body has the type of what went in.

A loop traces its body once, against the types of the initial carry, and runs that one program
again and again. So the output must have the input's structure, and each leaf its type.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.core import AbstractValue, ShapedArray
from jax.tree_util import (
    PyTreeDef,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from checks.errors import CarryMismatch, CarryStructureError, CarryTypeError
from checks.matching import avals_match, mismatch_kind, mismatch_text
from checks.naming import parameter_name
from checks.structure import KeyPath, Subtree, structure_differences


def _check_carry_type(
    name: str,
    body_fun: Callable[..., Any],
    in_carry: Any,
    out_carry_tree: PyTreeDef,
    out_avals: Sequence[AbstractValue],
) -> None:
    """Checks the carry that a loop body returns against the carry that it takes.

    Weak types may differ. Structure is checked before types. Structures whose treedefs differ
    but which give the same one when the output is unflattened and flattened again are the same,
    as they are to JAX; their leaves are still compared.

    Args:
      name: what the message calls the body: `scan body` or `while_loop body`.
      body_fun: the body; the message names components after its first parameter.
      in_carry: pytree of arrays, Python scalars or avals.
      out_carry_tree: structure of the carry that the body returns.
      out_avals: avals of its leaves, in order.

    Raises:
      CarryStructureError: the pytree structures differ.
      CarryTypeError: shape, dtype, varying axes, memory space or sharding of a leaf differ.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> out, tree = jax.tree.flatten({"n": jax.typeof(jnp.float32(0))})
      >>> try:
      ...     _check_carry_type("scan body", lambda c, x: (c, x), {"n": jnp.int32(0)}, tree, out)
      ... except CarryTypeError as error:
      ...     print(error.mismatches[0].component, error.mismatches[0].kind)
      c['n'] dtype
    """
    in_leaves, in_tree = tree_flatten(in_carry)
    in_avals = [_abstractify(leaf) for leaf in in_leaves]
    if in_tree != out_carry_tree and not _restores_to(in_tree, out_carry_tree, out_avals):
        inputs, outputs = Subtree(in_tree, in_avals), Subtree(out_carry_tree, out_avals)
        raise _structure_error(name, parameter_name(body_fun, 0), in_carry, inputs, outputs)
    for in_aval, out_aval in zip(in_avals, out_avals, strict=True):
        if not (in_aval is out_aval or in_aval == out_aval or avals_match(in_aval, out_aval)):
            raise _type_error(name, parameter_name(body_fun, 0), in_carry, in_avals, out_avals)


def _abstractify(leaf: Any) -> AbstractValue:
    return leaf if isinstance(leaf, AbstractValue) else jax.typeof(leaf)


def _restores_to(wanted: PyTreeDef, tree: PyTreeDef, avals: Sequence[AbstractValue]) -> bool:
    """Whether a pytree unflattened from `tree` has the structure `wanted`, leaf for leaf."""
    # A class may keep metadata that its unflatten function does not read, or rewrites; treedefs
    # then differ where the values that a user sees do not. Were the leaves to move as well, the
    # loop would feed one component's value to another.
    placeholders = [_placeholder(aval) for aval in avals]
    try:
        leaves, restored = tree_flatten(tree_unflatten(tree, placeholders))
    except Exception:  # noqa: BLE001  the user's class may refuse placeholders in any way
        return False
    return restored == wanted and list(map(id, leaves)) == list(map(id, placeholders))


def _placeholder(aval: AbstractValue) -> Any:
    # New each time, unlike an aval, so that it can be told from the others.
    return (
        jax.ShapeDtypeStruct(aval.shape, aval.dtype) if isinstance(aval, ShapedArray) else object()
    )


def _structure_error(
    name: str, parameter: str, in_carry: Any, inputs: Subtree, outputs: Subtree
) -> CarryStructureError:
    found = list(structure_differences(in_carry, inputs, outputs))
    sentences = [
        f"{_phrase(parameter, path)} is {input_thing} but the corresponding component of the "
        f"carry output is {output_thing}, so {explanation}"
        for path, input_thing, output_thing, explanation, _, _ in found
    ]
    mismatches = [
        CarryMismatch(d.path, parameter + keystr(d.path), d.input_type, d.output_type, "structure")
        for d in found
    ]
    if not found:  # metadata that compare equal one by one, in a class with an odd `__eq__`
        root = _phrase(parameter, ())
        sentences = [f"{root} is a {inputs.tree} but the carry output is a {outputs.tree}"]
        mismatches = [CarryMismatch((), parameter, None, None, "structure")]
    message = (
        f"{name} function carry input and carry output must have the same pytree structure, but "
        f"they differ:\n\n{_listed(sentences)}\nRevise the function so that the carry output has "
        "the same pytree structure as the carry input."
    )
    return CarryStructureError(message, name=name, mismatches=tuple(mismatches))


def _type_error(
    name: str,
    parameter: str,
    in_carry: Any,
    in_avals: Sequence[AbstractValue],
    out_avals: Sequence[AbstractValue],
) -> CarryTypeError:
    paths = [path for path, _ in tree_flatten_with_path(in_carry)[0]]
    differing = [
        (path, in_aval, out_aval)
        for path, in_aval, out_aval in zip(paths, in_avals, out_avals)
        if not avals_match(in_aval, out_aval)
    ]
    sentences = [
        f"{_phrase(parameter, path)} has type {in_aval.str_short()} but the corresponding output "
        f"carry component has type {out_aval.str_short()}{mismatch_text(in_aval, out_aval)}"
        for path, in_aval, out_aval in differing
    ]
    message = (
        f"{name} function carry input and carry output must have equal types (e.g. shapes and "
        f"dtypes of arrays), but they differ:\n\n{_listed(sentences)}\n"
        f"{_varying_advice(parameter, differing)}Revise the function so that all output types "
        "(e.g. shapes and dtypes) match the corresponding input types."
    )
    mismatches = tuple(
        CarryMismatch(path, parameter + keystr(path), i, o, mismatch_kind(i, o))
        for path, i, o in differing
    )
    return CarryTypeError(message, name=name, mismatches=mismatches)


def _varying_advice(
    parameter: str, differing: Iterable[tuple[KeyPath, AbstractValue, AbstractValue]]
) -> str:
    """What to do about outputs that vary over more manual mesh axes than their inputs."""
    casts = [
        f"apply `jax.lax.pcast(..., {axes}, to='varying')` to the initial value of "
        f"{_phrase(parameter, path)}"
        for path, in_aval, out_aval in differing
        if (axes := _added_axes(in_aval, out_aval))
    ]
    if not casts:
        return ""
    return (
        f"{_listed(casts)}"
        "(https://docs.jax.dev/en/latest/201/shard-map.html#scan-vma says more.)\n\n"
    )


def _added_axes(in_aval: AbstractValue, out_aval: AbstractValue) -> tuple[Any, ...]:
    if isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray):
        return tuple(sorted(out_aval.mat.varying - in_aval.mat.varying, key=str))
    return ()


def _phrase(parameter: str, path: KeyPath) -> str:
    if parameter:
        component = f"component {parameter}{keystr(path)}" if path else parameter
        return f"the input carry {component}"
    return f"the input carry at path {keystr(path)}" if path else "the input carry"


def _listed(sentences: Sequence[str]) -> str:
    """One sentence on a line of its own, several as a list."""
    if len(sentences) == 1:
        (sentence,) = sentences
        return sentence[0].upper() + sentence[1:] + ".\n"
    return ";\n".join(f"  * {sentence}" for sentence in sentences) + ".\n"
