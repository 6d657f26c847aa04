"""Figures of notebook 20: the values that flow through the linears."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from rwkvlab.plots.style import BLUE, MUTED, ORANGE, SKY, VERMILION, draw, only_horizontal_grid, styled
from rwkvlab.tables.frames import where


@styled
def activation_ranges(table: pd.DataFrame, end: str, percentile: float) -> Figure:
    """Range of every linear's input (or output), one panel per kind of linear, one bar per layer.

    Thin bars reach from minimum to maximum, thick ones hold the central part, ticks mark the root mean square.

    Args:
        table: of `activation_table`.
        end: input or output.
        percentile: the one `table` was made with.
    """
    part = where(table, table.end == end)
    names = part.linear.str.extract(r"(?:blocks\.(?P<layer>\d+)\.)?(?P<kind>.+)")
    part = part.assign(layer=names.layer.fillna("0").astype(int), kind=names.kind)
    kinds = [*part[part.layer == part.layer.max()].kind, "head"]
    columns = 5
    rows = -(-len(kinds) // columns)
    figure, panels = draw(width=9, height=1.55 * rows + 0.7, columns=columns, rows=rows)
    for axes, kind in zip(panels, kinds, strict=False):
        _range_bars(axes, where(part, part.kind == kind), percentile)
        axes.set_title(kind, fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in panels[len(kinds) :]:
        axes.set_visible(False)
    figure.supxlabel("layer", fontsize=9.5)
    figure.supylabel(f"value at the {end}", fontsize=9.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _range_bars(axes: Axes, part: pd.DataFrame, percentile: float) -> None:
    layers = part.layer.to_numpy()
    axes.bar(layers, part["max"] - part["min"], 0.3, part["min"], color=SKY, label="minimum to maximum")
    central = f"central {percentile:g} % of the values"
    axes.bar(layers, part.p_high - part.p_low, 0.7, part.p_low, color=BLUE, label=central)
    axes.plot(layers, part.rms, "_", color=ORANGE, ms=9, mew=2, label="root mean square")
    axes.axhline(0, color=MUTED, lw=0.6)
    axes.set_xlim(layers.min() - 0.8, layers.max() + 0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5) if len(layers) > 1 else NullLocator())
    axes.use_sticky_edges = False
    axes.margins(y=0.08)
    only_horizontal_grid(axes)


@styled
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
        if not np.any(histogram[side]):
            continue
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
