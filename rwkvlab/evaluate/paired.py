"""Two results on the same items, compared item by item: pairing removes most of the noise of a small test set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.lambada import LambadaResult

MARGIN = 0.01
"""Accuracy differences inside one point either way count as noise."""
RESAMPLES, AT_ONCE = 10_000, 200
"""Bootstrap resamples, and how many are in memory together."""


@dataclass(frozen=True)
class Paired:
    """`other` against `reference`.

    Attributes:
        reference, other: where each ran.
        n: items.
        gained, lost: items only `other` predicts, and only `reference`.
        difference: accuracy of other minus reference.
        interval: of the difference, 95 %.
        p_value: McNemar's exact test of gained = lost.
        ppl_ratio: perplexity of other over reference.
        ppl_interval: of the ratio, 95 %, by bootstrap over items.
    """

    reference: str
    other: str
    n: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    ppl_ratio: float
    ppl_interval: tuple[float, float]

    @property
    def verdict(self) -> str:
        """In words: within noise, higher, lower, or undecided."""
        low, high = self.interval
        if low >= -MARGIN and high <= MARGIN:
            return "within noise"
        if low > 0:
            return "higher"
        return "lower" if high < 0 else f"undecided at n={self.n}"

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"{self.other} against {self.reference}: acc {100 * self.difference:+.2f} points (95 % {low:+.2f} to "
            f"{high:+.2f}, +{self.gained} -{self.lost} of {self.n}, McNemar p = {self.p_value:.3g}): {self.verdict}; "
            f"ppl x{self.ppl_ratio:.4f} (95 % {self.ppl_interval[0]:.4f} to {self.ppl_interval[1]:.4f})"
        )


def compare_paired(reference: LambadaResult, other: LambadaResult, seed: int = 0) -> Paired:
    """Compare two results of the same protocol.

    Raises:
        RwkvlabError: another task, token-0 rule, tokenizer or item set.
    """
    check_comparable(reference, other)
    gained = int((other.correct & ~reference.correct).sum())
    lost = int((reference.correct & ~other.correct).sum())
    ratio, ppl_interval = perplexity_ratio(reference.log_probs, other.log_probs, seed)
    return Paired(
        reference=reference.protocol.where,
        other=other.protocol.where,
        n=reference.n,
        gained=gained,
        lost=lost,
        difference=(gained - lost) / reference.n,
        interval=paired_interval(gained, lost, reference.n),
        p_value=mcnemar_exact(gained, lost),
        ppl_ratio=ratio,
        ppl_interval=ppl_interval,
    )


def check_comparable(reference: LambadaResult, other: LambadaResult) -> None:
    """Refuse two numbers that were not obtained in the same way; only where they ran may differ.

    Raises:
        RwkvlabError: naming what differs.
    """
    a, b = (result.protocol.model_dump(exclude={"where"}) for result in (reference, other))
    different = [f"{key} {a[key]} and {b[key]}" for key in a if a[key] != b[key]]
    if different:
        raise RwkvlabError(
            f"these results are not comparable: {'; '.join(different)}",
            "the same task, token-0 rule, tokenizer and items",
            "evaluate both in the same way",
        )


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided p-value that gains and losses are equally likely: a binomial test on the items that changed."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def paired_interval(gained: int, lost: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of the difference of two paired proportions (Agresti and Min 2005: half an item in each cell)."""
    total, b, c = n + 2, gained + 0.5, lost + 0.5
    middle = (b - c) / total
    half = z * math.sqrt((b + c) - (b - c) ** 2 / total) / total
    return max(-1.0, middle - half), min(1.0, middle + half)


def perplexity_ratio(reference: np.ndarray, other: np.ndarray, seed: int) -> tuple[float, tuple[float, float]]:
    """Ratio of perplexities from per-item log-probabilities, and its 95 % percentile-bootstrap interval."""
    surplus = reference - other
    rng, n = np.random.default_rng(seed), len(surplus)
    means = [surplus[rng.integers(0, n, (AT_ONCE, n))].mean(1) for _ in range(RESAMPLES // AT_ONCE)]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return math.exp(float(surplus.mean())), (math.exp(low), math.exp(high))
