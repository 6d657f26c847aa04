from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rwkvlab import runs
from rwkvlab.errors import RwkvlabError
from rwkvlab.runs import finish_run, finished_runs, open_run, project_root, results_root, short, start_run


def test_a_run_is_done_when_its_metrics_are_there(tmp_path: Path) -> None:
    run = start_run("60_evaluate", {"precision": "a16w8"}, {"model": "ab" * 32}, tmp_path)
    assert re.fullmatch(r"\d{8}T\d{6}Z-60_evaluate-[0-9a-f]{8}", run.folder.name)
    assert run.folder.parent == tmp_path / "runs"
    assert not run.done and list(finished_runs(tmp_path, "60_evaluate")) == []
    finished = finish_run(run, {"acc": 0.5})
    assert finished.done and finished.metrics == {"acc": 0.5} and finished.params == {"precision": "a16w8"}
    assert finished.provenance.started <= (finished.provenance.ended or "")
    assert [found.folder for found in finished_runs(tmp_path, "60_evaluate")] == [run.folder]
    assert list(finished_runs(tmp_path, "70_pareto")) == []


def test_the_hash_covers_parameters_and_inputs(tmp_path: Path) -> None:
    def hash_of(params: dict, inputs: dict) -> str:
        return start_run("x", params, inputs, tmp_path).folder.name.split("-")[2]

    same, again = hash_of({"a": 1}, {"m": "0"}), hash_of({"a": 1}, {"m": "0"})
    assert same == again
    assert len({same, hash_of({"a": 2}, {"m": "0"}), hash_of({"a": 1}, {"m": "1"})}) == 3


def test_the_hash_covers_the_packages_that_made_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = start_run("x", {}, {}, tmp_path).folder.name.split("-")[2]
    real = runs._version
    monkeypatch.setattr(runs, "_version", lambda name: "9.9" if name == "onnxruntime-qnn" else real(name))
    assert start_run("x", {}, {}, tmp_path).folder.name.split("-")[2] != before


def test_two_runs_within_a_second_have_two_folders(tmp_path: Path) -> None:
    folders = {start_run("x", {}, {}, tmp_path).folder for _ in range(3)}
    assert len(folders) == 3


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    run = finish_run(start_run("x", {}, folder=tmp_path / "mine"), {"acc": 1})
    with pytest.raises(RwkvlabError, match="already holds a finished run"):
        start_run("x", {}, folder=run.folder)
    assert run.metrics == {"acc": 1}


def test_a_metric_that_is_no_number_leaves_the_run_unfinished(tmp_path: Path) -> None:
    run = start_run("x", {}, folder=tmp_path / "mine")
    with pytest.raises(RwkvlabError, match="not finite"):
        finish_run(run, {"ppl": float("nan")})
    assert not open_run(run.folder).done


def test_metrics_are_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = runs.write_text_atomic
    monkeypatch.setattr(runs, "write_text_atomic", lambda path, text: (written.append(path.name), write(path, text)))
    finish_run(start_run("x", {}, folder=tmp_path / "mine"), {})
    assert written == ["params.yaml", "provenance.json", "provenance.json", "metrics.json"]


def test_parameters_are_plain_yaml(tmp_path: Path) -> None:
    run = start_run("x", {"model": "x070", "chunks": 2, "recipe": {"precision": "fp16"}}, folder=tmp_path / "mine")
    content = yaml.safe_load((run.folder / "params.yaml").read_text())
    assert content == {"model": "x070", "chunks": 2, "recipe": {"precision": "fp16"}}


def test_provenance_names_code_and_packages_but_no_user_and_no_host(tmp_path: Path) -> None:
    run = start_run("x", {}, folder=tmp_path / "mine")
    assert run.provenance.packages["torch"] and run.provenance.qnn_sdk
    text = (run.folder / "provenance.json").read_text()
    assert str(Path.home()) not in text and str(project_root()) not in text and runs.platform.node() not in text


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_code_version_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert runs._code(tmp_path) == runs.Code(git_sha=None, dirty=None), "not a repository"
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    clean = runs._code(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", clean.git_sha or "") and clean.dirty is False
    (tmp_path / "a").write_text("2")
    assert runs._code(tmp_path) == runs.Code(git_sha=clean.git_sha, dirty=True)
    (tmp_path / "venv").mkdir()
    assert runs._code(tmp_path / "venv").git_sha is None, "somebody else's repository around us"


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runs._code(project_root()) == runs.Code(git_sha=None, dirty=None)


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match="is no run folder"):
        open_run(tmp_path)
    (tmp_path / "provenance.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(RwkvlabError, match="is no run folder"):
        open_run(tmp_path)


def test_results_go_where_they_are_sent(tmp_path: Path) -> None:
    assert results_root(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert results_root() == project_root() / "results"
    (tmp_path / "file").write_text("")
    with pytest.raises(RwkvlabError, match="cannot write"):
        results_root(tmp_path / "file" / "results")


def test_paths_in_the_project_are_shown_relative_to_it(tmp_path: Path) -> None:
    assert short(project_root() / "results" / "runs") == "results/runs"
    assert short(tmp_path) == str(tmp_path)
