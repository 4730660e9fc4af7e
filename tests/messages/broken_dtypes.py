"""Bodies whose carry becomes wider or narrower."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.messages.broken import broken


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


@broken(
    {"w": jnp.ones((2, 2), jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)},
    jnp.ones(3, jnp.float32),
)
def optimizer_step(c, x):
    """Half precision parameters and a learning rate in float32."""
    rate = jnp.float32(0.1) * x
    return jax.tree.map(lambda p: p - rate * p, c), None  # <- here


@broken(jnp.int32(1))
def function_of_an_integer(c, x):
    """exp of an integer is a float."""
    return jnp.exp(c), x  # <- here


@broken(jnp.int32(5))
def rounded_but_still_a_float(c, x):
    """floor gives a float that is whole."""
    half = c / 2  # <- here
    return jnp.floor(half), x


@broken(jnp.zeros(3, jnp.int32))
def not_a_number(c, x):
    """NaN in an array of integers."""
    return jnp.where(c > 1, c, jnp.nan), x  # <- here


@broken(jnp.int32(0))
def clipped_by_floats(c, x):
    """The limits are floats."""
    return jnp.clip(c, 0.0, 1.0), x  # <- here


@broken(lambda: jnp.float32(0), lambda: jnp.ones(3, jnp.float32), x64=True)
def python_float_type(c, x):
    """`float` is float64 under x64."""
    return (c + x).astype(float), None  # <- here


@broken(lambda: jnp.zeros(3, jnp.float32), lambda: jnp.ones(3, jnp.float32), x64=True)
def made_anew(c, x):
    """Under x64 `zeros` is float64 unless told otherwise."""
    fresh = jnp.zeros(3)  # <- here
    return fresh.at[0].set(x), None


@broken(lambda: jnp.zeros(3, jnp.int32), lambda: jnp.ones(3, jnp.int32), x64=True)
def counted_up(c, x):
    """Under x64 `arange` is int64."""
    return c + jnp.arange(3) * x, None  # <- here


@broken(jnp.zeros(3, jnp.int32))
def sorted_by_a_float_key(c, x):
    """A sum of a float and an index."""
    order = jnp.argsort(c) + x  # <- here
    return order, None


@broken(jnp.int8(0), jnp.arange(3, dtype=jnp.int32))
def two_integers(c, x):
    """The wider integer wins."""
    return jnp.maximum(c, x), None  # <- here


@broken((jnp.float16(0), jnp.float32(0)))
def components_feed_each_other(c, x):
    """A narrow component takes in a wide one."""
    a, b = c
    return (a + b, b + x), None  # <- here


@broken(jnp.int32(0))
def two_roots(c, x):
    """Two expressions make a float of it."""
    a = c * 0.5  # <- here
    b = c / 3
    return a + b, x


@broken(jnp.float32(0), jnp.ones((3, 2)))
def any_in_a_float(c, x):
    """A flag replaces a number."""
    return jnp.any(x > c), None  # <- here


@broken(lambda: jnp.float32(0), lambda: jnp.ones(3, jnp.float32), x64=True)
def numpy_function(c, x):
    """NumPy's constants as arrays are float64."""
    scale = np.sqrt(np.array(2.0))
    return c + x * scale, None  # <- here


@broken({"s": {"t": jnp.uint32(1)}}, jnp.arange(3, dtype=jnp.uint32))
def seed_arithmetic(c, x):
    """A shift by a signed array."""
    t = c["s"]["t"] ^ (jnp.int32(1) << x.astype(jnp.int32))  # <- here
    return {"s": {"t": t}}, None


@broken({"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones((), jnp.float16)}, jnp.ones(3, jnp.float32))
def leaves_of_several_dtypes(c, x):
    """One expression for leaves of two dtypes."""
    out = {}
    for name, value in c.items():
        out[name] = value - x * value  # <- here
    return out, None
