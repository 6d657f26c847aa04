"""Figures of notebook 20: the values that flow through the linears."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rwkvlab.plots.style import BLUE, MUTED, SKY, VERMILION, draw, only_vertical_grid


def activation_ranges(table: pd.DataFrame, end: str = "input", percentile: float = 99.99) -> Figure:
    """Range of every linear's input (or output): extremes as thin bars, the central part thick, the rms as a dot.

    Args:
        table: of `activation_table`.
        end: input or output.
        percentile: the one `table` was made with.
    """
    part = table[table.end == end].reset_index(drop=True)
    figure, (axes,) = draw(width=7.5, height=max(2.6, 0.19 * len(part) + 1.2))
    rows = np.arange(len(part))
    axes.barh(rows, part["max"] - part["min"], left=part["min"], height=0.3, color=SKY, label="minimum to maximum")
    axes.barh(
        rows,
        part.p_high - part.p_low,
        left=part.p_low,
        height=0.72,
        color=BLUE,
        label=f"central {percentile:g} % of the values",
    )
    axes.plot(part.rms, rows, "|", color="white", ms=6, mew=1.4)
    axes.plot(-part.rms, rows, "|", color="white", ms=6, mew=1.4, label="± root mean square")
    axes.set_yticks(rows, part.linear.str.removeprefix("blocks."), fontsize=7.5)
    axes.set_ylim(len(part) - 0.4, -0.6)
    axes.set_xscale("symlog", linthresh=float(part.rms.median()), linscale=0.8)
    axes.set(
        xlabel=f"value at the {end} (linear near 0, logarithmic outside)",
        title=f"What the linears take as {end}" if end == "input" else "What the linears give as output",
    )
    only_vertical_grid(axes)
    handles, labels = axes.get_legend_handles_labels()
    handles[-1 if labels[-1].startswith("±") else 0].set_markeredgecolor(MUTED)
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def activation_histogram(histogram: pd.DataFrame, name: str, limits: tuple[float, float], step: float) -> Figure:
    """How often each magnitude occurs in one tensor, both signs, against the 16-bit grid it will be rounded to.

    Args:
        histogram: of `histogram_table`.
        name: the tensor's.
        limits: smallest and largest value of the grid.
        step: of the grid.
    """
    figure, (axes,) = draw(height=3.6)
    total = float((histogram.negative + histogram.positive).sum()) or 1.0
    for side, colour in (("positive", BLUE), ("negative", VERMILION)):
        axes.step(
            histogram.magnitude,
            histogram[side].where(histogram[side] > 0) / total,
            where="pre",
            color=colour,
            lw=1.2,
            label=f"{side} values",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="magnitude (logarithmic bins of 2.2 %)",
        ylabel="share of all values",
        title=f"{name}: values and grid",
    )
    top = axes.get_ylim()[1]
    for value, label, side in ((step, "grid step", "left"), (max(-limits[0], limits[1]), "end of the grid", "right")):
        axes.axvline(value, color=MUTED, lw=1, ls="--")
        axes.annotate(
            label,
            (value, top),
            xytext=(4 if side == "left" else -4, -2),
            textcoords="offset points",
            ha=side,
            va="top",
            color=MUTED,
        )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
