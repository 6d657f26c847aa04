"""Cutting time into segments of 16 rows, within which a recurrence becomes matrix products."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from rwkvlab.model.layers import sizes

SEGMENT = 16
"""Rows per segment. RWKV-7's decay is at least exp(-exp(-0.5)) a step, so 16 steps span e^9.7: halved by taking decays
relative to mid-segment, the ratios stay within what float16 holds."""


class Masks:
    """Constant triangles over a segment's rows (first index) and columns.

    Attributes:
        lower: 1 where column <= row.
        strict: 1 where column < row.
        levels: the couplings of the two halves of blocks of size 2, 4, 8, 16.
        between: [SEGMENT^2, SEGMENT], row (t, s) is 1 at j with s < j < t: sums what lies strictly between two rows.
        of_row, of_column: [SEGMENT^2, SEGMENT], row (t, s) is 1 at t, or at s: spread rows over pairs.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        row, column = torch.arange(SEGMENT)[:, None], torch.arange(SEGMENT)[None, :]
        self.lower = (row >= column).to(device, dtype)
        self.strict = (row > column).to(device, dtype)
        halves = [2**i for i in range(SEGMENT.bit_length() - 1)]
        self.levels = tuple(
            ((row // (2 * s) == column // (2 * s)) & (row // s % 2 == 1) & (column // s % 2 == 0)).to(device, dtype)
            for s in halves
        )
        t, s, j = (torch.arange(SEGMENT).view(shape) for shape in ((-1, 1, 1), (1, -1, 1), (1, 1, -1)))
        everywhere = torch.ones(SEGMENT, SEGMENT, SEGMENT, dtype=torch.bool)
        pairs = ((s < j) & (j < t), everywhere & (t == j), everywhere & (s == j))
        self.between, self.of_row, self.of_column = (p.reshape(-1, SEGMENT).to(device, dtype) for p in pairs)


@lru_cache
def masks(dtype: torch.dtype, device: torch.device) -> Masks:
    """The constants of one dtype and device."""
    return Masks(dtype, device)


def to_segments(x: Tensor) -> Tensor:
    """[B, T, H, N] -> [n * B, H, SEGMENT, N], segments in time order; T is padded with zeros."""
    batch, length, heads, size = sizes(x)
    pad = -length % SEGMENT
    if pad:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
    if batch > 1:
        x = x.reshape(batch, -1, SEGMENT, heads * size).transpose(0, 1)
    return x.reshape(-1, SEGMENT, heads, size).transpose(1, 2)


def from_segments(y: Tensor, batch: int, length: int) -> Tensor:
    """[n * B, H, SEGMENT, N] -> [B, T, H, N]."""
    _, heads, _, size = sizes(y)
    y = y.transpose(1, 2)
    if batch > 1:
        y = y.reshape(-1, batch, SEGMENT, heads * size).transpose(0, 1)
    y = y.reshape(batch, -1, heads, size)
    return y[:, :length] if length % SEGMENT else y


def transposed(x: Tensor) -> Tensor:
    """x with its last two dimensions swapped."""
    return x.transpose(-1, -2)
