"""The texts of the carry check, word for word."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from tests.helpers.carries import Poly, refusal


def message(carry, output, *, body=lambda c, x: (c, x), name="scan body") -> str:
    """The text that a carry and an output, given by value, are refused with."""
    return str(refusal(carry, output, body=body, name=name))


TYPES_DIFFER = (
    "function carry input and carry output must have equal types (e.g. shapes and dtypes of "
    "arrays), but they differ:\n\n"
)
MATCH_TYPES = (
    "\n\nRevise the function so that all output types (e.g. shapes and dtypes) match the "
    "corresponding input types."
)
STRUCTURES_DIFFER = (
    "function carry input and carry output must have the same pytree structure, but they "
    "differ:\n\n"
)
MATCH_STRUCTURES = (
    "\n\nRevise the function so that the carry output has the same pytree structure as the carry "
    "input."
)


def middle(text: str) -> str:
    """What a text says between its first sentence and its last, both of which must be right."""
    for start, end in ((TYPES_DIFFER, MATCH_TYPES), (STRUCTURES_DIFFER, MATCH_STRUCTURES)):
        if text.startswith("scan body " + start):
            assert text.endswith(end)
            return text.removeprefix("scan body " + start).removesuffix(end)
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("name", "body", "component"),
    [
        ("scan body", lambda c, x: (c, x), "c"),
        ("while_loop body", lambda c: c, "c"),
        ("scan body", lambda loop_carry, x: (loop_carry, x), "component loop_carry[1]"),
    ],
)
def test_the_lessons_text(name, body, component):
    """A carry that grows gets the lesson's text from scan, while_loop and fori_loop."""
    nested = (lambda v: (0, v)) if "[1]" in component else (lambda v: v)
    got = message(nested(jnp.zeros(1)), nested(jnp.zeros(2)), name=name, body=body)
    assert got == (
        f"{name} function carry input and carry output must have equal types (e.g. shapes and "
        "dtypes of arrays), but they differ:\n\n"
        f"The input carry {component} has type float32[1] but the corresponding output carry "
        "component has type float32[2], so the shapes do not match.\n\n"
        "Revise the function so that all output types (e.g. shapes and dtypes) match the "
        "corresponding input types."
    )


def test_several_differences_are_a_list():
    """Each difference is an item; the items end in semicolons and the last in a full stop."""
    carry = {"n": jnp.int32(0), "v": jnp.zeros(2), "w": jnp.int32(0), "x": jnp.ones(3)}
    output = {"n": jnp.float32(0), "v": jnp.zeros(3), "w": jnp.zeros((1, 1)), "x": jnp.ones(3)}
    assert middle(message(carry, output)) == (
        "  * the input carry component c['n'] has type int32[] but the corresponding output "
        "carry component has type float32[], so the dtypes do not match;\n"
        "  * the input carry component c['v'] has type float32[2] but the corresponding output "
        "carry component has type float32[3], so the shapes do not match;\n"
        "  * the input carry component c['w'] has type int32[] but the corresponding output "
        "carry component has type float32[1,1], so the dtypes do not match, and the shapes do "
        "not match."
    )


def no_parameters():
    """A body that takes nothing, which no loop can call."""


def keywords_only(*, carry):
    """A body that no loop can call either."""


@pytest.mark.parametrize(
    ("body", "root", "leaf"),
    [
        (functools.partial(lambda a, state, x: 0, 1), "state", "component state[0]"),
        (lambda *args: 0, "args[0]", "component args[0][0]"),
        (min, "", "at path [0]"),
        (no_parameters, "", "at path [0]"),
        (keywords_only, "", "at path [0]"),
        (42, "", "at path [0]"),
    ],
)
def test_components_are_named_after_the_first_parameter(body, root, leaf):
    """The path follows the first parameter's name, or stands alone where there is none."""
    at_root = middle(message(jnp.zeros(1), jnp.zeros(2), body=body))
    assert at_root.startswith(f"The input carry {root}".rstrip() + " has type float32[1]")
    at_leaf = middle(message((jnp.zeros(1),), (jnp.zeros(2),), body=body))
    assert at_leaf.startswith(f"The input carry {leaf} has type float32[1]")


class Structures(NamedTuple):
    """An input, an output, and the text about the two."""

    carry: Any
    output: Any
    text: str


@pytest.mark.parametrize(
    "case",
    [
        Structures(
            {"pos": 1, "opt": {"m": 2}},
            {"pos": 1, "opt": {"m": 2, "v": 3}},
            "The input carry component c['opt'] is a <class 'dict'> with 1 child but the "
            "corresponding component of the carry output is a <class 'dict'> with 2 children, so "
            "the numbers of children do not match: the output adds the key 'v'.",
        ),
        Structures(
            {"t": 1},
            {"T": 1},
            "The input carry c is a <class 'dict'> with pytree metadata ('t',) but the "
            "corresponding component of the carry output is a <class 'dict'> with pytree "
            "metadata ('T',), so the pytree node metadata does not match: the output lacks the "
            "key 't' and adds the key 'T'.",
        ),
        Structures(
            (0, Poly(jnp.ones(()), 0)),
            (0, Poly(jnp.ones(()), 1)),
            f"The input carry component c[1] is a {Poly} with pytree metadata 0 but the "
            f"corresponding component of the carry output is a {Poly} with pytree metadata 1, so "
            "the pytree node metadata does not match.",
        ),
        Structures(
            {"h": None},
            {"h": jnp.ones(2)},
            "The input carry component c['h'] is None but the corresponding component of the "
            "carry output is an array of type float32[2], so only one of the two is None.",
        ),
        Structures(
            jnp.ones(2),
            None,
            "The input carry c is an array of type float32[2] but the corresponding component of "
            "the carry output is None, so only one of the two is None.",
        ),
        Structures(
            0.0,
            (1.0, 1.0),
            "The input carry c is an array of type float32[] but the corresponding component of "
            "the carry output is a <class 'tuple'>, so only one of the two is a leaf.",
        ),
        Structures(
            ((0, 1), [2, 3]),
            ((0,), (2, 3)),
            "  * the input carry component c[0] is a tuple of length 2 but the corresponding "
            "component of the carry output is a tuple of length 1, so the lengths do not match;\n"
            "  * the input carry component c[1] is a <class 'list'> but the corresponding "
            "component of the carry output is a <class 'tuple'>, so their Python types differ.",
        ),
    ],
    ids=["key", "renamed key", "metadata", "None", "to None", "leaf", "several"],
)
def test_structures_that_differ(case):
    """Each way in which structures differ has its own words, at the node where they differ."""
    text = message(case.carry, case.output)
    assert text.startswith("scan body " + STRUCTURES_DIFFER)
    assert middle(text) == case.text


def varying_message(count) -> str:
    """The text about leaves that come out varying over two more mesh axes than they went in."""
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    texts = []

    def body(x):
        varying = jax.lax.pcast(x, ("j", "i"), to="varying")
        texts.append(message((x,) * count, (varying,) * count))
        return x

    jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    ).trace(jnp.zeros(2))
    return texts[0]


def test_one_component_that_varies_over_more_axes():
    """The text ends in the cast that makes the initial value vary, axes in sorted order."""
    assert varying_message(1) == (
        f"scan body {TYPES_DIFFER}"
        "The input carry component c[0] has type float32[2] but the corresponding output carry "
        "component has type float32[2]{V:(i,j)}, so the manual axis types do not match.\n\n"
        "Apply `jax.lax.pcast(..., ('i', 'j'), to='varying')` to the initial value of the input "
        "carry component c[0].\n"
        "(https://docs.jax.dev/en/latest/201/shard-map.html#scan-vma says more.)"
        f"{MATCH_TYPES}"
    )


def test_several_components_that_vary_over_more_axes():
    """Each component has a cast of its own."""
    _, _, advice, _ = varying_message(2).split("\n\n")
    cast = "apply `jax.lax.pcast(..., ('i', 'j'), to='varying')` to the initial value of"
    assert advice == (
        f"  * {cast} the input carry component c[0];\n"
        f"  * {cast} the input carry component c[1].\n"
        "(https://docs.jax.dev/en/latest/201/shard-map.html#scan-vma says more.)"
    )


@pytest.mark.parametrize(
    ("carry", "output"),
    [
        (jnp.zeros(1), jnp.zeros(2)),
        ({"a": [jnp.int32(0)]}, {"a": [jnp.float32(0)]}),
        ((jnp.int32(0), jnp.int32(1)), (jnp.zeros((1, 1)), jnp.bool_(True))),
        (jax.random.key(0), jnp.uint32(0)),
        ((1, 2), (1, 2, 3)),
        ((1, 2), [1, 2]),
        ([{"a": 1}], [(1,)]),
        (Poly(jnp.ones(()), 0), Poly(jnp.ones(()), 1)),
    ],
)
def test_the_middle_is_what_jax_says(carry, output):
    """Between the constant sentences stand the words that people know from JAX."""
    with pytest.raises(TypeError) as caught:
        jax.lax.scan(lambda c, _: (output, None), carry, None, length=1)
    _, jaxs, _ = str(caught.value).split("\n\n")
    assert middle(message(carry, output)) == jaxs
