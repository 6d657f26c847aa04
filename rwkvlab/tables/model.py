"""What is in a checkpoint, and what its recurrence does with a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model import v5, v6, v7
from rwkvlab.model.block import Block
from rwkvlab.model.rwkv import Chunk, Model
from rwkvlab.quant.inventory import parameters_by_group, weight_bytes


def spec_table(checkpoint: Checkpoint) -> pd.DataFrame:
    """The model's dimensions, one a row."""
    spec = checkpoint.spec
    rows = {
        "version": f"RWKV-{spec.version}",
        "layers": spec.n_layer,
        "channels": spec.n_embd,
        "heads x head size": f"{spec.n_head} x {spec.head_size}",
        "feed-forward width": spec.n_ffn,
        "vocabulary": spec.vocab_size,
        "LoRA ranks": ", ".join(f"{rank} ({part})" for part, rank in spec.lora if rank) or "none",
        "sha256": checkpoint.sha256[:12],
    }
    return pd.DataFrame({"property": list(rows), "value": [str(value) for value in rows.values()]})


def parameter_table(checkpoint: Checkpoint) -> pd.DataFrame:
    """Parameters by part of the model, the largest first."""
    counts = pd.Series(parameters_by_group(checkpoint)).sort_values(ascending=False, kind="stable")
    share = (100 * counts / counts.sum()).round(1)
    return pd.DataFrame({"part": counts.index, "parameters": counts.to_numpy(), "share, %": share.to_numpy()})


def size_table(checkpoint: Checkpoint) -> pd.DataFrame:
    """Bytes of all weights at each precision, scales not counted: what a token must read at the least."""
    sizes = weight_bytes(checkpoint)
    return pd.DataFrame({"precision": list(sizes), "weights, MB": [size / 1e6 for size in sizes.values()]})


@torch.no_grad()
def state_norms(model: Model, ids: Sequence[int]) -> pd.DataFrame:
    """Size of each layer's WKV state after every token: columns token, layer, rms and largest magnitude."""
    rows, state = [], None
    for position, token in enumerate(ids):
        _, state = model(torch.tensor([[token]]), state)
        for layer, wkv in enumerate(state[1::3]):
            rows.append([position, layer, float(wkv.square().mean().sqrt()), float(wkv.abs().max())])
    return pd.DataFrame(rows, columns=["token", "layer", "rms", "largest"])


@torch.no_grad()
def half_lives(model: Model, ids: Sequence[int]) -> pd.DataFrame:
    """How long each channel remembers: its median decay over a text, as a half-life in tokens.

    A channel whose decay is w a token keeps half of what it held after ln(1/2) / ln(w) tokens.

    Returns:
        columns layer, share (of channels with a shorter half-life) and half_life.
    """
    log_decay: dict[int, Tensor] = {}
    chunks = cast("Iterable[Chunk]", model.chunks)
    blocks = [cast(Block, block) for chunk in chunks for block in chunk.blocks.values()]
    handles = [_record_decay(block.att, layer, log_decay) for layer, block in enumerate(blocks)]
    model(torch.tensor([list(ids)]))
    for handle in handles:
        handle.remove()
    frames = []
    for layer, values in log_decay.items():
        half_life = np.sort(math.log(0.5) / values[0].median(0).values.numpy())
        share = (np.arange(len(half_life)) + 0.5) / len(half_life)
        frames.append(pd.DataFrame({"layer": layer, "share": share, "half_life": half_life}))
    return pd.concat(frames, ignore_index=True)


def _record_decay(att: Any, layer: int, log_decay: dict[int, Tensor]) -> RemovableHandle:
    """Have a time mix leave its log-decays [B, T, C] in `log_decay[layer]` whenever it runs."""

    def record(_module: object, _inputs: object, output: Tensor) -> None:
        if isinstance(att, v7.TimeMix):
            log_decay[layer] = v7.LOG_DECAY_SCALE * torch.sigmoid(att.w0 + output)
        elif isinstance(att, v6.TimeMix):
            log_decay[layer] = -torch.exp(att.time_decay + output)
        else:  # RWKV-5's decay does not depend on the token
            log_decay[layer] = -torch.exp(att.time_decay).flatten().expand(1, 1, -1)

    last_map = {v7.TimeMix: "w2", v6.TimeMix: "time_decay_w2", v5.TimeMix: "receptance"}[type(att)]
    return getattr(att, last_map).register_forward_hook(record)


@torch.no_grad()
def both_forms(model: Model, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Logits [T, V] of one text, read as a sequence (chunk-parallel WKV) and token by token (step WKV)."""
    tokens = torch.tensor([list(ids)])
    steps, state = [], None
    for position in range(len(ids)):
        logits, state = model(tokens[:, position : position + 1], state)
        steps.append(logits[0, 0])
    return {"sequence": model(tokens)[0][0].numpy(), "step by step": torch.stack(steps).numpy()}


def parity_table(forms: Mapping[str, np.ndarray], reference: np.ndarray) -> pd.DataFrame:
    """Largest logit difference at each position, absolute and as a share of the reference's range of logits.

    Args:
        forms: logits [T, V] by what computed them.
        reference: logits [T, V].
    """
    span, frames = reference.max() - reference.min(), []
    for form, logits in forms.items():
        error = np.abs(logits - reference).max(-1)
        same = logits.argmax(-1) == reference.argmax(-1)
        columns = {"position": range(len(error)), "error": error, "relative_error": error / span, "same_argmax": same}
        frames.append(pd.DataFrame({"form": form, **columns}))
    return pd.concat(frames, ignore_index=True)
