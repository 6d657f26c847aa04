"""Figures of notebook 10: parity, state, memory."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rwkvlab.plots.style import BLUE, MUTED, ORANGE, VERMILION, draw, shades, styled

FLOAT16_LARGEST = 65504


@styled
def parity_errors(parity: pd.DataFrame, tolerance: float = 1e-4) -> Figure:
    """Relative logit error against the reference at each position, with the tolerance it must stay below."""
    figure, (axes,) = draw(height=3.4)
    for (form, part), colour, marker in zip(parity.groupby("form", sort=False), (BLUE, ORANGE), "os", strict=False):
        axes.semilogy(part.position, part.relative_error.clip(lower=1e-9), marker, ms=3.5, color=colour, label=form)
    axes.axhline(tolerance, color=VERMILION, lw=1.2)
    axes.annotate(
        "tolerance",
        (1, tolerance),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=VERMILION,
    )
    axes.set(
        xlabel="position in the text, tokens",
        ylabel="largest logit difference,\nshare of the logit range",
        title="Our model against the rwkv package",
    )
    axes.set_ylim(top=tolerance * 5)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@styled
def state_sizes(states: pd.DataFrame) -> Figure:
    """Root mean square of each layer's WKV state while a text is read."""
    figure, (axes,) = draw(height=3.4)
    layers = sorted(states.layer.unique())
    for layer, colour in zip(layers, shades(len(layers)), strict=True):
        part = states[states.layer == layer]
        axes.plot(part.token + 1, part.rms, color=colour, label=f"layer {layer}")
    axes.set(xlabel="tokens read", ylabel="root mean square", title="Size of the WKV state")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2 if len(layers) > 6 else 1, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def memory_spans(spans: pd.DataFrame) -> Figure:
    """Half-life of each channel's memory, sorted: how much of a layer forgets at once, how much spans the text."""
    figure, (axes,) = draw(height=3.4)
    layers = sorted(spans.layer.unique())
    for layer, colour in zip(layers, shades(len(layers)), strict=True):
        part = spans[spans.layer == layer]
        axes.semilogy(100 * part.share, part.half_life, color=colour, label=f"layer {layer}")
    axes.axhline(1.143, color=MUTED, lw=0.8, ls=":")
    axes.annotate(
        "shortest possible, 1.14",
        (1, 1.143),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=MUTED,
    )
    axes.set(xlabel="share of the layer's channels, %", ylabel="half-life, tokens", title="How long channels remember")
    axes.legend(ncols=2 if len(layers) > 6 else 1, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
