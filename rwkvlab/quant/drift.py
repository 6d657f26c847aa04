"""How quantization error builds up along one long text: in the recurrent state, and in what it predicts.

Recipes that look alike on LAMBADA's eighty tokens can rank the other way round after thousands, because an error in the
state stays there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.numerics import kl_divergence, log_softmax
from rwkvlab.model.load import load_chunk
from rwkvlab.model.rwkv import Model
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.sim import simulate


@dataclass(frozen=True)
class DriftPoint:
    """One bucket of positions.

    Attributes:
        start, end: first position of the bucket, and one past its last.
        reference_ppl, ppl: per token, over the bucket, of the float and the quantized model.
        mean_kl: KL(float || quantized), nats, over the bucket.
        drift: ||S_q - S|| / ||S|| of each layer's WKV state at the bucket's end.
    """

    start: int
    end: int
    reference_ppl: float
    ppl: float
    mean_kl: float
    drift: tuple[float, ...]


@torch.no_grad()
def measure_drift(
    checkpoint: Checkpoint,
    encodings: Encodings,
    tokens: Sequence[int],
    bucket: int = 256,
    htp_arch: int = 75,
    progress: bool = True,
) -> list[DriftPoint]:
    """Read one text with the float and the simulated model side by side, both wholly in memory.

    Args:
        checkpoint: the model.
        encodings: what quantizes it.
        tokens: the text's ids, the leading token 0 included.
        bucket: positions per point.
        htp_arch: whose QuantSim configuration is used.
        progress: show a bar.

    Raises:
        RwkvlabError: fewer tokens than one bucket and the one it predicts.
    """
    if len(tokens) <= bucket:
        raise RwkvlabError(f"a text of {len(tokens)} tokens", f"more than one bucket of {bucket}", "give a longer text")
    layers = checkpoint.spec.n_layer
    reference = Model([load_chunk(checkpoint, 0, layers)])
    quantized = Model([simulate(load_chunk(checkpoint, 0, layers), encodings, htp_arch)])
    ids, points = torch.tensor([list(tokens)]), []
    states: tuple[list[Tensor] | None, list[Tensor] | None] = None, None
    for start in tqdm(range(0, len(tokens) - 1, bucket), desc="drift", disable=not progress):
        end = min(start + bucket, len(tokens) - 1)
        want, reference_state = reference(ids[:, start:end], states[0])
        got, state = quantized(ids[:, start:end], states[1])
        states = reference_state, state
        next_ids = np.array(tokens[start + 1 : end + 1])
        points.append(_point(start, end, want[0].numpy(), got[0].numpy(), next_ids, reference_state, state))
    return points


def _point(
    start: int,
    end: int,
    want: np.ndarray,
    got: np.ndarray,
    next_ids: np.ndarray,
    reference_state: list[Tensor],
    state: list[Tensor],
) -> DriftPoint:
    pairs = list(zip(reference_state[1::3], state[1::3], strict=True))
    return DriftPoint(
        start=start,
        end=end,
        reference_ppl=_perplexity(want, next_ids),
        ppl=_perplexity(got, next_ids),
        mean_kl=float(kl_divergence(want, got).mean()),
        drift=tuple(float((q - s).norm() / s.norm()) for s, q in pairs),
    )


def _perplexity(logits: np.ndarray, next_ids: np.ndarray) -> float:
    return math.exp(-float(log_softmax(logits)[np.arange(len(next_ids)), next_ids].mean()))
