"""Evaluations side by side: which may be compared, which are on the front, what is damaged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.evaluation import Evaluation
from rwkvlab.evaluate.lambada import LambadaResult
from rwkvlab.evaluate.numerics import kl_divergence
from rwkvlab.evaluate.recorded import Recorded, divergences, record
from rwkvlab.runs import finish_run, start_run
from rwkvlab.tables.scores import (
    change_table,
    comparable,
    divergence_table,
    find_evaluations,
    item_table,
    reading_table,
    result_table,
)
from tests.test_report import evaluation, protocol


def with_protocol(found: Evaluation, **changes) -> Evaluation:
    score = found.score.model_copy(update={"protocol": found.score.protocol.model_copy(update=changes)})
    return found.model_copy(update={"score": score})


@pytest.mark.parametrize(
    "change", [{"items_hash": "other"}, {"n": 499}, {"bos": False}, {"tokenizer_hash": "other"}, {"task": "lambada"}]
)
def test_another_protocol_is_left_out(change: dict) -> None:
    old, new = with_protocol(evaluation(precision="fp16"), **change), evaluation()
    assert comparable([old, new]) == ([new], [old])


def test_where_it_ran_does_not_part_them_and_the_newest_counts() -> None:
    first = with_protocol(evaluation(precision="fp16"), where="torch-fp32").model_copy(update={"recipe_hash": "1"})
    again = evaluation().model_copy(update={"ddr_bytes_per_token": 2.0})
    assert comparable([first, evaluation(), again]) == ([first, again], [])


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(RwkvlabError, match=r"no evaluations to compare.*60_evaluate"):
        comparable([])


def test_evaluations_are_found_and_damaged_ones_named(tmp_path: Path) -> None:
    run = start_run("60_evaluate", {}, folder=tmp_path / "good")
    finish_run(run, evaluation().model_dump(mode="json"))
    start_run("60_evaluate", {}, folder=tmp_path / "unfinished")
    assert find_evaluations(tmp_path) == [evaluation()]
    bad = finish_run(start_run("60_evaluate", {}, folder=tmp_path / "bad"), {"acc": 1})
    with pytest.raises(RwkvlabError, match=r"bad/metrics\.json holds no evaluation"):
        find_evaluations(tmp_path)
    (bad.folder / "metrics.json").write_text("{")
    with pytest.raises(RwkvlabError, match=r"bad/metrics\.json holds no evaluation"):
        find_evaluations(tmp_path)


def test_result_table_reads_as_it_was_measured() -> None:
    cheap = evaluation(precision="a16w4").model_copy(update={"ddr_bytes_per_token": 1.0e6, "fidelity": None})
    table = result_table([cheap, evaluation()])
    assert table.precision.tolist() == ["a16w8", "a16w4"], "most bytes first"
    assert table.on_front.tolist() == [False, True], "as accurate with fewer bytes"
    first, second = reading_table(table).to_dict("records")
    assert first["DDR MB / token"] == "1.670" and first["k/n"] == "450/500" and first["acc, %"] == "90.0"
    assert first["fidelity, top-1 %"] == "99.90" and second["fidelity, top-1 %"] == "not run"


def result(log_probs: list[float], correct: list[bool]) -> LambadaResult:
    return LambadaResult(protocol("torch-sim"), np.array(log_probs), np.array(correct))


def test_items_are_compared_one_by_one() -> None:
    before = result([-0.1, -0.2, -3, -4], [True, True, False, False])
    after = result([-0.2, -2, -1, -4], [True, False, True, False])
    items = item_table(before, after)
    assert items.surprise_float.tolist() == [0.1, 0.2, 3, 4]
    assert change_table(items)["items"].tolist() == [1, 1, 1, 1]
    assert math.exp(items.surprise_float.mean()) == pytest.approx(before.ppl)


class Source:
    where = "torch-fp32"
    runs = 0

    def logits(self, sequences):
        self.runs += 1
        for index in reversed(range(len(sequences))):
            yield index, np.full((len(sequences[index]), 3), float(index))


def test_a_recorded_source_runs_once_and_keeps_its_order() -> None:
    source = Source()
    kept = record(source, [[1], [1, 2]], progress=False)
    assert [index for index, _ in kept.logits([[1], [1, 2]])] == [0, 1]
    assert list(kept.logits([[1], [1, 2]]))[1][1].shape == (2, 3) and source.runs == 1
    for others in ([[1]], [[1, 2], [1]], []):
        with pytest.raises(RwkvlabError, match="were recorded"):
            list(kept.logits(others))


def test_divergence_by_position() -> None:
    rng = np.random.default_rng(0)
    a, b = (Recorded(name, {0: rng.normal(size=(4, 5)), 1: rng.normal(size=(2, 5))}) for name in ("a", "b"))
    table = divergence_table([(a, b), (a, a)])
    assert table.comparison.unique().tolist() == ["a → b", "a → a"] and len(table) == 12
    expected = kl_divergence(a.recorded[1], b.recorded[1])
    found = table[(table.comparison == "a → b") & (table.sequence == 1)]
    np.testing.assert_allclose(found.kl, expected)
    assert divergences(a, a)[0].max() == 0
