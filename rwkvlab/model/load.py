"""Building chunks from a checkpoint: from BlinkDL's tensors to the modules' parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model import v5
from rwkvlab.model.aids import apply_aids
from rwkvlab.model.rwkv import Chunk, Model


def load_chunk(checkpoint: Checkpoint, first: int, last: int, embedding: bool = True) -> Chunk:
    """Build one chunk with a checkpoint's weights, in float32; reads no other block's weights.

    ln0, which BlinkDL's models apply to the embedded tokens, is folded into the embedding table; the checkpoint's range
    aids rewrite the weights.
    """
    with torch.device("meta"):
        chunk = Chunk(checkpoint.spec, first, last, embedding)
    weights = {name: _weight(checkpoint, name, like.shape) for name, like in chunk.state_dict().items()}
    chunk.load_state_dict(weights, assign=True)
    apply_aids(chunk, checkpoint.aids)
    for module in chunk.modules():
        if isinstance(module, v5.TimeMix):
            module.prepare()
    return chunk.eval().requires_grad_(False)


def load_model(checkpoint: Checkpoint) -> Model:
    """The whole model as one chunk."""
    return Model([load_chunk(checkpoint, 0, checkpoint.spec.n_layer)]).eval()


def folded_embedding(checkpoint: Checkpoint) -> Tensor:
    """Embedding table [V, C] with blocks.0.ln0 applied to each row."""
    weight, bias = checkpoint.tensor("blocks.0.ln0.weight"), checkpoint.tensor("blocks.0.ln0.bias")
    table = checkpoint.tensor("emb.weight")
    return nn.functional.layer_norm(table, weight.shape, weight, bias)


def _weight(checkpoint: Checkpoint, name: str, shape: torch.Size) -> Tensor:
    """The tensor for parameter `name` of a chunk, from what BlinkDL's files call and store differently."""
    stored, bare = checkpoint.shapes, name.removesuffix(".weight")
    if name == "emb.weight":
        return folded_embedding(checkpoint)
    if name in stored:
        tensor = checkpoint.tensor(name)
        # 5.1 has one decay and one bonus per head, 5.2 one per channel
        return (
            tensor.reshape(-1, 1).expand(shape).clone()
            if tensor.numel() == shape[0] < shape.numel()
            else tensor.reshape(shape)
        )
    if bare in stored:  # a low-rank matrix, stored input-first
        return checkpoint.tensor(bare).T.contiguous()
    if "time_maa_w2." in name:  # one of five, stored together
        stem, index, _ = name.rsplit(".", 2)
        return checkpoint.tensor(stem)[int(index)].T.contiguous()
    if "time_maa_" in name:  # RWKV-5 stores the share of the current token, not of the one before
        return 1 - checkpoint.tensor(name.replace("time_maa_", "time_mix_")).reshape(shape)
    return checkpoint.tensor(name)
