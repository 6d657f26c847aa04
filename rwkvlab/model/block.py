"""One layer of any version."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rwkvlab.model import v5, v6, v7
from rwkvlab.spec import ModelSpec, Version

TIME_MIX: dict[Version, type[nn.Module]] = {"5.1": v5.TimeMix, "5.2": v5.TimeMix, "6.0": v6.TimeMix, "7.0": v7.TimeMix}
CHANNEL_MIX: dict[Version, type[nn.Module]] = {
    "5.1": v6.ChannelMix,
    "5.2": v6.ChannelMix,
    "6.0": v6.ChannelMix,
    "7.0": v7.ChannelMix,
}


class Block(nn.Module):
    """One layer: x + TimeMix(ln1 x), then x + ChannelMix(ln2 x)."""

    att: Any  # the version's TimeMix
    ffn: Any  # the version's ChannelMix

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(spec.n_embd), nn.LayerNorm(spec.n_embd)
        self.halve = False  # set by a range aid
        self.att, self.ffn = TIME_MIX[spec.version](spec, layer), CHANNEL_MIX[spec.version](spec)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor, Tensor], v_first: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """x [B, T, C], state (att_shift [B, C], wkv [B, H, N, N], ffn_shift [B, C]) -> x, next state, v_first."""
        att_shift, wkv, ffn_shift = state
        mixed, att_shift, wkv, v_first = self.att(self.ln1(x), att_shift, wkv, v_first)
        x = x + mixed
        mixed, ffn_shift = self.ffn(self.ln2(x), ffn_shift)
        x = x + mixed
        return x * 0.5 if self.halve else x, (att_shift, wkv, ffn_shift), v_first
