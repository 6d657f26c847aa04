"""One look for all figures, and saving each with its data.

Figures are made without pyplot, so nothing depends on a backend or on global state, and nothing needs closing.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rwkvlab.files import write_bytes_atomic, write_text_atomic

INK, MUTED, SILVER, RULE = "#222222", "#6b6b6b", "#b3b3b3", "#d9d9d9"
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#b5559c", "#56b4e9"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
"""Okabe and Ito's palette, which people with any common colour blindness can tell apart, the purple a little darker."""

PRECISION_COLOURS = {"fp16": INK, "a16w8": BLUE, "a16w4": VERMILION, "att-a16w8+ffn-a16w4": GREEN}
"""The same precision has the same colour in every figure."""

Parameters = ParamSpec("Parameters")

DPI = 160
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "rwkvlab",
}


@dataclass(frozen=True)
class SavedFigure:
    """A figure on disk: `<stem>.svg`, `.png` and the data behind it as `.csv`. Notebooks show it."""

    stem: Path

    @property
    def png(self) -> Path:
        """Raster form."""
        return self.stem.with_suffix(".png")

    @property
    def svg(self) -> Path:
        """Vector form, for print and reports."""
        return self.stem.with_suffix(".svg")

    @property
    def csv(self) -> Path:
        """What the figure was drawn from."""
        return self.stem.with_suffix(".csv")

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        data = self.png.read_bytes()
        width = int.from_bytes(data[16:20], "big")
        return data, {"width": round(width * 100 / DPI)}

    def __repr__(self) -> str:
        return f"{self.stem.name} (.svg, .png, .csv)"


def save_figure(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> SavedFigure:
    """Write `<name>.svg`, `.png` and `.csv` into `folder`, each whole or not at all.

    Raises:
        RwkvlabError: the folder cannot be written.
    """
    saved = SavedFigure(folder / name)
    with rc_context(_STYLE):
        write_bytes_atomic(saved.svg, _rendered(figure, "svg", metadata={"Date": None, "Creator": None}))
        write_bytes_atomic(saved.png, _rendered(figure, "png", dpi=DPI))
    write_text_atomic(saved.csv, data.to_csv(index=False))
    return saved


def styled(make: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Decorates a function that makes a figure: all of it is drawn in the common look."""

    @wraps(make)
    def in_style(*arguments: Parameters.args, **options: Parameters.kwargs) -> Figure:
        with rc_context(_STYLE):
            return make(*arguments, **options)

    return in_style


def draw(width: float = 7.0, height: float = 3.6, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def colour_of(precision: str, position: int = 0) -> str:
    """The precision's colour; other names take their turn in the cycle."""
    return PRECISION_COLOURS.get(precision, CYCLE[position % len(CYCLE)])


def shades(n: int) -> list[Any]:
    """`n` colours from dark to light for ordered series such as layers."""
    palette = colormaps["viridis"]
    return [palette(0.08 + 0.8 * index / max(n - 1, 1)) for index in range(n)]


def only_horizontal_grid(axes: Axes) -> None:
    """For bars and categories along x."""
    axes.grid(False, axis="x")


def only_vertical_grid(axes: Axes) -> None:
    """For bars and categories along y."""
    axes.grid(False, axis="y")


def megabytes(value: float) -> str:
    """Bytes for a label: 1.67 MB, 832 kB."""
    return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB"


def _rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
