"""Bodies whose carry changes its structure, or the types in a class of the user's."""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tests.messages.broken import broken


@broken({"m": jnp.zeros(2)})
def a_key_more(c, x):
    """A dictionary gains a key."""
    new = dict(c)
    new["v"] = c["m"] * x  # <- here
    return new, None


@broken({"m": jnp.zeros(2), "v": jnp.zeros(2)})
def a_key_less(c, x):
    """A dictionary loses a key."""
    return {"m": c["m"] * x}, None  # <- here


@broken((jnp.zeros(2), jnp.zeros(2)))
def tuple_to_list(c, x):
    """A tuple becomes a list."""
    return [c[0] * x, c[1]], None  # <- here


@broken([jnp.zeros(2), jnp.zeros(2)])
def list_to_tuple(c, x):
    """A list becomes a tuple."""
    return tuple(v * x for v in c), None  # <- here


@broken((jnp.zeros(2), jnp.zeros(2)))
def an_element_more(c, x):
    """A tuple gains an element."""
    first, *_ = c
    return (first, first, first * x), None  # <- here


@broken({"h": None, "x": jnp.zeros(2)}, advice=False)
def none_to_array(c, x):
    """A state that is empty at first: zeros in its place would stay zeros."""
    h = c["x"] if c["h"] is None else c["h"] * x  # <- here
    return {"h": h, "x": c["x"]}, None


@broken({"h": jnp.zeros(2)})
def array_to_none(c, x):
    """A state that is dropped."""
    return {"h": None}, x  # <- here


@broken(jnp.zeros(2))
def array_to_pair(c, x):
    """The body returns more than the carry as the carry."""
    return (c * x, x), None  # <- here


class Momentum(NamedTuple):
    """An optimizer's state."""

    m: Any
    count: Any


class Adam(NamedTuple):
    """Another optimizer's state."""

    m: Any
    count: Any


@broken(Momentum(jnp.zeros(2), jnp.int32(0)))
def optimizer_changes_class(c, x):
    """An optimizer's state comes back as another class."""
    return Adam(c.m * x, c.count + 1), None  # <- here


@broken(Momentum(jnp.zeros(2), jnp.int32(0)), advice="Momentum(m * x, count + 1)")
def namedtuple_to_tuple(c, x):
    """A named tuple comes back as a plain one."""
    m, count = c
    return (m * x, count + 1), None  # <- here


@broken(Momentum(jnp.zeros(2), jnp.int32(0)))
def namedtuple_field_drifts(c, x):
    """One field of a named tuple becomes a float."""
    return c._replace(count=c.count + 0.5), x  # <- here


@broken({"a": jnp.zeros(2), "b": jnp.zeros(2)})
def ordered_dict(c, x):
    """A dictionary of another class."""
    return OrderedDict(a=c["a"] * x, b=c["b"]), None  # <- here


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A model with a static field."""

    weights: Any
    mode: str = dataclasses.field(metadata={"static": True}, default="train")


@broken(Model(jnp.zeros(2)))
def static_field_changes(c, x):
    """A static field of a dataclass changes."""
    return dataclasses.replace(c, weights=c.weights * x, mode="eval"), None  # <- here


@broken(Model(jnp.zeros(2, jnp.float16)), jnp.ones(4, jnp.float32))
def dataclass_field_drifts(c, x):
    """A field of a dataclass becomes wider."""
    weights = c.weights * x  # <- here
    return Model(weights), None


@broken(jnp.zeros(2))
def nothing_returned(c, x):
    """The carry is forgotten."""
    c = c * x
    return None, c  # <- here


@broken({"params": {"w": jnp.ones(2)}, "step": jnp.int32(0)})
def a_nested_key_more(c, x):
    """A key more, further in."""
    grads = {**c["params"], "b": x}  # <- here
    return {"params": grads, "step": c["step"] + 1}, None


@broken({"m": jnp.zeros(2)})
def updated_in_place(c, x):
    """`update` adds a key."""
    new = dict(c)
    new.update(v=x)  # <- here
    return new, None


@broken({"m": jnp.zeros(2)})
def merged(c, x):
    """Two dictionaries merged."""
    return c | {"loss": x}, None  # <- here


@broken({"m": jnp.zeros(2), "v": jnp.zeros(2)}, advice=False)
def popped(c, x):
    """A key taken out of a copy that has the carry's name."""
    c = dict(c)
    c.pop("v")  # <- here
    return c, x


@broken([jnp.zeros(())], advice="jnp.roll(c, -1, 0).at[-1].set(x)")
def list_that_grows(c, x):
    """A list that is added to at each step."""
    return [*c, x], None  # <- here


@broken((jnp.zeros(2), jnp.zeros(2)))
def tuple_of_one(c, x):
    """Only the first of two comes back."""
    return (c[0] * x,), None  # <- here


@broken(jnp.zeros(2))
def wrapped_in_a_tuple(c, x):
    """A comma too many."""
    return (c * x,), None  # <- here


@broken((jnp.zeros(2),))
def unwrapped(c, x):
    """A comma too few."""
    (inner,) = c
    return inner * x, None  # <- here


@broken({"a": jnp.zeros(2)})
def dictionary_to_its_value(c, x):
    """The value in place of the dictionary."""
    return c["a"] * x, None  # <- here


@broken(None)
def from_nothing(c, x):
    """A carry that starts as None."""
    return x if c is None else c + x, None  # <- here


@broken([jnp.zeros(2)], advice=False)
def appended_in_place(c, x):
    """A list that is carried is appended to."""
    c.append(x)  # <- here
    return c, None


@broken((jnp.float32(0), (jnp.float32(0), jnp.zeros(2))))
def flattened_tuple(c, x):
    """A tuple inside a tuple comes back unpacked."""
    a, (b, v) = c
    return (a + x, b, v), None  # <- here


@broken((jnp.float32(0), jnp.zeros(2), jnp.int32(0)))
def grouped_tuple(c, x):
    """Two of three components come back as a pair."""
    a, v, n = c
    return (a + x, (v, n)), None  # <- here


@broken({"a": jnp.zeros(2)}, advice=False)
def default_set(c, x):
    """A key is set unless it is there: were it there from the start, it would not be set."""
    c.setdefault("b", x)  # <- here
    return c, None


@broken(Momentum(jnp.zeros(3), jnp.zeros(3)), advice=False)
def field_by_another_name(c, x):
    """Two of one type under other names: nothing tells which is which."""
    return Moments(c.m * x, c.count), None  # <- here


@broken(
    Momentum(jnp.zeros(3), jnp.zeros(3)),
    advice="type(c)(**Reversed(c.count, c.m * x)._asdict())",
)
def fields_in_another_order(c, x):
    """The same names in another order are matched by their names."""
    return Reversed(c.count, c.m * x), None  # <- here


class Moments(NamedTuple):
    """Fields of other names."""

    first: Any
    second: Any


class Reversed(NamedTuple):
    """The same fields as `Momentum`, in another order."""

    count: Any
    m: Any


@broken(jnp.zeros(3), advice="pull(out)[0]")
def gradients_of_one_argument(c, x):
    """A pullback returns a tuple."""
    out, pull = jax.vjp(jnp.sin, c)
    return pull(out), x  # <- here


@broken(jnp.float32(0), advice="c + x")
def carry_in_a_dictionary(c, x):
    """The carry is put beside a number that nobody carries."""
    return {"loss": c + x, "n": jnp.int32(1)}, None  # <- here
