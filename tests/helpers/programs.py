"""A catalogue of small loop programs, each written against whatever loops it is given.

A program is a function of an implementation `loops` (ours, JAX's or the plain Python one) and of a
few float arrays. Every argument is differentiable; integers, booleans and keys are made inside. So
one table of programs and one table of transformations cover their product.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers.implementations import Implementation


@dataclasses.dataclass(frozen=True)
class Program:
    """A loop program and what may be done with it."""

    name: str
    fun: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    # Whether reverse mode goes through: a loop whose trip count is unknown when traced has none.
    reverse_mode: bool
    # Whether a Python loop needs the value of an array to know when to stop, and so can run only
    # where nothing is abstract. A while loop in another loop can't run even there, because the body
    # of the outer one is traced for its types.
    concrete_in_python: bool
    python_can_run: bool
    # Whether the whole table of transformations runs on it, or only the first few.
    core: bool
    rtol: float

    def bind(self, loops: Implementation) -> Callable[..., Any]:
        """The program over one implementation, a function of arrays only."""

        def run(*args: Any) -> Any:
            return self.fun(loops, *args)

        run.__name__ = self.name
        return run

    def arguments(self, dtype: Any = np.float32) -> tuple[jax.Array, ...]:
        """Arguments that keep every program smooth: between 0.3 and 1.3, no two alike."""
        return tuple(_values(shape, start, dtype) for start, shape in enumerate(self.shapes))


def _values(shape: tuple[int, ...], start: int, dtype: Any) -> jax.Array:
    size = int(np.prod(shape, dtype=int))
    flat = 0.3 + np.mod(0.37 * start + 0.618 * np.arange(1, size + 1), 1.0)
    return jnp.asarray(flat.reshape(shape), dtype)


PROGRAMS: list[Program] = []


def program(
    *shapes: tuple[int, ...],
    reverse_mode: bool = True,
    concrete_in_python: bool = False,
    python_can_run: bool = True,
    core: bool = False,
    rtol: float = 1e-5,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the decorated function to the catalogue, with the shapes of its array arguments."""

    def add(fun: Callable[..., Any]) -> Callable[..., Any]:
        entry = Program(
            fun.__name__, fun, shapes, reverse_mode, concrete_in_python, python_can_run, core, rtol
        )
        PROGRAMS.append(entry)
        return fun

    return add


class Moments(NamedTuple):
    """A carry that is a named tuple."""

    mean: Any
    square: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Particle:
    """A carry that is a registered dataclass, with a static field."""

    position: Any
    velocity: Any
    label: str = dataclasses.field(metadata={"static": True}, default="p")


# --- scan -------------------------------------------------------------------------------------


@program((), (4,), core=True)
def scan_recurrence(loops: Implementation, init: Any, xs: Any) -> Any:
    """A scalar recurrence that emits the old carry."""
    return loops.scan(lambda c, x: (0.5 * c * x + x, c), init, xs)


@program((2, 2), (2,), (3, 2), core=True)
def scan_rnn(loops: Implementation, weights: Any, hidden: Any, xs: Any) -> Any:
    """A recurrent network whose weights the body closes over."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(weights @ h + x)
        return h, (h.sum(), x)

    return loops.scan(step, hidden, xs)


@program((3,), core=True)
def scan_weak_init(loops: Implementation, xs: Any) -> Any:
    """A Python integer as init, promoted by the body."""
    return loops.scan(lambda c, x: (c + x, (c, 1.0)), 0, xs)


@program((2,), (3, 2), core=True)
def scan_mixed_leaves(loops: Implementation, init: Any, xs: Any) -> Any:
    """Integer, boolean and None leaves in the carry beside a float one."""

    def step(carry: Any, x: Any) -> Any:
        value = jnp.where(carry["flip"], carry["value"] * x, carry["value"] + x)
        new = {"count": carry["count"] + 1, "flip": ~carry["flip"], "none": None, "value": value}
        return new, {"count": carry["count"], "flip": new["flip"], "value": (value, None)}

    init = {"count": jnp.int32(0), "flip": jnp.bool_(False), "none": None, "value": init}
    return loops.scan(step, init, xs)


@program((), (5,), core=True)
def scan_reverse_unrolled(loops: Implementation, init: Any, xs: Any) -> Any:
    """Backwards, two steps a time, with one step left over."""

    def step(c: Any, x: Any) -> Any:
        return jnp.sin(c) * x, c + x

    return loops.scan(step, init, xs, reverse=True, unroll=2)


@program((2,), (2,))
def scan_length_only(loops: Implementation, init: Any, rate: Any) -> Any:
    """No xs: the same map again and again."""
    return loops.scan(lambda c, _: (c * rate + 0.1, jnp.cos(c)), init, None, length=3)


@program((2,), (), (3,), core=True)
def scan_passes_through(loops: Implementation, init: Any, fixed: Any, xs: Any) -> Any:
    """A carry that is never changed, one that is never read, and an x that goes straight to ys."""

    def step(carry: Any, x: Any) -> Any:
        value, constant, _ = carry
        return (value * constant, constant, value), (x, constant, x * x)

    return loops.scan(step, (init, fixed, init), xs)


@program((2,), (0, 2))
def scan_zero_length(loops: Implementation, init: Any, xs: Any) -> Any:
    """No step at all."""
    return loops.scan(lambda c, x: (c * x, {"y": c + x}), init, xs)


@program((2,), (1, 2))
def scan_length_one(loops: Implementation, init: Any, xs: Any) -> Any:
    """Exactly one step."""
    return loops.scan(lambda c, x: (c * x, jnp.exp(c)), init, xs)


@program((3,))
def scan_empty_carry(loops: Implementation, xs: Any) -> Any:
    """An empty carry, a map in other words."""
    return loops.scan(lambda c, x: (c, jnp.sin(x) * x), (), xs)


@program((), (2, 3))
def scan_list_xs(loops: Implementation, init: Any, xs: Any) -> Any:
    """A list of xs, a list as carry, and no ys."""
    first, second = xs
    return loops.scan(lambda c, x: ([c[0] * x[0] + x[1]], None), [init], [first, second])


@program((), (), (3,))
def scan_named_tuple(loops: Implementation, mean: Any, square: Any, xs: Any) -> Any:
    """A named tuple as carry and as ys."""

    def step(carry: Moments, x: Any) -> Any:
        new = Moments(0.9 * carry.mean + 0.1 * x, 0.9 * carry.square + 0.1 * x * carry.mean)
        return new, Moments(new.square, carry.mean)

    return loops.scan(step, Moments(mean, square), xs)


@program((2,), (2,))
def scan_dataclass(loops: Implementation, position: Any, velocity: Any) -> Any:
    """A registered dataclass as carry and as ys."""

    def step(p: Particle, _: Any) -> Any:
        velocity = p.velocity - 0.1 * jnp.sin(p.position)
        return Particle(p.position + 0.1 * velocity, velocity, p.label), p

    return loops.scan(step, Particle(position, velocity), None, length=3)


@program((), (3,))
def scan_keys(loops: Implementation, scale: Any, xs: Any) -> Any:
    """Typed PRNG keys in the carry, in xs and in ys."""
    keys = jax.random.split(jax.random.key(1), 3)

    def step(carry: Any, inputs: Any) -> Any:
        (key, total), (x, other) = carry, inputs
        key, sub = jax.random.split(key)
        noise = jax.random.uniform(sub, (), x.dtype) + jax.random.uniform(other, (), x.dtype)
        return (key, total * scale + noise * x), (sub, noise)

    return loops.scan(step, (jax.random.key(0), scale), (xs, keys))


@program((2,), (3, 2))
def scan_complex(loops: Implementation, angle: Any, xs: Any) -> Any:
    """A complex carry."""

    def step(z: Any, x: Any) -> Any:
        return z * jnp.exp(jax.lax.complex(0.1 * x, x)), z.real * z.imag

    return loops.scan(step, jax.lax.complex(angle, 0.5 * angle), xs)


@program((2,), (3, 2), rtol=3e-2)
def scan_bfloat16(loops: Implementation, init: Any, xs: Any) -> Any:
    """Everything in bfloat16."""
    init, xs = init.astype(jnp.bfloat16), xs.astype(jnp.bfloat16)
    return loops.scan(lambda c, x: (c * x + 0.5, c - x), init, xs)


@program((), (3,), core=True)
def scan_inner_functions(loops: Implementation, init: Any, xs: Any) -> Any:
    """A body with jit, cond and a checkpoint inside."""

    def step(c: Any, x: Any) -> Any:
        c = jax.jit(jnp.sin)(c) + jax.checkpoint(lambda v: jnp.cos(v) * v)(x)
        c = jax.lax.cond(c > 0.5, lambda v: v * v, lambda v: 0.5 * v, c)
        return c, c * x

    return loops.scan(step, init, xs)


@jax.custom_jvp
def doubled(x: Any) -> Any:
    """Twice its argument, with a derivative of three to tell the rule from the truth."""
    return 2.0 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 3.0 * tangents[0]))


@jax.custom_vjp
def tripled(x: Any) -> Any:
    """Three times its argument, with a derivative of five to tell the rule from the truth."""
    return 3.0 * x


tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (5.0 * g,))


@program((), (3,))
def scan_custom_jvp(loops: Implementation, init: Any, xs: Any) -> Any:
    """A body with a function that has its own forward derivative."""
    return loops.scan(lambda c, x: (doubled(c) * 0.3 + x, doubled(c * x)), init, xs)


# --- fori_loop --------------------------------------------------------------------------------


@program((2,), (4, 2), core=True)
def fori_static(loops: Implementation, init: Any, table: Any) -> Any:
    """Static bounds, a table read at the index."""

    def body(i: Any, c: Any) -> Any:
        return jnp.tanh(c * table[i]) + table[i]

    return loops.fori_loop(1, 4, body, init)


@program((4,))
def fori_writes_rows(loops: Implementation, values: Any) -> Any:
    """A buffer written at the index and read one before it."""

    def body(i: Any, buffer: Any) -> Any:
        return buffer.at[i].set(0.5 * buffer[i - 1] + jnp.sin(values[i]))

    return loops.fori_loop(1, 4, body, values)


@program((2,))
def fori_counts(loops: Implementation, init: Any) -> Any:
    """The index itself accumulated in an integer, unrolled fully."""

    def body(i: Any, carry: Any) -> Any:
        total, value = carry
        return total + i, value * 1.1

    return loops.fori_loop(2, 5, body, (0, init), unroll=True)


@program((2,), reverse_mode=False, concrete_in_python=True, core=True)
def fori_traced(loops: Implementation, init: Any) -> Any:
    """A bound computed from the values, so traced wherever they are."""
    trips = jax.lax.stop_gradient(init).sum().astype(jnp.int32) + 2
    start = jnp.zeros_like(trips)

    def body(i: Any, c: Any) -> Any:
        return jnp.sin(c) + 0.1 * i.astype(c.dtype)

    return trips, loops.fori_loop(start, trips, body, init)


# --- while_loop -------------------------------------------------------------------------------


@program((), (2,), reverse_mode=False, concrete_in_python=True, core=True)
def while_until_large(loops: Implementation, rate: Any, start: Any) -> Any:
    """A condition on the carry, a body that closes over an argument."""

    def body(c: Any) -> Any:
        return c[0] + 1, c[1] * (1.0 + rate)

    return loops.while_loop(lambda c: c[1].sum() < 6.0, body, (0, start))


@program((), (), reverse_mode=False, concrete_in_python=True, core=True)
def while_threshold(loops: Implementation, limit: Any, start: Any) -> Any:
    """A condition that closes over an argument; the body passes one carry through."""

    def cond(c: Any) -> Any:
        return c["value"] < 2.0 + limit

    def body(c: Any) -> Any:
        return {"fixed": c["fixed"], "value": c["value"] + c["fixed"]}

    return loops.while_loop(cond, body, {"fixed": start, "value": jnp.zeros_like(start)})


@program((2,), reverse_mode=False, concrete_in_python=True, core=True)
def while_counts_to_three(loops: Implementation, x: Any) -> Any:
    """A condition on a counter only: the same for every lane of a batch."""

    def body(c: Any) -> Any:
        return c[0] + 1, jnp.sin(c[1]) + c[1], None, ~c[3]

    init = (0, x, None, jnp.bool_(True))
    return loops.while_loop(lambda c: c[0] < 3, body, init)


@program((2,), reverse_mode=False, concrete_in_python=True)
def while_never(loops: Implementation, x: Any) -> Any:
    """A condition that is false at once."""
    return loops.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1] * c[1]), (0, x))


@program((), reverse_mode=False, concrete_in_python=True)
def while_weak_init(loops: Implementation, x: Any) -> Any:
    """Weakly typed inits: one stays weak, one is promoted."""
    init = (0.0, 1)
    return loops.while_loop(lambda c: c[0] < 3.0, lambda c: (c[0] + 1.0, c[1] * x), init)


@program((), reverse_mode=False, concrete_in_python=True)
def while_keys(loops: Implementation, scale: Any) -> Any:
    """A typed PRNG key in the carry."""

    def body(c: Any) -> Any:
        key, total = c
        key, sub = jax.random.split(key)
        return key, total + jax.random.uniform(sub, (), total.dtype) * scale

    return loops.while_loop(lambda c: c[1] < 2.0, body, (jax.random.key(0), scale))


# --- map --------------------------------------------------------------------------------------


@program((), (3, 2), core=True)
def map_tree(loops: Implementation, scale: Any, xs: Any) -> Any:
    """A dictionary in, a tuple out, an argument closed over."""

    def fun(x: Any) -> Any:
        return x["a"] * scale, (jnp.sin(x["b"]).sum(), None)

    return loops.map(fun, {"a": xs, "b": xs * xs})


@program((5,))
def map_in_batches(loops: Implementation, xs: Any) -> Any:
    """Two elements a time, and one left over."""
    return loops.map(lambda x: (jnp.cos(x) * x, x), xs, batch_size=2)


# --- one in another ---------------------------------------------------------------------------


@program((2,), (3, 2), core=True)
def nested_scan_scan(loops: Implementation, init: Any, xs: Any) -> Any:
    """A scan whose body scans over the carry."""

    def outer(c: Any, x: Any) -> Any:
        total, ys = loops.scan(lambda t, v: (t * 0.5 + v * x[0], t), x[1], c)
        return c * 0.5 + ys, total

    return loops.scan(outer, init, xs)


@program((2,), (2, 2))
def nested_scan_fori_scan(loops: Implementation, init: Any, xs: Any) -> Any:
    """Three deep: scan, fori_loop, scan."""

    def outer(c: Any, x: Any) -> Any:
        def middle(i: Any, m: Any) -> Any:
            total, ys = loops.scan(lambda t, v: (t + jnp.sin(v), t * x[0]), m[0], m)
            return ys * 0.3 + total * x[i]

        c = loops.fori_loop(0, 2, middle, c)
        return c, c.sum()

    return loops.scan(outer, init, xs)


@program((2,), (2,))
def nested_map_scan_fori(loops: Implementation, init: Any, xs: Any) -> Any:
    """Three deep: map, scan, fori_loop."""

    def each(x: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            c = loops.fori_loop(0, 2, lambda i, u: jnp.sin(u) + x, c)
            return c, c * v

        return loops.scan(step, x, init)

    return loops.map(each, xs)


@program((), (3,), reverse_mode=False, python_can_run=False, core=True)
def nested_while_in_scan(loops: Implementation, init: Any, xs: Any) -> Any:
    """A scan whose body runs until its carry is large."""

    def step(c: Any, x: Any) -> Any:
        n, c = loops.while_loop(lambda s: s[1] < 2.0, lambda s: (s[0] + 1, s[1] + x), (0, c))
        return 0.5 * c, (n, c)

    return loops.scan(step, init, xs)


@program((), (2,), reverse_mode=False, python_can_run=False)
def nested_scan_in_while_in_while(loops: Implementation, start: Any, xs: Any) -> Any:
    """Three deep: while_loop, while_loop, scan."""

    def inner(s: Any) -> Any:
        total, _ = loops.scan(lambda t, x: (t + 0.5 * x, None), s, xs)
        return total

    def outer(s: Any) -> Any:
        k, v = s
        v = loops.while_loop(lambda u: u < 1.5, inner, v)
        return k + 1, v * 0.6

    return loops.while_loop(lambda s: s[0] < 2, outer, (0, start))


@program((2,), reverse_mode=False, python_can_run=False)
def nested_fori_while_map(loops: Implementation, x: Any) -> Any:
    """Three deep: fori_loop, while_loop, map."""

    def body(i: Any, c: Any) -> Any:
        grow = lambda v: loops.map(lambda row: row * 1.5 + 0.1, v)
        return 0.3 * loops.while_loop(lambda v: v.sum() < 4.0, grow, c)

    return loops.fori_loop(0, 2, body, x)


CORE = [entry for entry in PROGRAMS if entry.core]
REVERSE = [entry for entry in PROGRAMS if entry.reverse_mode]
