"""The carry check: what it accepts, what it refuses, and the data on the errors it raises."""

import collections
import copy
import dataclasses
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from checks import (
    CarryStructureError,
    CarryTypeError,
    _check_carry_type,
)
from tests.helpers.carries import Poly, check, refusal


class Pair(collections.namedtuple("Pair", "mean count")):
    """A named tuple, whose fields name paths."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["weights"], meta_fields=["rate", "name"]
)
@dataclasses.dataclass
class Layer:
    """A dataclass with two static fields."""

    weights: Any
    rate: float
    name: str


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("carry", "output"),
    [
        (jnp.zeros(2), jnp.ones(2)),
        (0, jnp.int32(3)),
        (1.0, jnp.float32(3)),
        (jnp.float32(3), 1.0),
        ({"a": None, "b": (1, [])}, {"a": None, "b": (2, [])}),
        (np.float32(1), jnp.float32(2)),
        (jax.typeof(jnp.zeros(3)), jnp.zeros(3)),
        (jax.ShapeDtypeStruct((3,), jnp.float32), jnp.zeros(3)),
        (KEY, jax.random.key(1)),
        (Poly(jnp.ones(2), 3), Poly(jnp.ones(2), 3)),
        ((), ()),
        (None, None),
    ],
)
def test_a_carry_that_keeps_its_type_passes(carry, output):
    """Equal structures and equal types up to weak types are accepted, as values or as avals."""
    check(carry, output)


@pytest.mark.parametrize(
    ("carry", "output", "kind"),
    [
        (jnp.zeros(1), jnp.zeros(2), "shape"),
        (jnp.zeros(()), jnp.zeros(1), "shape"),
        (jnp.int32(0), jnp.float32(0), "dtype"),
        (0, 1.0, "dtype"),
        (jnp.int8(0), jnp.uint8(0), "dtype"),
        (KEY, jax.random.key(0, impl="rbg"), "dtype"),
        (KEY, jax.random.key_data(KEY), "shape and dtype"),
        (jnp.int32(0), jnp.zeros(1), "shape and dtype"),
    ],
)
def test_a_leaf_that_drifts_is_refused_with_its_types(carry, output, kind):
    """A leaf that changes gives one mismatch, with both avals and what differs."""
    (mismatch,) = refusal(carry, output).mismatches
    assert mismatch.path == ()
    assert mismatch.component == "c"
    assert mismatch.input_type == jax.typeof(carry)
    assert mismatch.output_type == jax.typeof(output)
    assert mismatch.kind == kind


def test_each_drifting_leaf_has_its_path():
    """Mismatches come in the order of the leaves, each with key path and component."""
    carry = {"x": [jnp.zeros(1), jnp.zeros(1)], "y": Pair(jnp.zeros(1), jnp.int32(0))}
    output = {"x": [jnp.zeros(1), jnp.zeros(2)], "y": Pair(jnp.zeros(1), jnp.float32(0))}
    error = refusal(carry, output)
    assert [(m.path, m.component, m.kind) for m in error.mismatches] == [
        ((DictKey("x"), SequenceKey(1)), "c['x'][1]", "shape"),
        ((DictKey("y"), GetAttrKey("count")), "c['y'].count", "dtype"),
    ]


def test_structure_goes_before_types():
    """A carry with both a changed structure and a changed type is refused for the structure."""
    error = refusal((jnp.int32(0), 1), (jnp.float32(0), (1, 2)))
    assert isinstance(error, CarryStructureError)
    assert [m.component for m in error.mismatches] == ["c[1]"]
    assert "float32" not in str(error)


def test_an_extra_key_is_named_with_its_place():
    """A key that the body adds to an inner dictionary is named, and so is the dictionary."""
    carry = {"pos": jnp.zeros(2), "opt": {"m": jnp.zeros(2)}}
    output = {"pos": jnp.zeros(2), "opt": {"m": jnp.zeros(2), "v": jnp.zeros(2)}}
    error = refusal(carry, output)
    (mismatch,) = error.mismatches
    assert (mismatch.component, mismatch.kind) == ("c['opt']", "structure")
    assert "adds the key 'v'" in str(error)


@pytest.mark.parametrize("name", ["scan body", "while_loop body"])
def test_changed_static_metadata_is_refused_by_class(name):
    """A body that counts up static metadata is refused, and the class of the node named."""
    error = refusal((0, Poly(jnp.ones(()), 0)), (0, Poly(jnp.ones(()), 1)), name=name)
    (mismatch,) = error.mismatches
    assert isinstance(error, CarryStructureError)
    assert (error.name, mismatch.component) == (name, "c[1]")
    assert "Poly" in str(error)


@pytest.mark.parametrize("flip", [False, True])
def test_none_against_an_array_says_so(flip):
    """None for an array, or an array for None, is a structure error that says None."""
    carry, output = ({"h": None}, {"h": jnp.ones(2)})[:: -1 if flip else 1]
    error = refusal(carry, output)
    (mismatch,) = error.mismatches
    types = [mismatch.input_type, mismatch.output_type]
    assert isinstance(error, CarryStructureError)
    assert types[flip] is None
    assert types[not flip] == jax.typeof(jnp.ones(2))
    assert "only one of the two is None" in str(error)


def test_a_leaf_in_the_way_keeps_its_type():
    """The types on a structure mismatch are those of the leaf at its place, not of another."""
    error = refusal((jnp.ones(1), (jnp.ones(2), jnp.ones(3))), (jnp.ones(1), (jnp.ones(2), ())))
    (mismatch,) = error.mismatches
    assert mismatch.component == "c[1][1]"
    assert mismatch.input_type == jax.typeof(jnp.ones(3))
    assert mismatch.output_type is None


def test_a_definite_dtype_that_widens_is_refused_by_leaf():
    """An int32 leaf that comes out float32 is refused; the message has leaf and types."""
    carry = {"n": jnp.int32(0), "x": jnp.float32(1)}
    error = refusal(carry, {"n": jnp.float32(0), "x": jnp.float32(2)})
    assert [m.component for m in error.mismatches] == ["c['n']"]
    assert "int32[]" in str(error)
    assert "float32[]" in str(error)


@pytest.mark.parametrize(
    ("carry", "output", "component", "explanation"),
    [
        ((1, 2), (1, 2, 3), "c", "the lengths do not match"),
        ((1, 2), [1, 2], "c", "their Python types differ"),
        ((1, [2]), (1, 2), "c[1]", "only one of the two is a leaf"),
        (Pair(1, 2), (1, 2), "c", "their Python types differ"),
        (Pair(1, (2,)), Pair(1, (2, 3)), "c.count", "the lengths do not match"),
        ({"t": 1}, {"T": 1}, "c", "lacks the key 't' and adds the key 'T'"),
        ({"a": 1, "b": 2, "d": 3}, {"d": 3}, "c", "lacks the keys 'a', 'b'"),
        (
            collections.OrderedDict(a=1, b=2),
            collections.OrderedDict(b=2, a=1),
            "c",
            "keys in another order",
        ),
        (
            collections.defaultdict(int, {1: 2}),
            collections.defaultdict(int, {1: 2, 3: 4}),
            "c",
            "adds the key 3",
        ),
        (Layer(1, 0.1, "a"), Layer(1, 0.2, "a"), "c", "changes the static field rate"),
        (Layer(1, 0.1, "a"), Layer(1, 0.2, "b"), "c", "changes the static fields rate, name"),
        (Layer((1,), 0.1, "a"), Layer((), 0.1, "a"), "c.weights", "the lengths do not match"),
        ([Poly(jnp.ones(2), 0)], [None], "c[0]", "only one of the two is None"),
        ((), None, "c", "only one of the two is None"),
    ],
)
def test_each_way_to_change_a_structure_is_told_apart(carry, output, component, explanation):
    """The mismatch stands at the node that differs, and the message says in which way."""
    error = refusal(carry, output)
    (mismatch,) = error.mismatches
    assert isinstance(error, CarryStructureError)
    assert mismatch.component == component
    assert explanation in str(error)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Scaled:
    """A dataclass whose metadata are no values of its fields."""

    value: Any
    scale: Any

    def tree_flatten(self):
        """The metadata hold the scale's shape, in a tuple as long as there are other fields."""
        return (self.value,), (self.scale.shape,)

    @classmethod
    def tree_unflatten(cls, data, children):
        """A value with a scale of ones."""
        return cls(children[0], np.ones(*data))


@pytest.mark.parametrize(
    ("carry", "output"),
    [
        (collections.defaultdict(int, {1: 2}), collections.defaultdict(float, {1: 2})),
        (Scaled(1.0, np.ones(2)), Scaled(1.0, np.ones(3))),
    ],
    ids=["factory", "computed metadata"],
)
def test_metadata_of_unknown_meaning_are_shown_and_no_more(carry, output):
    """Where the metadata are neither keys nor fields the message shows them and guesses nothing."""
    error = refusal(carry, output)
    assert isinstance(error, CarryStructureError)
    assert "so the pytree node metadata does not match.\n" in str(error)


class Tagged:
    """A node whose metadata are new each time it is flattened."""

    def __init__(self, x: Any, y: Any):
        self.x, self.y = x, y


jax.tree_util.register_pytree_node(
    Tagged, lambda t: ((t.x, t.y), object()), lambda _, xy: Tagged(*xy)
)


class Sorting(dict):
    """A dictionary that keeps the order of its keys in a treedef but not when it is built."""


jax.tree_util.register_pytree_node(
    Sorting,
    lambda d: (tuple(d.values()), tuple(d)),
    lambda keys, values: Sorting(sorted(zip(keys, values), key=lambda item: item[0])),
)


class Normal:
    """A node that normalises its metadata when it is built."""

    def __init__(self, value: Any, label: str):
        self.value, self.label = value, label.lower()


jax.tree_util.register_pytree_node(
    Normal, lambda n: ((n.value,), n.label), lambda label, values: Normal(values[0], label)
)


def shouting(value) -> Normal:
    """A Normal whose label was changed after it was built."""
    node = Normal(value, "a")
    node.label = "A"
    return node


def test_metadata_that_unflattening_normalises_are_no_difference():
    """A treedef that differs in a way that no unflattened value shows is accepted."""
    carry, output = Normal(jnp.ones(2), "a"), shouting(jnp.ones(2))
    assert jax.tree.structure(carry) != jax.tree.structure(output)
    check(carry, output)


def test_types_are_checked_behind_normalised_metadata():
    """Metadata that are no difference do not hide a leaf that drifts."""
    error = refusal(Normal(jnp.ones(2), "a"), shouting(jnp.ones(3)))
    assert not isinstance(error, CarryStructureError)
    assert [m.component for m in error.mismatches] == ["c[<flat index 0>]"]


def test_leaves_that_unflattening_reorders_are_refused():
    """Two structures that differ in the order of their leaves are never taken for the same."""
    carry, output = Sorting(a=jnp.ones(2), b=jnp.zeros(2)), Sorting(b=jnp.ones(2), a=jnp.zeros(2))
    assert isinstance(refusal(carry, output), CarryStructureError)


def test_metadata_that_are_never_equal_are_refused():
    """A node whose metadata are new each time cannot be a carry, and the message names it."""
    error = refusal(Tagged(1, 2), Tagged(1, 2))
    assert isinstance(error, CarryStructureError)
    assert "Tagged" in str(error)


class Moody:
    """Metadata that are unequal in a comparison of treedefs and equal in any later one."""

    asked = 0

    def __eq__(self, other: object):
        type(self).asked += 1
        return type(self).asked > 2

    __hash__ = object.__hash__


def test_a_difference_that_the_walk_cannot_find_is_refused():
    """Where the walk finds nothing the message shows both structures: no silent acceptance."""

    def node(value):
        return Poly(value, Moody())

    error = refusal(node(jnp.ones(1)), node(jnp.ones(1)))
    (mismatch,) = error.mismatches
    assert isinstance(error, CarryStructureError)
    assert mismatch.path == ()
    assert str(error).count("PyTreeDef") == 2


def test_symbolic_dimensions_are_compared():
    """Shapes with symbolic dimensions match when equal, and are refused when not surely so."""
    n, m = jax.export.symbolic_shape("n, m")
    float32 = np.dtype("float32")
    type_of = {d: jax.core.ShapedArray((d,), float32) for d in (n, n + 1, m)}
    tree = jax.tree.structure(0)
    _check_carry_type(
        "scan body", len, type_of[n + 1], tree, [jax.core.ShapedArray((1 + n,), float32)]
    )
    for other in (n + 1, m):
        with pytest.raises(CarryTypeError, match="the shapes do not match"):
            _check_carry_type("scan body", len, type_of[n], tree, [type_of[other]])


def test_refs_must_be_equal():
    """A Ref's type is compared as a whole, and its mismatch is of no kind of array."""
    small, large = jax.typeof(jax.new_ref(jnp.ones(2))), jax.typeof(jax.new_ref(jnp.ones(3)))
    tree = jax.tree.structure(0)
    _check_carry_type("scan body", lambda c: c, small, tree, [small])
    with pytest.raises(CarryTypeError) as caught:
        _check_carry_type("scan body", lambda c: c, small, tree, [large])
    assert caught.value.mismatches[0].kind == "other"


def varying_types():
    """Types of an array that varies over no, one and two manual mesh axes."""
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    types = []

    def body(x):
        varying = [jax.lax.pcast(x, axes, to="varying") for axes in (("i",), ("j", "i"))]
        types.extend(map(jax.typeof, (x, *varying)))
        return x

    jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    ).trace(jnp.zeros(2))
    return types


def test_varying_axes_are_part_of_the_type():
    """A carry that comes out varying over more axes is refused, with the axes to cast over."""
    none, one, both = varying_types()
    tree = jax.tree.structure((0, 0))
    with pytest.raises(CarryTypeError) as caught:
        _check_carry_type("scan body", lambda c: c, (none, both), tree, [both, both])
    (mismatch,) = caught.value.mismatches
    assert (mismatch.component, mismatch.kind) == ("c[0]", "varying axes")
    assert "jax.lax.pcast(..., ('i', 'j'), to='varying')" in str(caught.value)
    with pytest.raises(CarryTypeError) as caught:
        _check_carry_type("scan body", lambda c: c, (both, one), tree, [one, one])
    assert "pcast" not in str(caught.value)


def test_sharding_counts_on_explicit_axes_only():
    """Shardings that differ are refused where the mesh has an explicit axis, else accepted."""
    for axis_type, kinds in ((AxisType.Explicit, ["sharding"]), (AxisType.Auto, [])):
        mesh = jax.make_mesh((2,), ("i",), axis_types=(axis_type,))
        whole, split = (
            jax.typeof(jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec(axis))))
            for axis in (None, "i")
        )
        found = []
        try:
            _check_carry_type("scan body", lambda c: c, whole, jax.tree.structure(0), [split])
        except CarryTypeError as error:
            found = [m.kind for m in error.mismatches]
        assert found == kinds


def test_a_type_that_has_met_no_mesh_fits_any_sharding():
    """A type without a mesh matches one on an explicit mesh, as it does for JAX."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    split = jax.typeof(jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("i"))))
    check(jnp.ones(4), split)
    check(split, jnp.ones(4))


def test_memory_spaces_must_agree():
    """A carry that moves to another memory space is refused."""
    device = jax.typeof(jnp.ones(2))
    host = device.update(memory_space=jax.memory.Space.Host)
    with pytest.raises(CarryTypeError, match="the memory spaces do not match") as caught:
        _check_carry_type("scan body", lambda c: c, device, jax.tree.structure(0), [host])
    assert caught.value.mismatches[0].kind == "memory space"


@pytest.mark.parametrize(
    "clone",
    [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("output", [(1.0, {"k": jnp.zeros(2)}), (0, {"q": None})])
def test_errors_survive_copies(clone, output):
    """A copied or pickled error keeps its class, text, notes and data."""
    error = refusal((0, {"k": jnp.zeros(1)}), output)
    error.add_note("seen")
    twin = clone(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.__notes__ == ["seen"]
    assert twin.name == error.name
    # As text: JAX 0.12 unpickles an aval to one that is not equal to it.
    assert repr(twin.mismatches) == repr(error.mismatches)
