"""The picture of the notebook: the accepted steps, and how y answers to each parameter."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("tab:blue", "tab:orange", "tab:green")


class Curves(NamedTuple):
    """Something computed at a few times: `values` has a row for each time."""

    times: Any  # (n,)
    values: Any  # (n, number of curves)


def draw_steps(axes: Any, exact: Curves, steps: Curves) -> None:
    """Draw the closed form, and a mark at the end of each step."""
    axes.plot(exact.times, exact.values, color="0.6", label="closed form")
    marks = {"color": "black", "markersize": 3, "linestyle": "none", "marker": "."}
    axes.plot(steps.times, steps.values, **marks, label=f"{len(steps.times)} accepted steps")
    axes.set_title("The solution")
    axes.set_ylabel("y")


def draw_sensitivities(
    axes: Any, names: list[str], exact: Curves, forward: Curves, reverse: Curves
) -> None:
    """Draw each derivative three times: as a line, as rings and as crosses."""
    for i, name in enumerate(names):
        colour = COLOURS[i]
        axes.plot(exact.times, exact.values[:, i], color=colour, label=f"{name}, closed form")
        few = slice(None, None, max(1, len(forward.times) // 25))
        rings = {"markerfacecolor": "none", "label": "forward mode" if i == 0 else None}
        axes.plot(forward.times[few], forward.values[few, i], "o", color=colour, **rings)
        crosses = {"markersize": 9, "label": "reverse mode" if i == 0 else None}
        axes.plot(reverse.times, reverse.values[:, i], "x", color=colour, **crosses)
    axes.set_title("How much y grows for one percent more of ...")


def draw(
    names: list[str],
    solution: Curves,
    steps: Curves,
    sensitivities: Curves,
    forward: Curves,
    reverse: Curves,
) -> Figure:
    """Draw the solution on the left, and its derivatives on the right.

    Args:
        names: of the parameters, one for each column of the derivatives.
        solution: the closed form, one column.
        steps: the times and values after each accepted step, one column.
        sensitivities: the closed forms of the derivatives, a column for each parameter.
        forward: what forward mode gives for them.
        reverse: what reverse mode gives for them.

    Returns:
        The figure. It has a canvas of its own and needs no display.
    """
    figure = Figure(figsize=(10, 4.2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    draw_steps(left, solution, steps)
    # One percent is small: the derivative times it is the change.
    exact, forwards, backwards = (
        Curves(np.asarray(c.times), np.asarray(c.values) / 100)
        for c in (sensitivities, forward, reverse)
    )
    draw_sensitivities(right, names, exact, forwards, backwards)
    for axes in (left, right):
        axes.set_xlabel("time")
        axes.legend(frameon=False)
    return figure
