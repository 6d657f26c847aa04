"""Logits kept in memory, so that three implementations can be compared pairwise and each runs once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.numerics import kl_divergence
from rwkvlab.evaluate.protocol import LogitSource


@dataclass(frozen=True)
class Recorded:
    """A source of logits that has already run.

    Attributes:
        where: where it ran.
        recorded: logits [T, V] by sequence number.
    """

    where: str
    recorded: Mapping[int, np.ndarray]

    def logits(self, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """What was recorded; `sequences` are those it was recorded on.

        Raises:
            RwkvlabError: they are others, as their lengths tell.
        """
        kept = sorted(self.recorded.items())
        if [len(ids) for ids in sequences] != [len(logits) for _, logits in kept]:
            raise RwkvlabError(
                f"{len(sequences)} sequences asked of a recording of {len(kept)} others",
                "the sequences that were recorded, in their order",
                "record the source on these",
            )
        yield from kept


def record(source: LogitSource, sequences: Sequence[Sequence[int]], progress: bool = True) -> Recorded:
    """Run `source` once over `sequences`."""
    scored = tqdm(source.logits(sequences), total=len(sequences), desc=source.where, disable=not progress)
    return Recorded(source.where, dict(scored))


def divergences(reference: Recorded, other: Recorded) -> dict[int, np.ndarray]:
    """KL(reference || other) in nats at every position, by sequence number."""
    return {index: kl_divergence(want, other.recorded[index]) for index, want in sorted(reference.recorded.items())}
