"""Rewrites that keep RWKV-5 and RWKV-6 inside float16's range, as switches."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

KEY_SCALE, VALUE_SCALE = 0.5, 0.25
"""What `scale_kv` multiplies keys and values by; the WKV state and its output shrink by their product, 1/8."""
DECAY_LOGITS = (-9.72, 2.27)
"""Bounds of `clip_decay`. At either end exp(-exp(.)) or 1 minus it is about 6e-5, float16's smallest normal number."""


class RangeAids(BaseModel):
    """Which rewrites are on; the values are rwkv-qualcomm's. RWKV-7 needs none of them.

    Attributes:
        scale_kv: keys halved and values quartered in the weights, and the group norm's epsilon with them: in exact
            arithmetic nothing changes after the norm.
        halve_every: after every so many layers the residual stream is halved, output weights of later layers and norm
            epsilons with it; 0 is never. In exact arithmetic the logits do not change.
        clip_decay: decay logits are held within [-9.72, 2.27]; exact where they already are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    scale_kv: bool = False
    halve_every: int = Field(default=0, ge=0)
    clip_decay: bool = False

    @property
    def on(self) -> bool:
        """Whether any is."""
        return self.scale_kv or self.halve_every > 0 or self.clip_decay

    def residual_scale(self, layer: int) -> float:
        """Factor on the residual stream as it enters `layer`."""
        return 0.5 ** (layer // self.halve_every) if self.halve_every else 1.0

    def halves_after(self, layer: int, n_layer: int) -> bool:
        """Whether the residual stream is halved on leaving `layer`."""
        return self.halve_every > 0 and (layer + 1) % self.halve_every == 0 and layer + 1 < n_layer


NO_AIDS = RangeAids()
