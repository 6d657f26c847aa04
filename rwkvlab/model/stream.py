"""Running many sequences through a model of which only one chunk is in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from rwkvlab.model.chunks import ChunkRange
from rwkvlab.model.rwkv import run_chunk, zero_state
from rwkvlab.spec import ModelSpec

LoadChunk = Callable[[ChunkRange], nn.Module]


@torch.no_grad()
def stream(
    spec: ModelSpec,
    plan: Sequence[ChunkRange],
    load: LoadChunk,
    batches: Sequence[Tensor],
    describe: str = "",
) -> Iterator[tuple[int, Tensor]]:
    """Feed every batch through chunk 1, then every result through chunk 2, and so on.

    Memory holds one chunk and the hidden vectors of all batches, never the whole model.

    Args:
        spec: the model.
        plan: its chunks.
        load: makes one chunk; dropped before the next is made.
        batches: token ids, each [B, T].
        describe: what the progress bar says; silent when empty.

    Yields:
        (batch number, logits [B, T, V]) as the last chunk produces them.
    """
    hidden: list[Tensor] = list(batches)
    v_first: list[Tensor | None] = [None] * len(hidden)
    with tqdm(total=len(plan) * len(hidden), desc=describe, disable=not describe, mininterval=1.0) as progress:
        for part in plan:
            chunk = load(part)
            for index, x in enumerate(hidden):
                empty = zero_state(spec, x.shape[0], x.device, part.first, part.last)
                y, v_first[index], _ = run_chunk(chunk, x, v_first[index], empty)
                progress.update()
                if part.last == spec.n_layer:
                    yield index, y
                else:
                    hidden[index] = y
            del chunk, y
            gc.collect()  # a simulated chunk holds itself in reference cycles


def pad_batches(sequences: Sequence[Sequence[int]], tokens_per_batch: int = 4096) -> Iterator[tuple[list[int], Tensor]]:
    """Sort sequences by length and pack them into right-padded batches.

    A padded position comes after all real ones of its row, and the model is causal, so it changes no real logit.

    Yields:
        the sequences' indices and their ids [B, T], padded with 0.
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    batch: list[int] = []
    for position, index in enumerate(order):
        batch.append(index)
        longest_next = len(sequences[order[position + 1]]) if position + 1 < len(order) else None
        if longest_next is None or longest_next * (len(batch) + 1) > tokens_per_batch:
            width = len(sequences[batch[-1]])
            yield batch, torch.tensor([list(sequences[i]) + [0] * (width - len(sequences[i])) for i in batch])
            batch = []
