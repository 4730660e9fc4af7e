"""Fit the local level model to the Nile with the three loops, break a loop, draw a picture.

Run it with `python notebooks/nile/demo.py [--output PICTURE.png]`.
"""

import argparse
import inspect
import textwrap
import traceback
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import local_level
import numpy as np
import plot
from jax import Array

import loops

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "build" / "nile.png"


class River(NamedTuple):
    """Annual flows in 10^8 cubic metres, one a year."""

    years: np.ndarray
    flows: np.ndarray


def read_river(path: Path = HERE / "nile.csv") -> River:
    """Read years and flows from a CSV file with one header line."""
    years, flows = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
    return River(years.astype(int), flows)


def print_fit(fit: local_level.Fit) -> None:
    """Print the variances, as they are and rounded as Durbin and Koopman print them (2.10).

    Their 1469.1 is the product of rounded figures, 15099 x 0.0973. The maximum itself is at
    1469.18, which would round to 1469.2; KFAS and statsmodels (exact diffuse) agree.
    """
    epsilon, eta = map(float, fit.variances)
    ratio = round(eta / epsilon, 4)
    rounded = round(epsilon)
    print(f"  flow variance    sigma2_epsilon = {epsilon:9.2f}   as published: {rounded}")
    print(
        f"  level variance   sigma2_eta     = {eta:9.2f}   as published: {rounded * ratio:.1f}"
        f"  ({rounded} x {ratio})"
    )
    print(f"  log-likelihood   {fit.log_likelihood:.2f}, after {fit.iterations} Newton steps")


def print_steepest_fall(years: np.ndarray, smoothed: local_level.Level) -> None:
    """Print the two years between which the smoothed level falls most."""
    mean = np.asarray(smoothed.mean)
    year = int(np.argmin(np.diff(mean)))
    print(
        f"  the level falls most from {years[year]} to {years[year + 1]}: "
        f"{mean[year]:.0f} to {mean[year + 1]:.0f}"
    )


def exponential_average(flows: Array) -> Array:
    """Average the flows with weights that fade. It is broken: float32 in, float64 out."""

    def body(average: Array, flow: Array) -> tuple[Array, None]:
        return average + 0.1 * (flow - average), None

    average, _ = loops.scan(body, jnp.float32(1000), flows)
    return average


def print_broken_body(flows: Array) -> None:
    """Run the broken average and print its code and the message that a user gets."""
    print(textwrap.indent(inspect.getsource(exponential_average), "  "))
    try:
        exponential_average(flows)
    except TypeError as error:
        message = "".join(traceback.format_exception_only(error))
        print(textwrap.indent(message, "  "))
    else:
        message = "a carry that drifts from float32 to float64 was accepted"
        raise AssertionError(message)


def main() -> None:
    """Run the whole demo."""
    parser = argparse.ArgumentParser(description="Fit the local level model to the Nile")
    parser.add_argument("--output", type=Path, default=PICTURE, help="where the PNG file goes")
    picture = parser.parse_args().output.resolve()
    jax.config.update("jax_enable_x64", True)

    river = read_river()
    flows = jnp.asarray(river.flows)
    print(f"The Nile at Aswan, {river.years[0]} to {river.years[-1]}: {len(flows)} annual flows")

    print("\nThe local level model, fitted (a scan inside a while_loop)")
    fit = local_level.fit(flows)
    print_fit(fit)

    print("\nSmoothed backwards (a fori_loop)")
    filtered = jax.jit(local_level.filtered_level)(fit.variances, flows)
    smoothed = jax.jit(local_level.smoothed_level)(fit.variances, filtered)
    print_steepest_fall(river.years, smoothed)

    print("\nA broken body: its carry changes type, so it is refused before anything runs\n")
    print_broken_body(flows)

    plot.draw(picture, river.years, river.flows, filtered, smoothed)
    print(f"Picture: {picture}")


if __name__ == "__main__":
    main()
