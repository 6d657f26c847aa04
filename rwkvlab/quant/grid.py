"""Integer grids: choosing scales and rounding to them. Pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def symmetric_limits(bits: int) -> tuple[int, int]:
    """Codes of a signed grid: (-8, 7) for 4 bits."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def channel_scales(weight: Tensor, bits: int) -> Tensor:
    """The finest scale per output row at which no weight is clipped.

    The negative side has one code more, so a row whose largest weight is negative gets a slightly finer grid.

    Args:
        weight: [out, in].
        bits: grid width.

    Returns:
        [out], in weight units, never 0.
    """
    low, high = symmetric_limits(bits)
    needed = torch.maximum(weight.amax(1) / high, weight.amin(1) / low)
    return needed.clamp_min(torch.finfo(torch.float32).tiny * 2**10)


def round_to_grid(weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Nearest grid point of each weight, as a float: clamp(round(w / s)) s. Shapes as in `channel_scales`."""
    low, high = symmetric_limits(bits)
    return (weight / scales[:, None]).round().clamp(low, high) * scales[:, None]


def round_to_nearest(weight: Tensor, bits: int) -> Tensor:
    """Round-to-nearest quantization per output row, the plainest baseline."""
    return round_to_grid(weight, channel_scales(weight, bits), bits)


def affine_range(low: float, high: float, bits: int) -> tuple[float, int]:
    """Scale and offset of an unsigned grid over [low, high], 0 exactly representable.

    Returns:
        scale, and the offset in AIMET's sense: value = (code + offset) * scale, so offset <= 0.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    steps = 2**bits - 1
    scale = max(high - low, 1e-6) / steps
    return scale, round(low / scale)
