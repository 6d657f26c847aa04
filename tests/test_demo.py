"""The demo, reduced: few stories, two precisions, one story on the simulator."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rwkvlab import demo
from rwkvlab.demo import Step, plan, run_demo
from rwkvlab.errors import RwkvlabError
from rwkvlab.runs import Run, open_run, start_run


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, printed: list[str]) -> Run:
    class Console(demo.Console):
        def __init__(self, **options) -> None:
            super().__init__(record=True, **{**options, "width": 100})
            consoles.append(self)

    consoles: list[Console] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "Console", Console)
        folder = run_demo(tmp_path_factory.mktemp("results"), 20, 1, ["fp16", "a16w8"], workers=1)
    printed += consoles[0].export_text().splitlines()
    return open_run(folder)


def test_leaves_notebooks_figures_metrics_and_report(run: Run) -> None:
    assert run.done and run.folder.parent.name == "runs" and "-demo-" in run.folder.name
    steps = sorted(path.name for path in (run.folder / "notebooks").iterdir())
    assert steps == [
        "00_doctor",
        "10_model",
        "20_calibrate",
        "30_encodings",
        "50_context_cache",
        "60_evaluate-a16w8",
        "60_evaluate-fp16",
        "70_pareto",
    ]
    for step in (run.folder / "notebooks").iterdir():
        assert open_run(step).done and (step / "notebook.ipynb").is_file()
        assert len(list((step / "figures").glob("*.csv"))) >= 2
    assert (run.folder / "report.html").stat().st_size > 100_000
    assert set(run.metrics["seconds"]) == set(steps)


def test_metrics_hold_the_table(run: Run) -> None:
    by_precision = {found["precision"]: found for found in run.metrics["evaluations"]}
    assert set(by_precision) == {"fp16", "a16w8"}
    for found in by_precision.values():
        assert found["score"]["n"] == 20 and found["fidelity"]["sequences"] == 1
        assert found["score"]["k"] >= 14, "the bundled model knows its stories"
    assert by_precision["fp16"]["ddr_bytes_per_token"] > by_precision["a16w8"]["ddr_bytes_per_token"]
    with (run.folder / "table.csv").open() as file:
        assert [row["precision"] for row in csv.DictReader(file)] == ["fp16", "a16w8"], "most bytes first"


def test_prints_progress_table_and_path(run: Run, printed: list[str]) -> None:
    text = "\n".join(printed)
    for step in run.metrics["seconds"]:
        assert any(line.strip().startswith(step) and line.endswith(" s") for line in printed)
    found = run.metrics["evaluations"][0]["score"]
    assert f"{found['k']}/{found['n']}" in text and "MB" in text and "KL" in text
    assert str(run.folder / "report.html") in text.replace("\n", "")


def test_the_report_shows_what_was_measured(run: Run) -> None:
    html = (run.folder / "report.html").read_text()
    for found in run.metrics["evaluations"]:
        assert f"{found['score']['k']}/{found['score']['n']}" in html
    assert html.count("<figure>") >= 18


def test_a_failing_notebook_stops_the_demo_and_leaves_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [[Step("60_evaluate", "broken", {"precision": "a16w3", "results": str(tmp_path)})]]
    monkeypatch.setattr(demo, "plan", lambda *_: broken)
    with pytest.raises(RwkvlabError, match="60_evaluate failed in code cell"):
        run_demo(tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "notebooks" / "60_evaluate-broken" / "notebook.ipynb").is_file()
    assert not open_run(folder).done and not (folder / "report.html").exists()


def test_steps_come_after_what_they_need(tmp_path: Path) -> None:
    run = start_run("demo", {}, folder=tmp_path)
    groups = plan(run, {"results": str(tmp_path)}, 500, 13, ["fp16", "a16w4"], "SM8650")
    order = {step.name: number for number, group in enumerate(groups) for step in group}
    assert order["20_calibrate"] < order["60_evaluate-fp16"] < order["70_pareto"], "calibrated once"
    assert order["20_calibrate"] < order["30_encodings"]
    assert order["60_evaluate-a16w4"] < order["50_context_cache"], "compiled side by side, once"
    evaluations = [step for group in groups for step in group if step.notebook == "60_evaluate"]
    assert [step.parameters["n"] for step in evaluations] == [500, 500]


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match="no checkpoint at"):
        run_demo(tmp_path / "results", model=str(tmp_path / "none.pth"))
    assert not (tmp_path / "results").exists()
