"""What calibration found, tensor by tensor."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rwkvlab.quant.calibrate import BINS, PER_OCTAVE, SMALLEST, ActivationRange, Calibration
from rwkvlab.quant.grid import affine_range
from rwkvlab.quant.quantize import ACTIVATION_BITS


def activation_table(calibration: Calibration, percentile: float) -> pd.DataFrame:
    """One row per tensor at a linear: its range, the central `percentile` percent, and the grid step either one gives.

    `peak / rms` tells outliers: about 4 for a normal distribution over some thousand values, 100 and more where a
    few values stretch the grid of all others.
    """
    rows = []
    for name, values in calibration.ranges.items():
        linear, _, end = name.rpartition(".")
        low, high = values.limits(percentile)
        full, central = (affine_range(*ends, ACTIVATION_BITS)[0] for ends in ((values.low, values.high), (low, high)))
        peak = max(-values.low, values.high)
        rows.append(
            [linear, end, values.low, low, high, values.high, values.rms, peak / max(values.rms, 1e-12), full, central]
        )
    columns = ["linear", "end", "min", "p_low", "p_high", "max", "rms", "peak / rms", "step min-max", "step percentile"]
    return pd.DataFrame(rows, columns=columns)


def histogram_table(values: ActivationRange) -> pd.DataFrame:
    """Counts by logarithmic magnitude, empty ends cut off: columns magnitude (a bin's upper edge), negative, positive.

    Zeros are in the first bin of the positive side, so it is left out.
    """
    edges = SMALLEST * 2.0 ** ((np.arange(BINS) + 1) / PER_OCTAVE)
    table = pd.DataFrame({"magnitude": edges, "negative": values.negative, "positive": values.positive})[1:]
    used = np.flatnonzero(table.negative + table.positive)
    first, last = (used[0], used[-1] + 1) if used.size else (0, 0)
    return pd.DataFrame(table.iloc[first:last].reset_index(drop=True))


def trade_off_table(
    values: ActivationRange, percentiles: tuple[float, ...] = (99.0, 99.9, 99.99, 99.999)
) -> pd.DataFrame:
    """What a narrower range buys and costs: the grid step relative to min-max, and the share of values clipped."""
    full = affine_range(values.low, values.high, ACTIVATION_BITS)[0]
    rows = []
    for percentile in (*percentiles, None):
        low, high = values.limits(percentile)
        step = affine_range(low, high, ACTIVATION_BITS)[0]
        rows.append(["min-max" if percentile is None else f"{percentile:g} %", low, high, step / full])
    return pd.DataFrame(rows, columns=["range", "low", "high", "step, of min-max's"])
