"""Figures of notebooks 00 and 50: what the compiler made, and what it moves."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rwkvlab.plots.style import (
    BLUE,
    MUTED,
    ORANGE,
    VERMILION,
    colour_of,
    draw,
    megabytes,
    only_horizontal_grid,
    only_vertical_grid,
    styled,
)
from rwkvlab.tables.frames import rows_of, where


@styled
def memory_traffic(tokens: pd.DataFrame) -> Figure:
    """DDR bytes per token, read and written, one panel per kind of graph, one bar per precision.

    Args:
        tokens: of `token_table`.
    """
    kinds = [kind for kind in ("decode", "prefill") if (tokens.graph == kind).any()]
    figure, panels = draw(width=8.0, height=3.4, columns=len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        part = where(tokens, tokens.graph == kind).reset_index(drop=True)
        _traffic_bars(axes, part)
        axes.set_title("Decode: one token at a time" if kind == "decode" else "Prefill: a block of tokens")
    panels[-1].legend(loc="upper right")
    return figure


def _traffic_bars(axes: Axes, part: pd.DataFrame) -> None:
    unit, name = (1e6, "MB") if part.total.max() >= 1e6 else (1e3, "kB")
    places = np.arange(len(part))
    axes.bar(places, part.read / unit, 0.6, color=BLUE, label="read")
    axes.bar(places, part.write / unit, 0.6, bottom=part.read / unit, color=ORANGE, label="written")
    for place, total in zip(places, part.total, strict=True):
        axes.annotate(megabytes(total), (place, total / unit), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(places, part.precision)
    axes.margins(y=0.12)
    axes.set_ylabel(f"DDR traffic per token, {name}")
    only_horizontal_grid(axes)


@styled
def operation_counts(table: pd.DataFrame, most: int = 14) -> Figure:
    """How often each QNN operation occurs in the decode and the prefill graphs; the rarest are summed up.

    Args:
        table: of `operation_table`.
        most: operations shown by name.
    """
    shown = table.head(most)
    rest = table.iloc[most:][["decode", "prefill"]].sum()
    if rest.sum():
        others = {"operation": f"{len(table) - most} others", "decode": rest.decode, "prefill": rest.prefill}
        shown = pd.concat([shown, pd.DataFrame([others])])
    figure, (axes,) = draw(width=7.2, height=0.3 * len(shown) + 1.3)
    rows = np.arange(len(shown))
    axes.barh(rows - 0.2, shown.decode, 0.38, color=BLUE, label=f"decode, {table.decode.sum():,} in all")
    axes.barh(rows + 0.2, shown.prefill, 0.38, color=ORANGE, label=f"prefill, {table.prefill.sum():,} in all")
    axes.set_yticks(rows, shown.operation)
    axes.invert_yaxis()
    axes.set(xlabel="operations, before the compiler fuses them", title="What the graphs are made of")
    only_vertical_grid(axes)
    axes.legend(loc="lower right")
    return figure


@styled
def compile_stages(stages: pd.DataFrame) -> Figure:
    """Where the HTP compiler spent its time on this machine."""
    figure, (axes,) = draw(height=0.34 * len(stages) + 1.3)
    rows = np.arange(len(stages))
    axes.barh(rows, stages.milliseconds, 0.6, color=BLUE)
    for row, value in zip(rows, stages.milliseconds, strict=True):
        text = f"{value:,.1f}" if value < 10 else f"{value:,.0f}"
        axes.annotate(text, (value, row), xytext=(4, 0), textcoords="offset points", va="center", color=MUTED)
    axes.set_yticks(rows, stages.stage)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="milliseconds on this machine", title="Stages of the HTP compiler")
    only_vertical_grid(axes)
    return figure


@styled
def proof_errors(outputs: pd.DataFrame) -> Figure:
    """Difference between the simulated HTP and numpy for each output of the proof's layers.

    Args:
        outputs: columns width, expected, got.
    """
    figure, (axes,) = draw(height=3.4)
    widths = sorted(outputs.width.unique())
    for position, width in enumerate(widths):
        part = where(outputs, outputs.width == width)
        axes.plot(
            part.expected,
            part.got - part.expected,
            "o",
            ms=3.5,
            alpha=0.7,
            color=colour_of("", position),
            label=f"{width} channels",
        )
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set(
        xlabel="output in float64 (numpy)",
        ylabel="simulated HTP minus numpy",
        title="One fp16 layer on the simulated HTP",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@styled
def proof_traffic(proofs: pd.DataFrame) -> Figure:
    """DDR bytes the compiler reports for the proof's layers against the bytes of their weights.

    Args:
        proofs: columns width, weight_bytes, ddr_bytes.
    """
    figure, (axes,) = draw(width=5.4, height=3.6)
    ends = np.array([0, proofs.weight_bytes.max()]) / 1e3
    axes.plot(ends, ends, color=MUTED, lw=1, ls="--", label="each weight once")
    axes.plot(proofs.weight_bytes / 1e3, proofs.ddr_bytes / 1e3, "o", color=VERMILION, label="reported by the compiler")
    for row in rows_of(proofs):
        axes.annotate(
            f"{row.width} channels",
            (row.weight_bytes / 1e3, row.ddr_bytes / 1e3),
            xytext=(9, -2),
            textcoords="offset points",
            va="top",
            color=MUTED,
        )
    axes.set_xlim(0, 1.3 * proofs.weight_bytes.max() / 1e3)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="weights, kB", ylabel="DDR bytes per execution, kB", title="Memory traffic is mostly weights")
    axes.legend(loc="upper left")
    return figure
