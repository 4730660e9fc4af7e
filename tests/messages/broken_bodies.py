"""Loop bodies that break the carry contract, as users write them.

The line that changes the type ends in `# <- here`. A body for which nobody can say what was meant
has `advice=False`: its error names the line and gives no advice.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """A body `(carry, x) -> (carry, y)`, what it is run on, and whether there is right advice."""

    body: Callable[..., Any]
    init: Any
    xs: Any
    x64: bool
    advice: bool


CASES: dict[str, Case] = {}
XS = jnp.arange(1.0, 5.0)


def broken(init: Any, xs: Any = XS, *, x64: bool = False, advice: bool = True) -> Callable:
    """Adds a body to the table. `init` and `xs` may be functions, which are called under x64."""

    def add(body: Callable) -> Callable:
        CASES[body.__name__] = Case(body, init, xs, x64, advice)
        return body

    return add


# ---------------------------------------------------------------- wider or narrower dtypes


@broken(lambda: jnp.int32(0), lambda: jnp.ones((3, 2), jnp.int32), x64=True)
def sum_of_integers(c, x):
    """Under x64 a sum of int32 is int64."""
    total = jnp.sum(x)  # <- here
    return c + total, None


@broken(lambda: jnp.int32(0), lambda: jnp.ones((3, 2), bool), x64=True)
def count_of_booleans(c, x):
    """Under x64 a count is int64."""
    return c + x.sum(), None  # <- here


@broken(lambda: jnp.int32(0), lambda: jnp.ones((3, 2), jnp.int32), x64=True)
def count_of_positives(c, x):
    """Under x64 a count is int64 that has no dtype to give."""
    n = jnp.count_nonzero(x > c)  # <- here
    return c + n, None


@broken(lambda: jnp.int32(1), lambda: jnp.ones((3, 2), jnp.int32), x64=True)
def product_of_integers(c, x):
    """Under x64 a product of int32 is int64."""
    factors = x * c
    return jnp.prod(factors), None  # <- here


@broken(lambda: jnp.int32(0), lambda: jnp.ones((3, 2)), x64=True)
def index_of_the_largest(c, x):
    """Under x64 argmax gives int64."""
    best = jnp.argmax(x)  # <- here
    return jnp.maximum(c, best), None


@broken(jnp.float32(0), jnp.ones((3, 2)))
def index_in_a_float(c, x):
    """An index replaces a float."""
    return jnp.argmax(x + c), None  # <- here


@broken(lambda: jnp.float32(0), lambda: jnp.ones((3, 2), jnp.float32), x64=True)
def numpy_scalar(c, x):
    """A NumPy scalar is strongly typed float64."""
    return c * np.float64(0.5) + x.sum(), None  # <- here


@broken(lambda: jnp.zeros(2, jnp.float32), lambda: jnp.ones((3, 2), jnp.float32), x64=True)
def numpy_array(c, x):
    """A NumPy array of floats is float64."""
    weights = np.array([0.25, 0.75])
    return c + weights * x, None  # <- here


@broken(lambda: jnp.float32(0), lambda: jnp.ones(3, jnp.float32), x64=True)
def random_numbers(c, x):
    """Under x64 random numbers are float64."""
    noise = jax.random.normal(jax.random.key(0))  # <- here
    return c + noise * x, None


@broken(jnp.int32(0))
def float_times_integer(c, x):
    """A weak float makes a float of an integer."""
    return c * 0.5, x  # <- here


@broken(jnp.int32(8))
def integer_division(c, x):
    """A true division makes a float of an integer."""
    return c / 2, x  # <- here


@broken(jnp.int32(3))
def where_with_a_float(c, x):
    """A literal in `where` decides the type."""
    return jnp.where(c > 0, c, 0.5), x  # <- here


@broken(jnp.int32(2))
def power(c, x):
    """A fractional power of an integer is a float."""
    root = c**0.5  # <- here
    return root, x


@broken(jnp.zeros(3, jnp.int32))
def mean_of_integers(c, x):
    """A mean of integers is a float."""
    return c + jnp.mean(c), x  # <- here


@broken(jnp.int32(0))
def mixed_with_the_row(c, x):
    """The row is a float, the carry an integer."""
    return c + x, None  # <- here


@broken(jnp.float32(1))
def comparison(c, x):
    """A comparison is a boolean."""
    return c > x, None  # <- here


@broken(jnp.bool_(False))
def sum_of_flags(c, x):
    """A boolean plus an integer is an integer."""
    return c + 1, x  # <- here


@broken(jnp.bfloat16(1), jnp.ones(3, jnp.float32))
def half_precision_promoted(c, x):
    """float32 data widen a bfloat16 state."""
    scaled = c * x  # <- here
    return scaled, None


@broken(jnp.ones((2, 2), jnp.bfloat16), jnp.ones((3, 2, 2), jnp.float32))
def matrix_product(c, x):
    """A matrix product of bfloat16 and float32 is float32."""
    return c @ x, None  # <- here


@broken(jnp.ones((2, 2), jnp.bfloat16), jnp.ones((3, 2, 2), jnp.bfloat16))
def accumulated_in_float32(c, x):
    """The product's accumulation type stays."""
    return jnp.dot(c, x, preferred_element_type=jnp.float32), None  # <- here


@broken(jnp.ones(2, jnp.float16))
def upcast_and_forgotten(c, x):
    """A computation in float32 that is not cast back."""
    wide = c.astype(jnp.float32)  # <- here
    normed = wide / jnp.linalg.norm(wide)
    return normed, x


@broken(jnp.zeros(3, jnp.int32))
def one_hot(c, x):
    """one_hot gives floats."""
    return c + jax.nn.one_hot(1, 3), x  # <- here


@broken(jnp.float32(0))
def absolute_of_complex(c, x):
    """A complex factor makes the carry complex."""
    turned = c * jnp.exp(1j * x)  # <- here
    return turned, None


@broken(jnp.uint8(0))
def unsigned_and_signed(c, x):
    """int32 is above uint8."""
    return c + x.astype(jnp.int32), None  # <- here


@broken({"n": jnp.int32(0), "mean": jnp.float32(0)})
def running_mean(c, x):
    """A counter that is made a float."""
    n = c["n"] + 1.0  # <- here
    mean = c["mean"] + (x - c["mean"]) / n
    return {"n": n, "mean": mean}, None


@broken(jnp.bfloat16(0), jnp.ones(3, jnp.float32))
def branches_differ_in_weak_type(c, x):
    """One branch of a cond returns a weak float, and takes the type of the other."""
    step = jax.lax.cond(x > 2, lambda: 0.0, lambda: x)
    return c + step, None  # <- here


@broken(jnp.int32(0))
def inside_a_jitted_function(c, x):
    """The change is in a helper of the user's own."""
    return _jitted_half(c), x


@jax.jit
def _jitted_half(n):
    return n * 0.5  # <- here (inside_a_jitted_function)


@broken(jnp.int32(0))
def inside_an_inner_scan(c, x):
    """The change is in the body of a loop inside."""
    import loops

    def inner(total, k):
        return total + k / 2, None  # <- here

    total, _ = loops.scan(inner, 0, jnp.arange(2))
    return c + total, x


@broken(jnp.int32(0))
def inside_a_while_loop(c, x):
    """The change is what an inner while loop starts from."""
    start = c * 1.0  # <- here
    return jax.lax.while_loop(lambda v: v < 3, lambda v: v + 1, start), x


@broken(jnp.int32(0))
def inside_a_custom_rule(c, x):
    """An activation with a rule of its own gives a float."""
    return jax.nn.relu(_squashed(c)), x


@jax.custom_jvp
def _squashed(n):
    return n / 3  # <- here (inside_a_custom_rule)


_squashed.defjvp(lambda primals, tangents: (_squashed(*primals), tangents[0]))


# ---------------------------------------------------------------- shapes


@broken(jnp.zeros(1))
def grown(c, x):
    """An array that gets longer at each step."""
    return jnp.concatenate([c, x[None]]), None  # <- here


@broken(jnp.zeros((1, 2)), jnp.ones((3, 2)))
def grown_rows(c, x):
    """A matrix that gets a row at each step."""
    longer = jnp.vstack([c, x])  # <- here
    return longer, None


@broken(jnp.zeros(2))
def appended(c, x):
    """`append`, as in a list."""
    return jnp.append(c, x), None  # <- here


@broken(jnp.ones((3, 1)))
def forgotten_keepdims(c, x):
    """A mean that drops the axis it is taken over."""
    centre = c.mean(axis=1)  # <- here
    return centre, x


@broken(jnp.ones((3, 1)), jnp.ones((4, 3, 2)))
def broadcast_after_a_reduction(c, x):
    """A reduction without keepdims that broadcasts to a square."""
    centre = x.mean(axis=1)  # <- here
    return c + centre, None


@broken(jnp.ones((1, 3)))
def squeezed(c, x):
    """An axis of one is dropped."""
    return jnp.squeeze(c) * x, None  # <- here


@broken(jnp.ones((1, 3)))
def indexed(c, x):
    """A row is taken in place of the matrix of one row."""
    row = c[0]  # <- here
    return row * x, None


@broken(jnp.ones(3))
def new_axis(c, x):
    """An axis more."""
    return c[None] * x, None  # <- here


@broken(jnp.ones((2, 3)))
def transposed(c, x):
    """Rows become columns."""
    return c.T * x, None  # <- here


@broken(jnp.ones((2, 3, 4)))
def swapped_axes(c, x):
    """Two of three axes change places."""
    return jnp.swapaxes(c, 1, 2), x  # <- here


@broken(jnp.ones((2, 3)))
def flattened(c, x):
    """A matrix is laid out flat."""
    flat = c.reshape(-1)  # <- here
    return flat * x, None


@broken(jnp.float32(0), jnp.ones((4, 3)))
def scalar_init_for_a_vector(c, x):
    """A scalar initial value meets vectors."""
    return c + x, None  # <- here


@broken(0.0, jnp.ones((4, 3)))
def literal_init_for_a_vector(c, x):
    """The same with a Python scalar."""
    return c + x, None  # <- here


@broken(jnp.int32(0), jnp.ones((4, 3)))
def scalar_of_another_type(c, x):
    """Shape and dtype differ."""
    return c + x, None  # <- here


@broken(jnp.zeros(()), advice=False)
def stacked(c, x):
    """Each step doubles the array: nobody knows what was meant."""
    return jnp.stack([c, c + x]), None  # <- here


@broken(jnp.zeros(3), advice=False)
def shrunk(c, x):
    """Each step drops an element."""
    return c[1:] * x, None  # <- here


@broken(jax.random.key(0))
def key_split_and_not_unpacked(c, x):
    """Both halves of a split key are returned."""
    return jax.random.split(c), x  # <- here


@broken((jax.random.key(0), jnp.float32(0)))
def key_of_the_wrong_kind(c, x):
    """A raw key in place of a typed one."""
    key, total = c
    raw = jax.random.key_data(key)  # <- here
    return (raw, total + x), None


@broken((jnp.zeros(2), jnp.zeros(3)), advice=False)
def swapped_components(c, x):
    """Two components change places."""
    return (c[1], c[0]), x  # <- here


# ---------------------------------------------------------------- structures


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


@broken({"h": None, "x": jnp.zeros(2)})
def none_to_array(c, x):
    """A state that is empty at first."""
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


@broken(Momentum(jnp.zeros(2), jnp.int32(0)))
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
