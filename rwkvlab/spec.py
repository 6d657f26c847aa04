"""What a checkpoint is: its version and dimensions. `layout.py` reads them off tensor names and shapes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rwkvlab.errors import RwkvlabError

Version = Literal["5.1", "5.2", "6.0", "7.0"]
GROUP_NORM_EPS = 64e-5
"""What RWKV's own training code takes."""


class LoraRanks(BaseModel):
    """Inner widths of the low-rank maps of the time mix; 0 where the version or the model has none.

    RWKV-6: `mix` is time_maa_w1/w2's for each of the five mixes, `decay` time_decay_w1/w2's.
    RWKV-7: `decay` is w1/w2's, `iclr` (in-context learning rate) a1/a2's, `value` (residual to the first layer's
    values) v1/v2's, absent in a model of one layer, `gate` g1/g2's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decay: int = Field(default=0, ge=0)
    iclr: int = Field(default=0, ge=0)
    value: int = Field(default=0, ge=0)
    gate: int = Field(default=0, ge=0)
    mix: int = Field(default=0, ge=0)


_RANKS_OF = {"5.1": set(), "5.2": set(), "6.0": {"mix", "decay"}, "7.0": {"decay", "iclr", "gate"}}


class ModelSpec(BaseModel):
    """Version and dimensions of one RWKV model.

    Raises:
        RwkvlabError: `n_embd` is not a multiple of `head_size`, or the low-rank widths are not the version's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Version = "7.0"
    n_layer: int = Field(ge=1)
    n_embd: int = Field(ge=1)
    head_size: int = Field(ge=1)
    n_ffn: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    lora: LoraRanks = LoraRanks()
    group_norm_eps: float = Field(default=GROUP_NORM_EPS, gt=0)
    """Epsilon of the norm over each head's output; a property of the training code that no tensor records."""

    @property
    def n_head(self) -> int:
        """Heads of the time mix."""
        return self.n_embd // self.head_size

    @property
    def hands_on_v_first(self) -> bool:
        """Whether layer 0's value goes to every later layer, and so crosses chunk borders."""
        return self.version == "7.0"

    @model_validator(mode="after")
    def _dimensions_fit(self) -> ModelSpec:
        if self.n_embd % self.head_size:
            raise RwkvlabError(
                f"n_embd {self.n_embd} is not a multiple of head_size {self.head_size}", "n_embd = n_head * head_size"
            )
        wanted = _RANKS_OF[self.version] | ({"value"} if self.version == "7.0" and self.n_layer > 1 else set())
        found = {name for name, rank in self.lora if rank}
        if found - {"value"} != wanted - {"value"} or ("value" in wanted) > ("value" in found):
            raise RwkvlabError(
                f"low-rank widths {sorted(found)} in RWKV-{self.version} with {self.n_layer} layers",
                f"{sorted(wanted) or 'none'}",
            )
        return self
