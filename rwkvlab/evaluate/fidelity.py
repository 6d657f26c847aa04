"""How closely one implementation of the same model follows another, position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.numerics import kl_divergence, wilson_interval
from rwkvlab.evaluate.protocol import LogitSource


@dataclass(frozen=True)
class Fidelity:
    """Agreement of `other` with `reference` over n positions.

    Attributes:
        reference, other: where each ran.
        max_error, mean_error: absolute logit difference.
        logit_range: largest minus smallest reference logit, the yardstick for the errors.
        mean_kl: mean KL(reference || other), nats.
        agree, n: positions with the same argmax, of all.
    """

    reference: str
    other: str
    max_error: float
    mean_error: float
    logit_range: float
    mean_kl: float
    agree: int
    n: int

    @property
    def top1(self) -> float:
        """Share of positions with the same argmax."""
        return self.agree / self.n

    @property
    def top1_interval(self) -> tuple[float, float]:
        """95 % interval of top1."""
        return wilson_interval(self.agree, self.n)

    def __str__(self) -> str:
        low, high = self.top1_interval
        return (
            f"{self.other} against {self.reference}: top-1 {self.agree}/{self.n} = {self.top1:.2%} "
            f"(95 % {low:.2%} to {high:.2%})  mean KL {self.mean_kl:.2e} nats  logit error max {self.max_error:.3g}, "
            f"mean {self.mean_error:.2g}, of a range of {self.logit_range:.3g}"
        )


def compare(reference: LogitSource, other: LogitSource, sequences: Sequence[Sequence[int]]) -> Fidelity:
    """Compare all positions of all sequences.

    Raises:
        RwkvlabError: no positions, or a logit is not finite.
    """
    if not any(len(sequence) for sequence in sequences):
        raise RwkvlabError("no positions to compare", "at least one token", "give some text")
    expected = dict(reference.logits(sequences))
    errors, divergences, agree, low, high, peak = [], [], 0, np.inf, -np.inf, 0.0
    for index, got in other.logits(sequences):
        want = expected.pop(index)
        if not (np.isfinite(got).all() and np.isfinite(want).all()):
            raise RwkvlabError("a logit is not finite", "finite logits", "locate the tensor: rwkvlab locate")
        difference = np.abs(got - want)
        peak = max(peak, float(difference.max()))
        errors.append(difference.mean(-1))
        divergences.append(kl_divergence(want, got))
        agree += int((got.argmax(-1) == want.argmax(-1)).sum())
        low, high = min(low, float(want.min())), max(high, float(want.max()))
    error, kl = np.concatenate(errors), np.concatenate(divergences)
    return Fidelity(
        reference.where, other.where, peak, float(error.mean()), high - low, float(kl.mean()), agree, len(kl)
    )
