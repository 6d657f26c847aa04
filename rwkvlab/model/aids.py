"""Applying float16 range aids to a loaded chunk."""

from __future__ import annotations

from typing import Any

import torch

from rwkvlab.errors import RwkvlabError
from rwkvlab.model.rwkv import Chunk
from rwkvlab.range_aids import DECAY_LOGITS, KEY_SCALE, VALUE_SCALE, RangeAids


@torch.no_grad()
def apply_aids(chunk: Chunk, aids: RangeAids) -> None:
    """Rewrite a float chunk's weights and norms in place, before anything is quantized.

    Raises:
        RwkvlabError: aids are on for RWKV-7.
    """
    if not aids.on:
        return
    if chunk.spec.version == "7.0":
        raise RwkvlabError(f"range aids for RWKV-7: {aids!r}", "RWKV-5 and RWKV-6", "leave the recipe's aids out")
    blocks: list[Any] = list(chunk.blocks.values())
    for layer, block in enumerate(blocks, start=chunk.first):
        if aids.scale_kv:
            _scale_kv(block)
        if aids.halve_every:
            _scale_residual(block, aids.residual_scale(layer))
            block.halve = aids.halves_after(layer, chunk.spec.n_layer)
        if aids.clip_decay:
            block.att.decay_logits = DECAY_LOGITS
    if chunk.is_last and aids.halve_every:
        chunk.ln_out.eps *= aids.residual_scale(chunk.spec.n_layer - 1) ** 2


def clipped_channels(chunk: Chunk) -> int:
    """RWKV-5: decay channels of the chunk that `clip_decay` changes. RWKV-6's depend on the text."""
    low, high = DECAY_LOGITS
    decays = [parameter for name, parameter in chunk.named_parameters() if name.endswith("att.time_decay")]
    return sum(int(((decay < low) | (decay > high)).sum()) for decay in decays)


def _scale_kv(block: Any) -> None:
    block.att.key.weight.mul_(KEY_SCALE)
    block.att.value.weight.mul_(VALUE_SCALE)
    block.att.ln_x.norm.eps *= (KEY_SCALE * VALUE_SCALE) ** 2


def _scale_residual(block: Any, scale: float) -> None:
    block.att.output.weight.mul_(scale)
    block.ffn.value.weight.mul_(scale)
    block.ln1.eps *= scale**2
    block.ln2.eps *= scale**2
