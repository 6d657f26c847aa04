"""Bits per byte: how well a model predicts running text, comparable across vocabularies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.numerics import log_softmax
from rwkvlab.evaluate.protocol import LogitSource, Protocol, make_protocol
from rwkvlab.tokenizer import Tokenizer


@dataclass(frozen=True)
class BitsPerByte:
    """Information in the texts under the model.

    Attributes:
        protocol: how it was obtained.
        bits: sum of -log2 p over every predicted token.
        n_bytes: UTF-8 bytes those tokens stand for.
    """

    protocol: Protocol
    bits: float
    n_bytes: int

    @property
    def value(self) -> float:
        """bits / n_bytes."""
        return self.bits / self.n_bytes


def bits_per_byte(
    source: LogitSource, texts: Sequence[str], tokenizer: Tokenizer, bos: bool = True, task: str = "bits per byte"
) -> BitsPerByte:
    """Measure all of `texts`; each starts from the empty state.

    Args:
        source: what computes the logits.
        texts: running text.
        tokenizer: the model's.
        bos: put token 0 first. Without it, the first token of each text is read but not predicted.
        task: for the protocol.

    Raises:
        RwkvlabError: nothing to predict, or a logit is not finite.
    """
    sequences = [[0] * bos + tokenizer.encode(text) for text in texts]
    predicted = [ids[1:] for ids in sequences]
    n_bytes = sum(len(tokenizer.decode_bytes(ids)) for ids in predicted)
    if not n_bytes or not all(predicted):
        raise RwkvlabError("a text has no token to predict", "texts of two tokens or more", "leave out empty texts")
    nats = 0.0
    for index, logits in source.logits([ids[:-1] for ids in sequences]):
        targets = predicted[index]
        nats -= float(log_softmax(logits)[np.arange(len(targets)), targets].sum())
    if not math.isfinite(nats):
        raise RwkvlabError(f"{source.where} gave logits that are not finite", "finite logits", "check the model")
    protocol = make_protocol(task, source.where, tokenizer, list(texts), bos, len(texts))
    return BitsPerByte(protocol, nats / math.log(2), n_bytes)
