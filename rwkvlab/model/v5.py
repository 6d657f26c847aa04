"""RWKV-5's time mix (arXiv 2404.05892), versions 5.1 and 5.2; its channel mix is RWKV-6's.

RWKV-5 writes its token shift as x mu + before (1 - mu), RWKV-6 as x + (before - x) maa. They are the same with
maa = 1 - mu, and loading a checkpoint turns the one into the other, so parameters are called `time_maa_*` here too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from rwkvlab.model.layers import HeadNorm, linear, sizes, split_heads, token_shift, vector
from rwkvlab.model.segments import SEGMENT, to_segments
from rwkvlab.model.wkv_diagonal import SegmentDecays, segment_decays, wkv_segments, wkv_step
from rwkvlab.spec import ModelSpec


class TimeMix(nn.Module):
    """Attention's counterpart: static token shift and decay, WKV-5, gated output.

    The decay does not depend on the token. `prepare` computes what it does within a segment once, so that a prefill
    graph holds it as constants; until then (in training) it is computed in every call.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        channels = spec.n_embd
        self.head_size = spec.head_size
        self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g = (vector(channels) for _ in range(4))
        self.time_decay = nn.Parameter(torch.zeros(spec.n_head, spec.head_size))
        self.time_faaaa = nn.Parameter(torch.zeros(spec.n_head, spec.head_size))
        self.receptance, self.key, self.value, self.gate, self.output = (linear(channels, channels) for _ in range(5))
        self.ln_x = HeadNorm(channels, spec.head_size, spec.group_norm_eps)
        self.decay_logits: tuple[float, float] | None = None  # set by a range aid
        self.step_decay: Tensor | None = None
        self.decays: SegmentDecays | None = None

    def prepare(self) -> None:
        """Compute the constants of the decay from its final value."""
        log_w = self._log_decay().detach()
        self.step_decay = log_w.exp()
        self.decays = segment_decays(log_w[None, :, None].expand(1, -1, SEGMENT, -1))

    def forward(
        self, x: Tensor, shift: Tensor, wkv: Tensor, v_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Mix over time; arguments and results as RWKV-6's."""
        before, shift = token_shift(x, shift)
        delta = before - x
        r = self.receptance(x + delta * self.time_maa_r)
        k = self.key(x + delta * self.time_maa_k)
        v = self.value(x + delta * self.time_maa_v)
        g = silu(self.gate(x + delta * self.time_maa_g))
        y, wkv = self._wkv(wkv, *(split_heads(t, self.head_size) for t in (r, k, v)))
        return self.output(self.ln_x(y) * g), shift, wkv, v_first

    def _wkv(self, wkv: Tensor, r: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        length = sizes(r)[1]
        if length == 1:
            w = self._log_decay().exp() if self.step_decay is None else self.step_decay
            y, wkv = wkv_step(wkv, r.squeeze(1), w, k.squeeze(1), v.squeeze(1), self.time_faaaa)
            return y.unsqueeze(1), wkv
        if self.decays is not None and length % SEGMENT == 0:
            return wkv_segments(wkv, r, k, v, self.time_faaaa, self.decays)
        # A padded row must not decay the state, so here the decay is written out row by row.
        decays = segment_decays(to_segments(self._log_decay().expand_as(r)))
        return wkv_segments(wkv, r, k, v, self.time_faaaa, decays)

    def _log_decay(self) -> Tensor:
        logits = self.time_decay if self.decay_logits is None else self.time_decay.clamp(*self.decay_logits)
        return -torch.exp(logits)
