"""Log-probabilities, divergences and intervals, in float64 numpy."""

from __future__ import annotations

import math

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def kl_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference || other) in nats at each position, from logits [..., V]."""
    p, q = log_softmax(reference), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1)


def wilson_interval(k: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a proportion k/n (Wilson 1927); holds near 0 and 1, where the normal one does not."""
    p, z2 = k / n, z * z
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
