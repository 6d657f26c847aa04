"""RWKV-6's two halves of a block (arXiv 2404.05892), over [B, T, C] for any T, with state passed in and returned.

Parameter names follow BlinkDL's checkpoints; `time_maa_w2`, one tensor for five maps there, is five linears here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from rwkvlab.model.layers import HeadNorm, float_tanh, linear, sizes, split_heads, token_shift, vector
from rwkvlab.model.segments import to_segments
from rwkvlab.model.wkv_diagonal import segment_decays, wkv_segments, wkv_step
from rwkvlab.spec import ModelSpec

MIXES = "wkvrg"
"""Order of the five data-dependent mixes in time_maa_w1 and time_maa_w2."""
FASTEST_LOG_DECAY = -200.0
"""exp of anything below is 0 in float32; the bound keeps float16 from computing 0 times infinity."""


class TimeMix(nn.Module):
    """Attention's counterpart: data-dependent token shift and decay, WKV-6, gated output."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        channels, lora = spec.n_embd, spec.lora
        self.head_size, self.mix_rank = spec.head_size, lora.mix
        self.time_maa_x = vector(channels)
        self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g = (
            vector(channels) for _ in MIXES
        )
        self.time_maa_w1 = linear(channels, len(MIXES) * lora.mix)
        self.time_maa_w2 = nn.ModuleList(linear(lora.mix, channels) for _ in MIXES)
        self.time_decay = vector(channels)
        self.time_decay_w1, self.time_decay_w2 = linear(channels, lora.decay), linear(lora.decay, channels)
        self.time_faaaa = nn.Parameter(torch.zeros(spec.n_head, spec.head_size))
        self.receptance, self.key, self.value, self.gate, self.output = (linear(channels, channels) for _ in range(5))
        self.ln_x = HeadNorm(channels, spec.head_size, spec.group_norm_eps)
        self.decay_logits: tuple[float, float] | None = None  # set by a range aid

    def forward(
        self, x: Tensor, shift: Tensor, wkv: Tensor, v_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Mix over time.

        Args:
            x: [B, T, C], normalised.
            shift: [B, C], the token before x.
            wkv: [B, H, N, N], key by value.
            v_first: of no use to RWKV-6, handed on.

        Returns:
            output [B, T, C], next shift, next wkv, v_first.
        """
        before, shift = token_shift(x, shift)
        delta = before - x
        x_w, x_k, x_v, x_r, x_g = self._mixes(x, delta)
        r, k, v = self.receptance(x_r), self.key(x_k), self.value(x_v)
        log_w = self._log_decay(self.time_decay + self.time_decay_w2(float_tanh(self.time_decay_w1(x_w))))
        y, wkv = self._wkv(wkv, *(split_heads(t, self.head_size) for t in (r, log_w, k, v)))
        return self.output(self.ln_x(y) * silu(self.gate(x_g))), shift, wkv, v_first

    def _log_decay(self, logits: Tensor) -> Tensor:
        if self.decay_logits is not None:
            return -torch.exp(logits.clamp(*self.decay_logits))
        return (-torch.exp(logits)).clamp_min(FASTEST_LOG_DECAY)

    def _mixes(self, x: Tensor, delta: Tensor) -> list[Tensor]:
        low = float_tanh(self.time_maa_w1(x + delta * self.time_maa_x)).split(self.mix_rank, dim=-1)
        static = (self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g)
        parts = zip(static, self.time_maa_w2, low, strict=True)
        return [x + delta * (maa + expand(part)) for maa, expand, part in parts]

    def _wkv(self, wkv: Tensor, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if sizes(r)[1] == 1:
            r, log_w, k, v = (t.squeeze(1) for t in (r, log_w, k, v))
            y, wkv = wkv_step(wkv, r, log_w.exp(), k, v, self.time_faaaa)
            return y.unsqueeze(1), wkv
        return wkv_segments(wkv, r, k, v, self.time_faaaa, segment_decays(to_segments(log_w)))


class ChannelMix(nn.Module):
    """The feed-forward half: token shift, sigmoid(W_r .) * W_v relu(W_k .)^2."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.time_maa_k, self.time_maa_r = vector(spec.n_embd), vector(spec.n_embd)
        self.key = linear(spec.n_embd, spec.n_ffn)
        self.value = linear(spec.n_ffn, spec.n_embd)
        self.receptance = linear(spec.n_embd, spec.n_embd)

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, C] and the token before it [B, C] -> output [B, T, C], next shift."""
        before, shift = token_shift(x, shift)
        delta = before - x
        hidden = torch.relu(self.key(x + delta * self.time_maa_k))
        gate = torch.sigmoid(self.receptance(x + delta * self.time_maa_r))
        return gate * self.value(hidden * hidden), shift
