from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rwkvlab.evaluate.numerics import kl_divergence, log_softmax, wilson_interval

logits = hnp.arrays(np.float32, (3, 5), elements=st.floats(-300, 300, width=32))


@given(logits, st.floats(-1e3, 1e3))
def test_log_softmax_is_a_distribution_whatever_the_offset(x, offset):
    got = log_softmax(x)
    np.testing.assert_allclose(np.exp(got).sum(-1), 1)
    np.testing.assert_allclose(log_softmax(x.astype(np.float64) + offset), log_softmax(x.astype(np.float64)), atol=1e-9)


def test_log_softmax_of_known_probabilities():
    np.testing.assert_allclose(np.exp(log_softmax(np.log([[0.2, 0.3, 0.5]]) + 88)), [[0.2, 0.3, 0.5]])


@given(logits, logits)
def test_divergence_is_never_negative_and_zero_for_equals(x, y):
    assert bool((kl_divergence(x, y) >= -1e-9).all())
    np.testing.assert_allclose(kl_divergence(x, x), 0, atol=1e-12)


def test_known_divergence():
    p, q = np.log([0.5, 0.5]), np.log([0.9, 0.1])
    np.testing.assert_allclose(kl_divergence(p, q), 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    np.testing.assert_allclose(kl_divergence(q, p), 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5))


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score without continuity correction)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_the_published_ones(k, n, low, high):
    assert [round(edge, 4) for edge in wilson_interval(k, n)] == [low, high]


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_intervals_hold_the_share_and_mirror(case):
    k, n = case
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n + 1e-12 and k / n - 1e-12 <= high <= 1
    np.testing.assert_allclose(wilson_interval(n - k, n), (1 - high, 1 - low), atol=1e-12)
