"""The torch model, float or simulated, as a source of logits for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model.chunks import ChunkRange, plan_chunks
from rwkvlab.model.load import load_chunk
from rwkvlab.model.rwkv import Chunk
from rwkvlab.model.stream import pad_batches, stream
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.sim import simulate
from rwkvlab.tokenizer import check_sequences

TOKENS_PER_BATCH = 4096
LOGITS_PER_BATCH = 2**26
"""Bounds of one forward pass: padded tokens, and scores (256 MB of float32)."""
BATCHES_IN_FLIGHT = 16
"""Batches whose hidden vectors wait between chunks: at most 64k tokens."""


@dataclass(frozen=True)
class TorchSource:
    """A checkpoint evaluated in torch, one chunk in memory at a time.

    Attributes:
        checkpoint: the model.
        encodings: None or empty for float32; otherwise AIMET's QuantSim applies them.
        htp_arch: whose QuantSim configuration is used.
        chunks: pieces the model is loaded in; no number depends on it.
    """

    checkpoint: Checkpoint
    encodings: Encodings | None = None
    htp_arch: int = 75
    chunks: int = 1

    @property
    def where(self) -> str:
        """`torch-sim` with encodings, `torch-fp32` without."""
        return "torch-sim" if self.encodings and self.encodings.params else "torch-fp32"

    def logits(self, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (index, logits [T, V]) of every sequence.

        Raises:
            RwkvlabError: an empty sequence, or ids outside the model's vocabulary.
        """
        spec = self.checkpoint.spec
        check_sequences(sequences, spec.vocab_size)
        plan = plan_chunks(spec.n_layer, self.chunks)
        groups = list(pad_batches(sequences, min(TOKENS_PER_BATCH, LOGITS_PER_BATCH // spec.vocab_size)))
        at_once = max(1, len(groups)) if self.chunks == 1 else BATCHES_IN_FLIGHT
        for start in range(0, len(groups), at_once):
            part = groups[start : start + at_once]
            for number, logits in stream(spec, plan, self._load, [ids for _, ids in part]):
                for row, index in enumerate(part[number][0]):
                    yield index, logits[row, : len(sequences[index])].numpy()

    def _load(self, part: ChunkRange) -> Chunk:
        chunk = load_chunk(self.checkpoint, part.first, part.last)
        return simulate(chunk, self.encodings, self.htp_arch) if self.encodings else chunk
