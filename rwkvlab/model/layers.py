"""Pieces that RWKV blocks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int) -> nn.Linear:
    """y = x W^T, W [out, in]. No bias: RWKV adds its offsets outside the matrix product, where they stay float.

    A plain `nn.Linear`, because AIMET picks a module's quantized counterpart by its exact class.
    """
    return nn.Linear(inputs, outputs, bias=False)


class HeadNorm(nn.Module):
    """Group norm with one group per head, then a per-channel affine.

    Written as a layer norm over the head's N channels because the HTP has that as one operation, while its instance
    norm takes more on-chip memory than it has for long inputs.
    """

    def __init__(self, channels: int, head_size: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(head_size, eps=eps, elementwise_affine=False)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H, N] -> [B, T, C]."""
        return merge_heads(self.norm(x)) * self.weight + self.bias


def float_tanh(x: Tensor) -> Tensor:
    """tanh that stays float between two quantized linears.

    A bare Tanh between Q/DQ pairs becomes the HTP's 16-bit integer tanh, which is wrong where the range is not
    symmetric. The product with 1 keeps the compiler from pairing it with the quantizer after it.
    """
    return torch.tanh(x) * 1.0


def token_shift(x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Each position's predecessor.

    Args:
        x: [B, T, C].
        last: [B, C], the position before x.

    Returns:
        [B, T, C] shifted by one, and the new `last`.
    """
    if sizes(x)[1] == 1:
        return last.unsqueeze(1), x.squeeze(1)
    return torch.cat([last.unsqueeze(1), x[:, :-1]], dim=1), x[:, -1]


def sizes(x: Tensor) -> tuple[int, ...]:
    """Shape as plain integers, so that a traced graph holds constants and no shape arithmetic."""
    return tuple(int(size) for size in x.shape)


def split_heads(x: Tensor, head_size: int) -> Tensor:
    """[..., C] -> [..., H, N]."""
    return x.reshape(*sizes(x)[:-1], -1, head_size)


def merge_heads(x: Tensor) -> Tensor:
    """[..., H, N] -> [..., C]."""
    return x.reshape(*sizes(x)[:-2], -1)


def unit_heads(x: Tensor) -> Tensor:
    """x [..., N] divided by its Euclidean length; zero stays zero (the bound is far below any trained key's length)."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-4)


def vector(size: int) -> nn.Parameter:
    """A parameter with one value per channel."""
    return nn.Parameter(torch.zeros(size))
