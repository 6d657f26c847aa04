"""Figures of notebooks 60 and 70: what quantization costs, and what it buys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rwkvlab.plots.style import BLUE, CYCLE, MUTED, SILVER, VERMILION, colour_of, draw, styled
from rwkvlab.tables.frames import rows_of, where


@styled
def surprise(items: pd.DataFrame, precision: str) -> Figure:
    """Share of items whose last word surprised the model by at most so much, before and after quantization.

    Perplexity is decided on the right: exp(mean surprise) comes from the few words the model did not expect.

    Args:
        items: of `item_table`.
        precision: of the quantized model, for the legend.
    """
    figure, (axes,) = draw(height=3.6)
    share = 100 * (np.arange(len(items)) + 1) / len(items)
    series = (
        ("float model", items.surprise_float, SILVER, 4.0),
        (precision, items.surprise_quantized, colour_of(precision), 1.4),
    )
    for label, values, colour, width in series:
        mean = float(values.mean())
        axes.step(
            np.sort(values.clip(lower=1e-6)),
            share,
            where="post",
            color=colour,
            lw=width,
            label=f"{label}\nmean {mean:.3f} nats, ppl {np.exp(mean):.3f}",
        )
    axes.set(
        xscale="log",
        xlabel="surprise at the last word, −log p in nats",
        ylabel="share of the items, %",
        title=f"How surprising the last word is, {len(items)} items",
    )
    axes.axvline(np.log(2), color=MUTED, lw=0.8, ls=":")
    axes.annotate("p = ½", (np.log(2), 2), xytext=(4, 0), textcoords="offset points", color=MUTED)
    axes.legend(loc="upper left")
    return figure


@styled
def divergence_by_position(table: pd.DataFrame) -> Figure:
    """Mean KL divergence at each position of the texts, one line per comparison; single sequences as faint dots.

    Args:
        table: of `divergence_table`.
    """
    figure, (axes,) = draw(height=3.8)
    floor = 1e-9
    for colour, (label, part) in zip(
        (BLUE, VERMILION, *CYCLE[2:]), table.groupby("comparison", sort=False), strict=False
    ):
        mean = part.groupby("position").kl.mean().rolling(5, center=True, min_periods=1).mean()
        axes.plot(part.position, part.kl.clip(lower=floor), ".", ms=3, alpha=0.25, color=colour, mew=0)
        axes.plot(mean.index, mean.clip(lower=floor), color=colour, label=f"{label}\nmean {part.kl.mean():.1e} nats")
    axes.set(
        yscale="log",
        xlabel="position in the text, tokens",
        ylabel="KL divergence, nats",
        title="Where the distributions part",
    )
    axes.set_ylim(
        bottom=max(floor, float(table.kl[table.kl > 0].quantile(0.02)) / 3 if (table.kl > 0).any() else floor)
    )
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5)
    return figure


@styled
def accuracy_against_bytes(results: pd.DataFrame) -> Figure:
    """The plot: last-word accuracy with its 95 % interval against DDR bytes per token; rules join the best choices.

    Args:
        results: of `result_table`.
    """
    figure, (axes,) = draw(width=7.2, height=4.2)
    _front(axes, results, "acc")
    for position, row in enumerate(rows_of(results)):
        spread = [[100 * (row.acc - row.acc_low)], [100 * (row.acc_high - row.acc)]]
        axes.errorbar(
            row.ddr_bytes_per_token / 1e6,
            100 * row.acc,
            yerr=spread,
            fmt="o",
            ms=7,
            capsize=4,
            lw=1.4,
            color=colour_of(row.precision, position),
        )
        _label(axes, row, 100 * row.acc, f"{_name(row, results)}\n{row.k}/{row.n}", position, results)
    n = "/".join(str(n) for n in sorted(results.n.unique()))
    axes.set(
        xlabel="DDR traffic per generated token, MB (from the HTP compiler)",
        ylabel="last word predicted, %",
        title="Accuracy against memory traffic",
    )
    axes.set_xlim(left=0, right=1.18 * results.ddr_bytes_per_token.max() / 1e6)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=""))
    axes.margins(y=0.18)
    axes.annotate(
        f"n = {n}; bars: 95 % intervals",
        (1, 0),
        xycoords="axes fraction",
        xytext=(0, 6),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=8.5,
    )
    return figure


@styled
def divergence_against_bytes(results: pd.DataFrame) -> Figure:
    """Mean KL of the compiled model from the float model against DDR bytes per token.

    A finer yardstick than accuracy: it sees every position, and needs few texts.
    """
    measured = where(results, results.overall_kl.notna())
    figure, (axes,) = draw(width=7.2, height=3.8)
    for position, row in enumerate(rows_of(measured)):
        axes.plot(row.ddr_bytes_per_token / 1e6, row.overall_kl, "o", ms=7, color=colour_of(row.precision, position))
        _label(axes, row, row.overall_kl, _name(row, results), position, results)
    if measured.empty:
        axes.text(0.5, 0.5, "the simulator was not run", transform=axes.transAxes, ha="center", color=MUTED)
    else:
        axes.set(yscale="log", ylim=(measured.overall_kl.min() / 3, measured.overall_kl.max() * 3))
    axes.set(
        xlabel="DDR traffic per generated token, MB (from the HTP compiler)",
        ylabel="KL(float ‖ HTP), nats",
        title="Distance from the float model against memory traffic",
    )
    axes.set_xlim(left=0, right=1.18 * results.ddr_bytes_per_token.max() / 1e6)
    return figure


def _front(axes: Axes, results: pd.DataFrame, column: str) -> None:
    front = where(results, results.on_front).sort_values("ddr_bytes_per_token")
    if len(front) > 1:
        axes.step(
            front.ddr_bytes_per_token / 1e6, 100 * front[column], where="post", color=MUTED, lw=1, ls="--", zorder=1
        )


CROWDED = 0.3
"""A point whose right-hand neighbour is nearer than this share of the axis has its label on the left."""


def _label(axes: Axes, row: Any, height: float, text: str, position: int, results: pd.DataFrame) -> None:
    gaps = (results.ddr_bytes_per_token - row.ddr_bytes_per_token) / results.ddr_bytes_per_token.max()
    on_left = bool(((gaps > 0) & (gaps < CROWDED)).any())
    axes.annotate(
        text,
        (row.ddr_bytes_per_token / 1e6, height),
        xytext=(-10 if on_left else 10, -4),
        textcoords="offset points",
        ha="right" if on_left else "left",
        va="top",
        color=colour_of(row.precision, position),
    )


def _name(row: Any, results: pd.DataFrame) -> str:
    """The precision, and what else tells the rows apart."""
    differ = [key for key in ("model", "soc", "chunks") if len(set(results[key])) > 1]
    extra = [str(getattr(row, key)) for key in differ if key != "chunks"]
    chunks = [f"{row.chunks} chunks"] if "chunks" in differ else []
    return ", ".join([row.precision, *extra, *chunks])
