"""Bodies of those who simulate and estimate: filters, samplers, equations, spectra, numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.messages.broken import broken


@broken((jnp.zeros(2), jnp.eye(2)), jnp.ones((5, 1)))
def mean_that_becomes_a_column(state, y):
    """The mean of a Kalman filter is made a column and never a vector again."""
    m, p = state
    h = jnp.ones((1, 2))
    k = p @ h.T / (h @ p @ h.T + 0.1)
    column = m[:, None]  # <- here
    return ((column + k @ (y[:, None] - h @ column)), p - k @ h @ p), None


@broken((jnp.zeros((2, 1)), jnp.eye(2)), jnp.ones(5), advice=False)
def gain_that_broadcasts(state, y):
    """A column plus a row: no matrix of means was meant."""
    m, p = state
    h = jnp.array([1.0, 0.0])
    k = p @ h / (h @ p @ h + 0.1)
    m = m + k * (y - h @ m)  # <- here
    return (m, p), None


@broken((jnp.zeros(2), jnp.float32(0)), jnp.ones(5), advice=False)
def log_likelihood_of_each(state, y):
    """Nobody summed the squares, and a wider start would hide it."""
    m, total = state
    r = y - m  # <- here
    return (m + 0.1 * r, total - 0.5 * r**2), None


@broken((jax.random.key(0), jnp.zeros(3)), advice="keys[0]")
def keys_that_are_all_carried(state, x):
    """A split key has a name, one of its halves is used, and both are carried."""
    key, v = state
    keys = jax.random.split(key)  # <- here
    return (keys, v + x * jax.random.normal(keys[1], (3,))), v


@broken((jax.random.PRNGKey(0), jnp.zeros(3)), advice="keys[1]")
def raw_keys_that_are_all_carried(state, x):
    """The same with a raw key, of which the first half is used."""
    key, v = state
    keys = jax.random.split(key, 2)  # <- here
    return (keys, v + x * jax.random.normal(keys[0], (3,))), v


@broken((jax.random.key(0), jnp.zeros(3)), advice=False)
def keys_of_which_none_is_left(state, x):
    """Both halves are used: to carry one of them would draw the same numbers again."""
    key, v = state
    keys = jax.random.split(key)  # <- here
    noise = jax.random.normal(keys[0], (3,)) - jax.random.normal(keys[1], (3,))
    return (keys, v + x * noise), v


@broken((jax.random.PRNGKey(0), jnp.float32(0)))
def raw_key_that_becomes_typed(state, x):
    """A raw key is wrapped on the way."""
    key, v = state
    key = jax.random.wrap_key_data(key)  # <- here
    return (jax.random.fold_in(key, 1), v + x), None


@broken((jnp.float32(0), jnp.int32(0)), advice="jnp.asarray(init[1], jnp.float32)")
def acceptances_in_floats(state, x):
    """A count of what was accepted adds 1.0 or 0.0."""
    position, accepted = state
    is_better = x > position
    more = jnp.where(is_better, 1.0, 0.0)
    return (jnp.where(is_better, x, position), accepted + more), position  # <- here


@broken((jnp.float32(0), jnp.float32(0)))
def acceptance_as_a_flag(state, x):
    """A flag where a number was."""
    position, _ = state
    is_better = x > position  # <- here
    return (jnp.where(is_better, x, position), is_better), position


@broken((jnp.float32(0), jnp.zeros(2)), advice=False)
def time_that_is_a_vector(state, dt):
    """The clock gets the shape of what it times."""
    t, y = state
    dts = dt * jnp.ones_like(y)
    return (t + jnp.where(y > 0, dts, dts * y), y), None  # <- here


@broken(
    lambda: (jnp.float32(0), jnp.zeros(2, jnp.float32)), lambda: jnp.ones(3, jnp.float32), x64=True
)
def tableau_in_numpy(state, dt):
    """Under x64 the coefficients of a method are float64."""
    t, y = state
    weights = np.array([0.5, 0.5])
    slope = weights @ jnp.stack([-y, -y + dt])
    return (t + dt, y + dt * slope), None  # <- here


@broken((jnp.int32(0), jnp.zeros(2)), advice="jnp.asarray(init[0], jnp.float32)")
def time_that_starts_as_an_integer(state, dt):
    """A clock that starts as an integer."""
    t, y = state
    return (t + 0.1, y - 0.1 * y * dt), y  # <- here


@broken({"pos": jnp.zeros((4, 3)), "vel": jnp.zeros((4, 3))}, jnp.ones(3), advice=False)
def mean_velocity(s, dt):
    """One velocity takes the place of each particle's."""
    vel = s["vel"] - dt * s["pos"]
    mean = vel.mean(axis=0)  # <- here
    return {"pos": s["pos"] + dt * vel, "vel": mean}, None


@broken({"pos": jnp.zeros((4, 3)), "vel": jnp.zeros((4, 3))}, jnp.ones(3), advice=False)
def forces_that_are_not_summed(s, dt):
    """The forces between each two particles are not added up."""
    distance = s["pos"][:, None] - s["pos"][None]
    force = -distance / (1 + (distance**2).sum(-1, keepdims=True))
    return {"pos": s["pos"], "vel": s["vel"] + dt * force}, None  # <- here


@broken({"pos": jnp.zeros((4, 3)), "energy": jnp.float32(0)}, jnp.ones(3), advice=False)
def energy_of_each_particle(s, dt):
    """An energy for each particle where one number was."""
    pos = s["pos"] * dt
    energy = (pos**2).sum(axis=-1)  # <- here
    return {"pos": pos, "energy": energy}, None


@broken(
    {"pos": jnp.zeros(3), "hits": jnp.int32(0)},
    jnp.ones(3),
    advice="{'pos': pos, 'hits': s['hits']}",
)
def another_name(s, dt):
    """A component comes back under another name."""
    pos = s["pos"] + dt
    return {"position": pos, "hits": s["hits"]}, None  # <- here


@broken(jnp.ones(4), advice="jnp.asarray(init, jnp.complex64)")
def there_and_back_in_fourier_space(u, dt):
    """What comes back from an fft is complex."""
    spectrum = jnp.fft.fft(u) * dt  # <- here
    return jnp.fft.ifft(spectrum * 1j), None


@broken(jnp.ones(4), advice=False)
def half_a_spectrum(u, dt):
    """A real transform has another length, and is complex."""
    spectrum = jnp.fft.rfft(u)  # <- here
    return spectrum * dt, None


@broken(jnp.ones(4, jnp.complex64))
def magnitude(u, dt):
    """A complex field becomes its magnitude."""
    size = jnp.abs(u)  # <- here
    return size * dt, None


@broken(jnp.int32(0), jnp.arange(12).reshape(4, 3), advice="jnp.asarray(init, jnp.float32)")
def mean_of_a_row(c, x):
    """A mean of integers is a float."""
    return c + x.mean(), None  # <- here


@broken(lambda: jnp.zeros(3, jnp.int32), lambda: jnp.ones((4, 3), jnp.float32), x64=True)
def order_of_floats(c, x):
    """Under x64 argsort gives int64."""
    return jnp.minimum(c, jnp.argsort(x)), None  # <- here


@broken(lambda: jnp.zeros((3,), jnp.int32), lambda: jnp.ones((4, 3), jnp.int32), x64=True)
def histogram(c, x):
    """Under x64 counts are int64."""
    counts = jnp.bincount(x, length=3)  # <- here
    return c + counts, None


@broken(
    lambda: jnp.int32(0),
    lambda: jnp.ones((4, 3), jnp.float32),
    x64=True,
    advice="jnp.searchsorted(x, 0.5).astype(jnp.int32)",
)
def python_int_type(c, x):
    """Under x64 `int` is int64, which nobody asked for."""
    position = jnp.searchsorted(x, 0.5).astype(int)  # <- here
    return c + position, None


@broken(lambda: jnp.int32(0), lambda: jnp.ones((4, 3), jnp.float32), x64=True)
def size_as_a_numpy_integer(c, x):
    """A NumPy integer is strongly typed int64."""
    return c + np.int64(x.shape[0]), None  # <- here


@broken(lambda: jnp.float32(0), lambda: jnp.ones(4, jnp.float32), x64=True)
def grid_in_double_precision(c, x):
    """Under x64 linspace is float64."""
    grid = jnp.linspace(0.0, 1.0, 3)  # <- here
    return c + (grid * x).sum(), None


@broken(lambda: jnp.float32(0), lambda: jnp.ones((4, 2), jnp.float32), x64=True)
def uniform_in_double_precision(c, x):
    """Under x64 uniform numbers are float64."""
    u = jax.random.uniform(jax.random.key(0), (2,))  # <- here
    return c + u @ x, None


@broken(jnp.int32(0), advice="jnp.asarray(init, jnp.float32)")
def limited_by_infinity(c, x):
    """Infinity is a float."""
    return jnp.minimum(c, jnp.inf), x  # <- here


@broken(jnp.arange(3), advice="jnp.asarray(init, jnp.float32)")
def normalised_counts(c, x):
    """Shares of counts: a division without rest would be all zeros."""
    return c / c.sum(), x  # <- here


@broken(jnp.int32(100), advice="jnp.asarray(init, jnp.float32)")
def decayed_counter(c, x):
    """Half of an integer is taken away."""
    c -= 0.5 * c  # <- here
    return c, x


@broken(jnp.int32(4), advice="jnp.round(root).astype(jnp.int32)")
def rounded_root(c, x):
    """A rounded number is whole, and may be cast."""
    root = jnp.sqrt(c)  # <- here
    return jnp.round(root), x


@broken(jnp.uint8(4), jnp.arange(4, dtype=jnp.uint8), advice="jnp.asarray(init, jnp.float32)")
def blended_pixels(c, x):
    """Half of each of two pixels: as integers they would be cut."""
    return 0.5 * c + 0.5 * x, None  # <- here


@broken(jnp.int8(100), jnp.arange(3, dtype=jnp.int32), advice="jnp.asarray(init, jnp.int32)")
def narrow_sum(c, x):
    """A sum in eight bits would wrap around."""
    return c + x, None  # <- here


@broken(jnp.float16(4), jnp.arange(4, dtype=jnp.bfloat16))
def two_halves(c, x):
    """float16 and bfloat16 make float32."""
    return c + x, None  # <- here


@broken(jnp.float32(0), jnp.ones((4, 3)), advice="jnp.sum(x * mask)")
def masked_mean(c, x):
    """`keepdims` where a number is wanted."""
    mask = x > 0
    total = jnp.sum(x * mask, keepdims=True)  # <- here
    return c + total / mask.sum(), None


@broken(jnp.zeros((3, 3)), advice=False)
def trace_of_a_matrix(c, x):
    """A number takes a matrix's place."""
    return jnp.trace(c) + x, None  # <- here


@broken(jnp.ones(3), advice=False)
def norm_of_a_vector(c, x):
    """The norm is returned, and not what was to be divided by it."""
    size = jnp.linalg.norm(c)  # <- here
    return size * x, None


@broken(jnp.zeros(3))
def solution_as_a_column(c, x):
    """A right-hand side with an axis too many comes back as it went in."""
    return jnp.linalg.solve(jnp.eye(3), c[:, None]), x  # <- here


@broken(jnp.zeros((2, 3)), advice="c.reshape((2, 3))")
def reshaped_and_forgotten(c, x):
    """Another shape with as many elements."""
    flat = c.reshape(3, 2)  # <- here
    return flat + x, None


@broken(jnp.zeros((2, 3, 4)), advice="jnp.moveaxis(c, 0, -1).transpose(2, 0, 1)")
def moved_axis(c, x):
    """An axis is moved to the end."""
    c = jnp.moveaxis(c, 0, -1)  # <- here
    return c * x, None


@broken(jnp.zeros((2, 3, 2)), advice=False)
def axes_that_look_alike(c, x):
    """Of two axes of one size nothing tells which is which."""
    c = c.transpose(1, 2, 0)  # <- here
    return c * x, None


@broken(jnp.float32(1), jnp.ones((4, 1)))
def row_of_one(c, x):
    """A row of one number is no number."""
    return c + x, None  # <- here


@broken(jnp.float32(0), jnp.ones((4, 2, 2)), advice="jnp.broadcast_to(init, (2,))")
def vector_of_products(c, x):
    """A number that starts what becomes a vector."""
    return c + x @ jnp.ones(2), None  # <- here
