"""How a number was obtained. It travels with the number, and numbers with different protocols are not compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol as Interface

import numpy as np
from pydantic import BaseModel, ConfigDict

from rwkvlab.tokenizer import Tokenizer


class LogitSource(Interface):
    """Anything that scores token sequences: torch float, torch QuantSim, a context cache."""

    @property
    def where(self) -> str:
        """Where it runs: `torch-fp32`, `torch-sim`, `htp-sim` or `device:<model>`."""
        ...

    def logits(self, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (index, logits [T, V]) of every sequence, in any order."""
        ...


class Protocol(BaseModel):
    """What makes two numbers comparable.

    Attributes:
        task: e.g. "lambada".
        where: what computed the logits.
        bos: whether token 0 was put before each item.
        tokenizer, tokenizer_hash: which vocabulary, and its digest.
        items_hash: digest of the items' texts, in order.
        n: items measured.
        n_available: items in the set; n < n_available is a partial run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    task: str
    where: str
    bos: bool
    tokenizer: str
    tokenizer_hash: str
    items_hash: str
    n: int
    n_available: int

    @property
    def partial(self) -> str:
        """ "" for a full run, else how much was measured."""
        return "" if self.n == self.n_available else f"partial: {self.n} of {self.n_available} items"


def make_protocol(
    task: str, where: str, tokenizer: Tokenizer, texts: Sequence[str], bos: bool, n_available: int
) -> Protocol:
    """The protocol of a run over `texts`."""
    return Protocol(
        task=task,
        where=where,
        bos=bos,
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.hash[:12],
        items_hash=hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12],
        n=len(texts),
        n_available=n_available,
    )
