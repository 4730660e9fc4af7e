"""Bodies of solvers: searches, iterations to a tolerance, linear algebra, spectra, time steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.messages.broken import broken


class Belief(NamedTuple):
    """The state of a Kalman filter."""

    m: Any
    p: Any
    loglik: Any


@broken(
    Belief(jnp.zeros((2, 1)), jnp.eye(2), jnp.float32(0)),
    jnp.ones((5, 1, 1)),
)
def log_likelihood_of_one_by_one(s, y):
    """A quadratic form of columns is a matrix of one number."""
    h = jnp.array([[1.0, 0.0]])
    cov = h @ s.p @ h.T + 0.1
    gain = s.p @ h.T @ jnp.linalg.inv(cov)
    residual = y - h @ s.m
    square = residual.T @ jnp.linalg.solve(cov, residual)
    loglik = s.loglik - 0.5 * (square + jnp.log(cov))  # <- here
    return Belief(s.m + gain @ residual, s.p - gain @ h @ s.p, loglik), None


@broken(
    lambda: (jnp.zeros(2, jnp.float32), jnp.eye(2, dtype=jnp.float32)),
    lambda: jnp.ones(5, jnp.float32),
    x64=True,
    advice="jnp.eye(2, dtype=jnp.float32)",
)
def identity_in_double_precision(state, y):
    """Under x64 an identity matrix is float64."""
    m, p = state
    gain = p[:, 0] / (p[0, 0] + 1)
    m = m + gain * (y - m[0])
    first = jnp.array([1, 0], jnp.float32)
    p = (jnp.eye(2) - jnp.outer(gain, first)) @ p  # <- here
    return (m, p), None


@broken(
    (jnp.zeros(3), jax.random.key(0), jnp.int32(0)),
    advice="jnp.asarray(init[2], jnp.float32)",
)
def acceptance_probability_added(state, scale):
    """The line is where the count takes the float in, and not where random numbers are drawn."""
    x, key, accepted = state
    key, k1, k2 = jax.random.split(key, 3)
    proposal = x + scale * jax.random.normal(k1, x.shape)
    probability = jnp.minimum(1.0, jnp.exp(-0.5 * (proposal @ proposal - x @ x)))
    x = jnp.where(jax.random.uniform(k2) < probability, proposal, x)
    return (x, key, accepted + probability), x  # <- here


@broken((jnp.zeros(3), jax.random.key(0)), jnp.ones(4), advice="keys[0]")
def keys_of_which_the_first_is_left(state, scale):
    """A slice of the keys is used."""
    x, key = state
    keys = jax.random.split(key, 4)  # <- here
    x = x + scale * jax.vmap(jax.random.normal)(keys[1:])
    return (x, keys), None


@broken((jnp.zeros(3), jax.random.key(0)), jnp.ones(4), advice="key[0]")
def keys_under_the_old_name(state, scale):
    """The split keys have the name of the key that was split."""
    x, key = state
    key = jax.random.split(key, 3)  # <- here
    x = x + scale * jax.random.normal(key[1], (3,)) * jax.random.uniform(key[2])
    return (x, key), None


@broken((jnp.zeros(3), jax.random.key(0)), jnp.ones(4), advice=False)
def a_key_for_each_component(state, scale):
    """All keys are used."""
    x, key = state
    keys = jax.random.split(key, 3)  # <- here
    x = jax.vmap(lambda k, v: v + scale * jax.random.normal(k))(keys, x)
    return (x, keys), None


@broken(
    (jnp.int32(0), jnp.int32(10)),
    cond=lambda s: s[1] - s[0] > 1e-3,
    advice="jnp.asarray(init[0], jnp.float32)",
)
def bisection_from_integers(s):
    """The condition waits for less than one: integers would never get there."""
    lo, hi = s
    mid = (lo + hi) / 2  # <- here
    is_below = mid**2 < 2
    return jnp.where(is_below, mid, lo), jnp.where(is_below, hi, mid)


@broken((jnp.int32(0), jnp.int32(8)), cond=lambda s: s[1] - s[0] > 1, advice="(lo + hi) // 2")
def binary_search(s):
    """The same over the places of a table, which are integers."""
    lo, hi = s
    table = jnp.arange(8) ** 2
    mid = (lo + hi) / 2  # <- here
    is_left = table[mid.astype(int)] < 10
    return jnp.where(is_left, mid, lo), jnp.where(is_left, hi, mid)


@broken(jnp.int32(27), cond=lambda n: n != 1, advice="n // 2")
def collatz(n):
    """One of two branches divides."""
    return jnp.where(n % 2 == 0, n / 2, 3 * n + 1)  # <- here


@broken(
    (jnp.float32(2), jnp.int32(13), jnp.float32(1)),
    cond=lambda s: s[1] > 0,
    advice="e // 2",
    in_python=False,
)
def power_by_squaring(s):
    """As a float the exponent would be halved much longer."""
    b, e, total = s
    total = jnp.where(e % 2 == 1, total * b, total)
    return b * b, e / 2, total  # <- here


@broken(
    (jnp.int32(0), jnp.int32(5)),
    cond=lambda s: s[0] < 10,
    advice="jnp.asarray(init[0], jnp.float32)",
)
def clock_of_shares(s):
    """What is divided is not the clock: with whole shares of less than one it would stand still."""
    t, k = s
    return t + k / 4, k  # <- here


@broken(jnp.ones(8), jnp.ones(3), advice="jnp.asarray(init, jnp.complex64)")
def wave_function(psi, dt):
    """The first of two factors makes it complex."""
    k = jnp.fft.fftfreq(8)
    psi = psi * jnp.exp(-1j * dt)  # <- here
    return jnp.fft.ifft(jnp.exp(-1j * k**2 * dt) * jnp.fft.fft(psi)), None


@broken(jnp.ones(5), jnp.ones(3), advice="jnp.fft.irfft(u_hat, n=5)")
def spectrum_of_odd_length(u, dt):
    """Half a spectrum does not say that its signal had an odd length."""
    u_hat = jnp.fft.rfft(u) * jnp.exp(-(jnp.arange(3) ** 2) * dt)
    return jnp.fft.irfft(u_hat), None  # <- here


@broken(jnp.eye(3), jnp.ones(3))
def eigenvectors_with_their_values(a, x):
    """One of the two results has the type of the carry."""
    return jnp.linalg.eigh(a * x + a.T), None  # <- here


@broken(jnp.eye(3), jnp.ones(3), advice=False)
def both_factors(a, x):
    """Both results have it."""
    return jnp.linalg.qr(a @ a * x), None  # <- here


@broken(
    (jnp.zeros((3, 1)), jnp.ones((3, 1)), jnp.ones((3, 1)), jnp.float32(3)),
    cond=lambda s: s[3] > 1e-3,
    advice="(r.T @ r).reshape(())",
)
def conjugate_gradient_of_columns(s):
    """A product of columns is no number."""
    x, r, p, rs = s
    alpha = rs / (p.T @ p * 2)
    x, r = x + alpha * p, r - alpha * 2 * p
    new = r.T @ r  # <- here
    return x, r, r + new / rs * p, new


@broken(
    (jnp.zeros(3, jnp.int32), jnp.ones(3), jnp.ones(3)),
    jnp.ones(4),
    advice="jnp.asarray(init[0], jnp.float32)",
)
def conjugate_gradient_from_integers(s, _):
    """The start was written as zeros of integers."""
    x, r, p = s
    rs = r @ r
    alpha = rs / (2 * p @ p + 1e-9)
    x = x + alpha * p  # <- here
    new = r - alpha * 2 * p
    return (x, new, new + (new @ new) / (rs + 1e-9) * p), None


@broken((jnp.float32(1), jnp.float32(1)), cond=lambda s: s[1] > 1e-3, advice="jnp.abs(new - x)")
def error_in_a_tuple(s):
    """A comma too many in the last component."""
    x, _ = s
    new = x - (x**2 - 2) / (2 * x)
    return new, (jnp.abs(new - x),)  # <- here


@broken((jnp.ones(3), jnp.float32(1)), cond=lambda s: s[1] > 1e-3)
def error_that_keeps_its_axis(s):
    """A norm with `keepdims` where the condition wants a number."""
    x, _ = s
    new = 0.5 * (x + 1 / x)
    error = jnp.linalg.norm(new - x, axis=-1, keepdims=True)  # <- here
    return new, error


@broken(jnp.ones(2), jnp.ones(3), advice=False)
def divided_by_a_jacobian(x, y):
    """A matrix takes the place of a derivative."""

    def f(v):
        return v**2 - y  # <- here

    return x - f(x) / jax.jacobian(f)(x), None


@broken(jnp.ones(6), jnp.ones(3), advice=False)
def stencil_without_the_ends(u, dt):
    """Nobody knows what the boundary does."""
    slope = u[2:] - 2 * u[1:-1] + u[:-2]  # <- here
    return u[1:-1] + dt * slope, None


@broken(
    lambda: (jnp.float32(0), jnp.ones(2, jnp.float32)), lambda: jnp.ones(4, jnp.float32), x64=True
)
def step_from_a_numpy_grid(state, x):
    """Under x64 an element of a NumPy grid is float64."""
    t, y = state
    dt = np.linspace(0, 1, 11)[1]
    return (t + dt, y - y * x), None  # <- here


@broken((jnp.zeros((10, 2)), jnp.ones(10)), jnp.ones((4, 2)))
def weights_of_particles(s, y):
    """`keepdims` on the way to a softmax over the other axis."""
    p, _ = s
    p = p + 0.1
    logits = -0.5 * jnp.sum((p - y) ** 2, axis=1, keepdims=True)  # <- here
    return (p, jax.nn.softmax(logits, axis=0)), None


@broken((jnp.zeros((3, 1)), jnp.zeros(1)), jnp.ones((4, 5, 4)), advice=False)
def target_without_a_column(s, rows):
    """A column minus a row: weights for each example are not what was meant."""
    w, b = s
    x, y = rows[:, :3], rows[:, 3]
    error = x @ w + b - y
    return (w - 0.1 * x.T @ error, b - 0.1 * error.mean(0)), None  # <- here
