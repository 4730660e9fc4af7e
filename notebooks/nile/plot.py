"""The picture of the demo: flows, filtered level, its 95 % band, smoothed level."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from local_level import Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = 1.96  # 95 % of a normal distribution lies within so many standard deviations


def new_figure() -> "Figure":
    """Make an empty figure.

    Raises:
        ModuleNotFoundError: matplotlib is missing; the message names the extra that installs it.
    """
    try:  # imported here, so that the numbers of the demo need no matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = "the picture needs matplotlib: pip install 'carryloops[notebooks]'"
        raise ModuleNotFoundError(message) from error
    # A figure with its own canvas needs no display and leaves pyplot's global state alone.
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_levels(axes: "Axes", years: np.ndarray, filtered: Level, smoothed: Level) -> None:
    """Draw the filtered level in its band, and the smoothed level."""
    mean, deviation = np.asarray(filtered.mean), np.sqrt(np.asarray(filtered.variance))
    low, high = mean - BAND * deviation, mean + BAND * deviation
    axes.fill_between(years, low, high, color="tab:blue", alpha=0.2, linewidth=0, label="95 % band")
    axes.plot(years, mean, color="tab:blue", linewidth=2, label="filtered level (flows so far)")
    smooth = np.asarray(smoothed.mean)
    axes.plot(years, smooth, "--", color="tab:orange", label="smoothed level (all flows)")


def draw(
    path: Path, years: np.ndarray, flows: np.ndarray, filtered: Level, smoothed: Level
) -> None:
    """Write the picture as a PNG file, and make its folder where there is none.

    Args:
        path: the file to write.
        years: of shape (n,).
        flows: of shape (n,), in 10^8 cubic metres.
        filtered: the level given the flows so far, leaves of shape (n,).
        smoothed: the level given all flows, leaves of shape (n,).

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    draw_levels(axes, years, filtered, smoothed)
    axes.plot(years, flows, ".", color="0.35", label="annual flow")
    axes.set_title(f"The Nile at Aswan, {years[0]} to {years[-1]}: the local level model")
    axes.set_xlabel("year")
    axes.set_ylabel("annual flow (10$^8$ m$^3$)")
    axes.set_xlim(years[0] - 1, years[-1] + 1)
    axes.legend(loc="upper right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
