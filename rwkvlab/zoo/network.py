"""The network that training works on: the project's own RWKV-7 blocks, initialised for training, with BlinkDL's names
on the way out."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from rwkvlab.model.block import Block
from rwkvlab.model.rwkv import Chunk, zero_state
from rwkvlab.spec import LoraRanks, ModelSpec

X070 = ModelSpec(
    n_layer=4,
    n_embd=128,
    head_size=64,
    n_ffn=512,
    vocab_size=864,
    lora=LoraRanks(decay=16, iclr=16, value=8, gate=32),
)


class Network(nn.Module):
    """A whole model with a trainable embedding and its norm ln0 (which inference folds into the embedding)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.emb = nn.Embedding(spec.vocab_size, spec.n_embd)
        self.ln0 = nn.LayerNorm(spec.n_embd)
        self.body = Chunk(spec, 0, spec.n_layer, embedding=False)

    @property
    def blocks(self) -> list[Block]:
        """The layers in order."""
        return cast(list[Block], list(self.body.blocks.values()))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [B, T] -> logits [B, T, V], from the empty state."""
        state = zero_state(self.spec, tokens.shape[0], tokens.device)
        return self.body(self.ln0(self.emb(tokens)), *state)[0]


@torch.no_grad()
def initialise(network: Network, generator: torch.Generator) -> None:
    """Starting values in the spirit of RWKV-LM's training recipe for x070.

    Small embeddings behind a norm; output matrices at zero, so that every block starts as the identity; decays and
    token shifts spread over the channels, from short to long memory.
    """
    nn.init.uniform_(network.emb.weight, -1e-4, 1e-4, generator=generator)
    nn.init.orthogonal_(network.body.head.weight, 0.5, generator=generator)
    for layer, block in enumerate(network.blocks):
        _initialise_block(block, layer, network.spec, generator)


def _initialise_block(block: Block, layer: int, spec: ModelSpec, generator: torch.Generator) -> None:
    width, depth = spec.n_embd, layer / max(spec.n_layer - 1, 1)
    remaining = 1 - layer / spec.n_layer
    channel = torch.arange(width) / width
    att, ffn = block.att, block.ffn
    for vector, power in (
        (att.x_r, 0.2),
        (att.x_w, 0.9),
        (att.x_k, 0.7),
        (att.x_v, 0.7),
        (att.x_a, 0.9),
        (att.x_g, 0.2),
    ):
        vector.copy_(1 - channel ** (power * remaining))
    ffn.x_k.copy_(1 - channel ** (remaining**4))

    ramp = torch.arange(width) / (width - 1)
    att.w0.copy_(-6 + 5 * ramp ** (0.85 + depth**0.5) + 0.5)
    att.k_k.fill_(0.85)
    att.k_a.fill_(1.0)
    att.r_k.fill_(-0.04)
    low_rank = [(att.w1, att.w2), (att.a1, att.a2), (att.g1, att.g2)]
    if att.has_value_mix:
        att.v0.fill_(1.0)
        low_rank.append((att.v1, att.v2))
    for inner, outer in low_rank:
        nn.init.zeros_(inner.weight)
        nn.init.orthogonal_(outer.weight, 0.1, generator=generator)
    nn.init.orthogonal_(att.g1.weight, 0.1, generator=generator)

    for matrix, scale in ((att.receptance, 0.5), (att.key, 0.05), (att.value, 0.5)):
        bound = scale / math.sqrt(width)
        nn.init.uniform_(matrix.weight, -bound, bound, generator=generator)
    nn.init.uniform_(ffn.key.weight, -0.5 / math.sqrt(width), 0.5 / math.sqrt(width), generator=generator)
    nn.init.zeros_(att.output.weight)
    nn.init.zeros_(ffn.value.weight)


def parameter_groups(network: Network, weight_decay: float) -> list[dict]:
    """Optimiser groups: weight decay for the large matrices only, not for vectors, low-rank maps or the embedding."""
    decayed, kept = [], []
    for name, parameter in network.named_parameters():
        large = parameter.ndim == 2 and min(parameter.shape) >= network.spec.n_embd and not name.startswith("emb.")
        (decayed if large else kept).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


@torch.no_grad()
def spread_norm_gains(network: Network, spread: float, generator: torch.Generator) -> None:
    """Give the network outlier channels without changing what it computes.

    Large RWKV checkpoints have channels tens of times stronger than the median; a small model trained for minutes has
    none, its weights fill every 4-bit grid evenly, and rounding them costs nothing. So each channel's gain in ln1 and
    ln2 is multiplied by a log-normal factor, and the matrices that read that channel are divided by it. In exact
    arithmetic the logits stay the same; what changes is the weights' distribution over their input channels.

    Args:
        network: changed in place.
        spread: standard deviation of the factors' logarithm.
        generator: where the factors come from.
    """
    for block in network.blocks:
        att = block.att
        readers = [att.receptance, att.key, att.value, att.w1, att.a1, att.g1, *([att.v1] if att.has_value_mix else [])]
        for norm, matrices in ((block.ln1, readers), (block.ln2, [block.ffn.key])):
            factor = torch.exp(spread * torch.randn(network.spec.n_embd, generator=generator))
            norm.weight.mul_(factor)
            norm.bias.mul_(factor)
            for matrix in matrices:
                matrix.weight.div_(factor)


def checkpoint_tensors(network: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights under BlinkDL's names and in his layouts: low-rank maps [in, out], vectors [1, 1, C], r_k [H, N]."""
    tensors = {"emb.weight": network.emb.weight}
    tensors |= {f"blocks.0.ln0.{name}": value for name, value in network.ln0.named_parameters()}
    tensors |= dict(_blinkdl(name, value, network.spec) for name, value in network.body.named_parameters())
    return {name: value.detach().to(dtype).contiguous().clone() for name, value in tensors.items()}


_LOW_RANK = ("w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2")


def _blinkdl(name: str, value: Tensor, spec: ModelSpec) -> tuple[str, Tensor]:
    parts = name.split(".")
    if len(parts) > 2 and parts[-2] in _LOW_RANK:
        return name.removesuffix(".weight"), value.T
    if parts[-1] == "r_k":
        return name, value.reshape(spec.n_head, spec.head_size)
    is_vector = len(parts) > 2 and parts[-2] in ("att", "ffn") and value.ndim == 1
    return name, value.reshape(1, 1, -1) if is_vector else value
