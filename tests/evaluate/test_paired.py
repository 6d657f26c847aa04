"""Paired statistics against closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.lambada import LambadaResult
from rwkvlab.evaluate.paired import compare_paired, mcnemar_exact, paired_interval
from rwkvlab.evaluate.protocol import Protocol

PROTOCOL = Protocol(
    task="t", where="a", bos=True, tokenizer="zoo", tokenizer_hash="h", items_hash="i", n=1000, n_available=1000
)


def result(correct: np.ndarray, log_probs: np.ndarray | None = None, **changes) -> LambadaResult:
    log_probs = np.where(correct, -0.1, -2.0) if log_probs is None else log_probs
    return LambadaResult(PROTOCOL.model_copy(update=changes), log_probs, correct)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (3, 9), (40, 12), (1, 0)])
def test_mcnemar_is_the_binomial_test(gained, lost):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert mcnemar_exact(gained, lost) == pytest.approx(expected)


def test_interval_covers_the_true_difference_about_95_times_in_100():
    rng = np.random.default_rng(0)
    n, up, down = 400, 0.06, 0.03
    covered = 0
    for _ in range(2000):
        gained, lost, _ = rng.multinomial(n, [up, down, 1 - up - down])
        low, high = paired_interval(int(gained), int(lost), n)
        covered += low <= up - down <= high
    assert 0.93 <= covered / 2000 <= 0.975


def test_verdicts():
    base = np.ones(1000, bool)
    few = base.copy()
    few[:2] = False
    many = base.copy()
    many[:60] = False
    some = base.copy()
    some[:8] = False
    assert compare_paired(result(base), result(few)).verdict == "within noise"
    assert compare_paired(result(base), result(many)).verdict == "lower"
    assert compare_paired(result(many), result(base)).verdict == "higher"
    other = base.copy()
    other[8:20] = False
    assert compare_paired(result(some), result(other)).verdict == "undecided at n=1000"


def test_perplexity_ratio_and_its_interval():
    rng = np.random.default_rng(1)
    reference = -rng.exponential(1, 1000)
    other = reference - 0.05 + rng.normal(0, 0.2, 1000)
    correct = np.ones(1000, bool)
    paired = compare_paired(result(correct, reference), result(correct, other))
    assert paired.ppl_ratio == pytest.approx(math.exp((reference - other).mean()))
    error = (reference - other).std() / math.sqrt(1000)
    low, high = (math.log(bound) for bound in paired.ppl_interval)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.06)


@pytest.mark.parametrize("change", [{"bos": False}, {"tokenizer_hash": "x"}, {"items_hash": "x"}, {"task": "u"}])
def test_other_protocols_are_refused_by_name(change):
    correct = np.ones(1000, bool)
    with pytest.raises(RwkvlabError, match=next(iter(change))):
        compare_paired(result(correct), result(correct, **change))
