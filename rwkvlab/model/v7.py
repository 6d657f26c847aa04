"""RWKV-7's two halves of a block (arXiv 2503.14456), over [B, T, C] for any T, with its state passed in and returned.

Every matrix product with weights is an `nn.Linear` module, so that a quantizer can be attached to it by name; the
element-wise operations between them stay float. Parameter names follow BlinkDL's checkpoints.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rwkvlab.model.layers import HeadNorm, float_tanh, linear, merge_heads, split_heads, token_shift, unit_heads, vector
from rwkvlab.model.wkv import wkv7
from rwkvlab.spec import ModelSpec

LOG_DECAY_SCALE = -math.exp(-0.5)
"""log w = -exp(-0.5) * sigmoid(.): the decay lies between exp(-0.6065) = 0.545 and 1."""


class TimeMix(nn.Module):
    """Attention's counterpart: token shift, projections, WKV-7, gated output.

    Args:
        spec: the model.
        layer: its index. Layer 0 has no value mix: its value becomes `v_first` for the layers above.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        channels, lora = spec.n_embd, spec.lora
        self.head_size = spec.head_size
        self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g = (vector(channels) for _ in range(6))
        self.receptance, self.key, self.value, self.output = (linear(channels, channels) for _ in range(4))
        self.w0, self.w1, self.w2 = vector(channels), linear(channels, lora.decay), linear(lora.decay, channels)
        self.a0, self.a1, self.a2 = vector(channels), linear(channels, lora.iclr), linear(lora.iclr, channels)
        self.g1, self.g2 = linear(channels, lora.gate), linear(lora.gate, channels)
        self.has_value_mix = layer > 0
        if self.has_value_mix:
            self.v0, self.v1, self.v2 = vector(channels), linear(channels, lora.value), linear(lora.value, channels)
        self.k_k, self.k_a, self.r_k = vector(channels), vector(channels), vector(channels)
        self.ln_x = HeadNorm(channels, spec.head_size, spec.group_norm_eps)

    def forward(
        self, x: Tensor, shift: Tensor, wkv: Tensor, v_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Mix over time.

        Args:
            x: [B, T, C], normalised.
            shift: [B, C], the token before x.
            wkv: [B, H, N, N].
            v_first: layer 0's value [B, T, C]; None in layer 0.

        Returns:
            output [B, T, C], next shift, next wkv, v_first.
        """
        before, shift = token_shift(x, shift)
        delta = before - x
        r = self.receptance(x + delta * self.x_r)
        k = self.key(x + delta * self.x_k)
        x_v = x + delta * self.x_v
        v = self.value(x_v)
        log_w = LOG_DECAY_SCALE * torch.sigmoid(self.w0 + self.w2(float_tanh(self.w1(x + delta * self.x_w))))
        a = torch.sigmoid(self.a0 + self.a2(self.a1(x + delta * self.x_a)))
        g = self.g2(torch.sigmoid(self.g1(x + delta * self.x_g)))

        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v0 + self.v2(self.v1(x_v)))

        kk = unit_heads(self._heads(k * self.k_k))
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v, log_w, a = (self._heads(t) for t in (r, k, v, log_w, a))
        y, wkv = wkv7(wkv, r, log_w, k, v, -kk, kk * a)
        bonus = (r * k * self._heads(self.r_k)).sum(-1, keepdim=True) * v
        return self.output((self.ln_x(y) + merge_heads(bonus)) * g), shift, wkv, v_first

    def _heads(self, x: Tensor) -> Tensor:
        return split_heads(x, self.head_size)


class ChannelMix(nn.Module):
    """The feed-forward half: token shift, W_v relu(W_k .)^2."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.x_k = vector(spec.n_embd)
        self.key = linear(spec.n_embd, spec.n_ffn)
        self.value = linear(spec.n_ffn, spec.n_embd)

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, C] and the token before it [B, C] -> output [B, T, C], next shift."""
        before, shift = token_shift(x, shift)
        hidden = torch.relu(self.key(x + (before - x) * self.x_k))
        return self.value(hidden * hidden), shift
