"""The local level model of a river: filter, likelihood, fit and smoother.

    flow_t      = level_t + epsilon_t,    epsilon_t ~ N(0, sigma2_epsilon)
    level_{t+1} = level_t + eta_t,        eta_t     ~ N(0, sigma2_eta)

Each part is one loop: the filter a `scan`, the fit a `while_loop`, the smoother a `fori_loop`.

DK stands for J. Durbin and S. J. Koopman, Time Series Analysis by State Space Methods,
2nd edition, Oxford University Press 2012, whose chapter 2 is about this model.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import loops


class Variances(NamedTuple):
    """The two parameters of the model."""

    epsilon: Array  # of the noise in one year's flow
    eta: Array  # of the level's move from one year to the next


class Level(NamedTuple):
    """What is known about the level: it is normal with this mean and variance."""

    mean: Array
    variance: Array


class FilterStep(NamedTuple):
    """What the filter says about one year; stacked by `scan` to one row a year."""

    level: Level  # a_{t|t} and P_{t|t}: given the flows up to this year
    innovation: Array  # v_t: the flow less its prediction
    innovation_variance: Array  # F_t


class NewtonState(NamedTuple):
    """The carry of Newton's loop."""

    point: Array
    gradient: Array
    iterations: Array


class Fit(NamedTuple):
    """The model at the maximum of its likelihood."""

    variances: Variances
    log_likelihood: Array
    iterations: Array


# The Kalman filter: a scan over the years


def filter_step(variances: Variances, level: Level, flow: Array) -> tuple[Level, FilterStep]:
    """Learn from one year's flow (DK 2.15, written for the filtered level).

    Args:
        variances: the two parameters, scalars.
        level: what is known from the years before; the carry.
        flow: this year's flow, a scalar.

    Returns:
        The level as known after this year, and what to record about the year.
    """
    predicted_variance = level.variance + variances.eta  # P_t
    innovation = flow - level.mean  # v_t = y_t - a_t
    innovation_variance = predicted_variance + variances.epsilon  # F_t = P_t + sigma2_epsilon
    gain = predicted_variance / innovation_variance  # K_t = P_t / F_t
    level = Level(level.mean + gain * innovation, predicted_variance * (1 - gain))
    return level, FilterStep(level, innovation, innovation_variance)


def kalman_filter(variances: Variances, flows: Array) -> FilterStep:
    """Run the filter from year 2 on.

    Nothing is known about the level before year 1. Such a diffuse start (DK 2.9) leaves after
    year 1 exactly N(y_1, sigma2_epsilon), so that is where the scan begins.

    Args:
        variances: the two parameters, scalars.
        flows: one a year, of shape (n,).

    Returns:
        The steps of years 2 to n, each leaf of shape (n - 1,).
    """
    year_1 = Level(flows[0], variances.epsilon)
    _, steps = loops.scan(functools.partial(filter_step, variances), year_1, flows[1:])
    return steps


def filtered_level(variances: Variances, flows: Array) -> Level:
    """Give the level of each year given the flows up to that year, leaves of shape (n,)."""
    later = kalman_filter(variances, flows).level
    return Level(
        jnp.concatenate([flows[:1], later.mean]),
        jnp.concatenate([variances.epsilon[None], later.variance]),
    )


def log_likelihood(variances: Variances, flows: Array) -> Array:
    """Compute the diffuse log-likelihood, a scalar (DK 2.10.1).

    Year 1 fixes the level and says nothing about the variances: the sum begins at year 2.
    """
    steps = kalman_filter(variances, flows)
    scaled_squares = steps.innovation**2 / steps.innovation_variance
    return -0.5 * jnp.sum(jnp.log(2 * jnp.pi * steps.innovation_variance) + scaled_squares)


# The fit: Newton's method, a while_loop


def newton_step(gradient: Array, hessian: Array, longest: float = 2.0) -> Array:
    """Solve for the step, made safe where the function is not concave.

    Where a curvature is positive plain Newton walks to a minimum. Its absolute value keeps the
    direction uphill; a floor and a longest step keep it sane where the function is flat.
    """
    curvatures, axes = jnp.linalg.eigh(hessian)
    step = axes @ ((axes.T @ gradient) / jnp.maximum(jnp.abs(curvatures), 1e-3))
    return step * jnp.minimum(1.0, longest / jnp.linalg.norm(step))


def shorten(function: Callable[[Array], Array], point: Array, step: Array) -> Array:
    """Halve the step until it does not lead downhill (or to NaN): a loop inside the loop."""
    rounding = 1e-9  # near the top a good step may seem to lead down, by rounding alone
    lowest = function(point) - rounding
    return loops.while_loop(lambda s: ~(function(point + s) >= lowest), lambda s: s / 2, step)


def maximise(
    function: Callable[[Array], Array], start: Array, tolerance: float, max_iterations: int
) -> NewtonState:
    """Climb by Newton steps until no component of the gradient exceeds the tolerance."""
    gradient_at = jax.grad(function)
    hessian_at = jax.hessian(function)

    def is_steep(state: NewtonState) -> Array:
        steep = jnp.max(jnp.abs(state.gradient)) > tolerance
        return steep & (state.iterations < max_iterations)

    def climb(state: NewtonState) -> NewtonState:
        step = newton_step(state.gradient, hessian_at(state.point))
        point = state.point + shorten(function, state.point, step)
        return NewtonState(point, gradient_at(point), state.iterations + 1)

    return loops.while_loop(is_steep, climb, NewtonState(start, gradient_at(start), jnp.int32(0)))


def fit(flows: Array, *, tolerance: float = 1e-6, max_iterations: int = 50) -> Fit:
    """Find the variances of maximal diffuse likelihood, by Newton steps on their logarithms.

    Both start as the sample variance of the flows. On logarithms no step can make one negative.

    Args:
        flows: one a year, of shape (n,), float64.
        tolerance: the largest gradient component that counts as zero.
        max_iterations: how many Newton steps to try.

    Returns:
        The variances, the log-likelihood there and the number of Newton steps.

    Raises:
        ArithmeticError: the gradient is not small after `max_iterations` steps, or is NaN.
    """

    def height(log_variances: Array) -> Array:
        return log_likelihood(Variances(*jnp.exp(log_variances)), flows)

    start = jnp.log(jnp.stack([jnp.var(flows), jnp.var(flows)]))
    top = jax.jit(lambda point: maximise(height, point, tolerance, max_iterations))(start)
    if not jnp.all(jnp.abs(top.gradient) <= tolerance):
        message = (
            f"after {top.iterations} Newton steps the gradient is still {top.gradient}: "
            "allow more steps, a larger tolerance, or enable float64"
        )
        raise ArithmeticError(message)
    return Fit(Variances(*jnp.exp(top.point)), height(top.point), top.iterations)


# The smoother: a fori_loop, back from the last year


def smoothed_level(variances: Variances, filtered: Level) -> Level:
    """Give the level of each year given the flows of all years.

    This is the backward pass of Rauch, Tung and Striebel (AIAA Journal 3, 1965); DK 2.4 reaches
    the same numbers by another recursion.

    Args:
        variances: the two parameters, scalars.
        filtered: the result of `filtered_level`, leaves of shape (n,).

    Returns:
        The smoothed level, leaves of shape (n,).
    """
    last = len(filtered.mean) - 1

    def step_back(step: Array, smoothed: Level) -> Level:
        year = last - 1 - step
        predicted_variance = filtered.variance[year] + variances.eta
        weight = filtered.variance[year] / predicted_variance
        mean_news = smoothed.mean[year + 1] - filtered.mean[year]
        variance_news = smoothed.variance[year + 1] - predicted_variance
        return Level(
            smoothed.mean.at[year].add(weight * mean_news),
            smoothed.variance.at[year].add(weight**2 * variance_news),
        )

    # The loop starts from the filtered level, which in the last year is the smoothed one.
    return loops.fori_loop(0, last, step_back, filtered)
