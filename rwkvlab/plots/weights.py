"""Figures of notebook 30: weights against the integer grids they are rounded to."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rwkvlab.plots.style import BLUE, MUTED, RULE, VERMILION, draw, only_vertical_grid, styled


@styled
def error_map(errors: pd.DataFrame, bits: int) -> Figure:
    """SQNR of every linear as a map, layers down, linears across; the darker, the more is lost."""
    column = f"W{bits} SQNR, dB"
    table = errors[errors.layer >= 0].pivot(index="layer", columns="linear", values=column)
    table = table[list(errors[errors.layer == errors.layer.max()].linear)]
    figure, (axes,) = draw(width=8.2, height=1.9 + min(0.36 * len(table), 6))
    image = axes.imshow(table, cmap="viridis", aspect="auto")
    middle = np.nanmean(table.to_numpy()[np.isfinite(table.to_numpy())])
    if len(table) <= 16:
        for (row, place), value in np.ndenumerate(table.to_numpy()):
            if np.isfinite(value):
                axes.text(
                    place,
                    row,
                    f"{value:.1f}",
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white" if value < middle else "black",
                )
    axes.set_xticks(range(table.shape[1]), table.columns, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(table)), table.index)
    axes.grid(False)
    axes.set(ylabel="layer", title=f"Weights in {bits} bits, signal to rounding noise")
    figure.colorbar(image, ax=axes, label="dB", pad=0.02)
    return figure


@styled
def error_by_linear(errors: pd.DataFrame, most: int = 30) -> Figure:
    """SQNR at both widths of the `most` linears that lose most at 4 bits, the worst first."""
    table = errors.sort_values("W4 SQNR, dB").head(most).reset_index(drop=True)
    figure, (axes,) = draw(width=7.2, height=max(2.6, 0.19 * len(table) + 1.2))
    rows = np.arange(len(table))
    axes.hlines(rows, table["W4 SQNR, dB"], table["W8 SQNR, dB"], color=RULE, lw=2, zorder=1)
    axes.plot(table["W4 SQNR, dB"], rows, "o", ms=5, color=VERMILION, label="4-bit weights")
    axes.plot(table["W8 SQNR, dB"], rows, "s", ms=4.5, color=BLUE, label="8-bit weights")
    names = [
        linear if layer < 0 else f"{layer}.{linear}" for layer, linear in zip(table.layer, table.linear, strict=True)
    ]
    axes.set_yticks(rows, names, fontsize=8)
    axes.set_ylim(len(table) - 0.4, -0.6)
    axes.set(
        xlabel="signal to rounding noise, dB (6 dB are one bit)",
        title=f"What rounding costs: the {len(table)} hardest of {len(errors)} weights",
    )
    only_vertical_grid(axes)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def weights_on_grid(histograms: pd.DataFrame) -> Figure:
    """Distribution of one matrix's weights in units of the grid step, one panel per bit width, grid points as rules.

    Args:
        histograms: `grid_histogram` tables, with a column bits.
    """
    widths = sorted(histograms.bits.unique())
    figure, panels = draw(width=8.0, height=3.3, columns=len(widths))
    for axes, bits in zip(panels, widths, strict=True):
        part = histograms[histograms.bits == bits]
        codes = 2 ** int(bits)
        for code in range(-codes // 2, codes // 2) if bits <= 4 else ():
            axes.axvline(code, color=MUTED, lw=0.6, alpha=0.6)
        axes.fill_between(part.code, 100 * part.density, step="mid", color=VERMILION if bits <= 4 else BLUE)
        axes.set(xlabel="weight, in steps of its row's grid", title=f"{bits} bits: {codes} grid points")
        axes.set_ylim(bottom=0)
        axes.grid(False, axis="x")
    panels[0].set_ylabel("share of the weights per step, %")
    return figure
