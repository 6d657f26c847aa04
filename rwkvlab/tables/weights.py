"""What rounding to an integer grid does to each weight matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.quant.grid import channel_scales, round_to_nearest, symmetric_limits
from rwkvlab.quant.quantize import linear_weights

SUBBINS = 8
"""Histogram bins per grid step."""


def weight_errors(checkpoint: Checkpoint, bits: Sequence[int] = (4, 8)) -> pd.DataFrame:
    """Signal-to-quantization-noise ratio of every linear's weight, for each bit width.

        SQNR = 10 log10(mean(w^2) / mean((w - q(w))^2)) dB

    Returns:
        columns layer (-1 for the head), linear, rows, columns, `peak / rms` (mean over rows) and `W<bits> SQNR, dB`.
    """
    rows = []
    for name, weight in linear_weights(checkpoint):
        layer, linear = _place(name)
        crest = float((weight.abs().amax(1) / weight.square().mean(1).sqrt().clamp_min(1e-12)).mean())
        rows.append([layer, linear, *weight.shape, crest, *(sqnr(weight, width) for width in bits)])
    ratios = [f"W{width} SQNR, dB" for width in bits]
    return pd.DataFrame(rows, columns=["layer", "linear", "rows", "columns", "peak / rms", *ratios])


def sqnr(weight: Tensor, bits: int) -> float:
    """Signal-to-quantization-noise ratio of round-to-nearest per output row, dB; infinite if nothing is lost."""
    noise = float((weight - round_to_nearest(weight, bits)).double().square().mean())
    return 10 * math.log10(float(weight.double().square().mean()) / noise) if noise else math.inf


def grid_histogram(weight: Tensor, bits: int) -> pd.DataFrame:
    """Weights in units of their row's grid step, so that the grid is the integers.

    Returns:
        columns code (bin centre), share (of all weights in the bin) and density (share per grid step).
    """
    low, high = symmetric_limits(bits)
    codes = (weight / channel_scales(weight, bits)[:, None]).flatten()
    bins = (high - low + 1) * SUBBINS
    counts = torch.histc(codes, bins, low - 0.5, high + 0.5).numpy()
    centres = low - 0.5 + (np.arange(bins) + 0.5) / SUBBINS
    share = counts / codes.numel()
    return pd.DataFrame({"code": centres, "share": share, "density": share * SUBBINS})


def find_weight(checkpoint: Checkpoint, name: str) -> Tensor:
    """The weight [out, in] of the linear called `name`, e.g. blocks.0.att.key."""
    return next(weight for found, weight in linear_weights(checkpoint) if found == name)


def linear_name(layer: int, linear: str) -> str:
    """The full name behind a row of `weight_errors`."""
    return linear if layer < 0 else f"blocks.{layer}.{linear}"


def _place(name: str) -> tuple[int, str]:
    if name == "head":
        return -1, name
    _, layer, linear = name.split(".", 2)
    return int(layer), linear
