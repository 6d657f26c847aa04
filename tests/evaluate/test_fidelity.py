from __future__ import annotations

import math

import numpy as np
import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.fidelity import compare


class Table:
    """A source with given logits per sequence, in any order."""

    def __init__(self, where: str, tables, order=None) -> None:
        self.where, self.tables, self.order = where, tables, order

    def logits(self, sequences):
        for index in self.order or range(len(sequences)):
            yield index, np.asarray(self.tables[index], np.float32)


P = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
Q = np.log([[0.25, 0.7, 0.05], [0.1, 0.8, 0.1]])
R = np.log([[0.2, 0.2, 0.6]])


def test_known_distributions():
    got = compare(Table("a", [P, R]), Table("b", [Q, R], order=[1, 0]), [[1, 2], [3]])
    assert (got.reference, got.other, got.n, got.agree) == ("a", "b", 3, 2)
    assert math.isclose(got.top1, 2 / 3)
    kl = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.7) + 0.25 * math.log(0.25 / 0.05)
    assert math.isclose(got.mean_kl, kl / 3, rel_tol=1e-5)
    assert math.isclose(got.max_error, math.log(5), rel_tol=1e-5)
    assert math.isclose(got.mean_error, (math.log(2) + math.log(0.7 / 0.25) + math.log(5)) / 9, rel_tol=1e-5)
    assert math.isclose(got.logit_range, math.log(0.8) - math.log(0.1), rel_tol=1e-5)
    low, high = got.top1_interval
    assert low < 2 / 3 < high and "2/3" in str(got)


def test_equal_sources_agree_wholly():
    got = compare(Table("a", [P]), Table("b", [P]), [[1, 2]])
    assert (got.top1, got.max_error) == (1.0, 0.0) and abs(got.mean_kl) < 1e-12


@pytest.mark.parametrize("sequences", [[], [[]]])
def test_nothing_to_compare_is_refused(sequences):
    with pytest.raises(RwkvlabError, match="no positions"):
        compare(Table("a", [P]), Table("b", [P]), sequences)


def test_values_that_are_not_finite_are_refused():
    broken = P.copy()
    broken[0, 0] = np.nan
    for pair in ((P, broken), (broken, P)):
        with pytest.raises(RwkvlabError, match="not finite"):
            compare(Table("a", [pair[0]]), Table("b", [pair[1]]), [[1, 2]])
