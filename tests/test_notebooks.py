"""Every notebook, as papermill runs it, on a tiny random model."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from papermill.inspection import inspect_notebook

from rwkvlab.errors import RwkvlabError
from rwkvlab.notebooks import _own_kernel, notebook_path, parameter_names, run_notebook
from rwkvlab.runs import Run, open_run, project_root
from rwkvlab.spec import LoraRanks, ModelSpec

NOTEBOOKS = sorted((project_root() / "notebooks").glob("*.ipynb"))
TEXT = {"calibration_tokens": 256}
PARAMETERS = {
    "00_doctor": {"widths": "32,64"},
    "10_model": {"max_tokens": 20},
    "20_calibrate": {"tokens": 256},
    "30_encodings": TEXT,
    "50_context_cache": {"precisions": "fp16,a16w8", "chunks": 2, **TEXT},
    "60_evaluate": {"precision": "a16w8", "chunks": 2, "n": 4, "sim_items": 1, **TEXT},
    "70_pareto": {},
}
WITHOUT_MODEL = ("00_doctor", "70_pareto")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with the bundled vocabulary."""
    from rwkvlab.checkpoint import write_random_checkpoint

    lora = LoraRanks(decay=8, iclr=8, value=8, gate=8)
    spec = ModelSpec(n_layer=2, n_embd=64, head_size=32, n_ffn=96, vocab_size=864, lora=lora)
    return write_random_checkpoint(spec, tmp_path_factory.mktemp("model") / "tiny.pth", seed=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def executed(model: Path, results: Path):
    """Runs a notebook the first time it is asked for."""
    done: dict[str, Run] = {}

    def execute(name: str) -> Run:
        if name not in done:
            given = {} if name in WITHOUT_MODEL else {"model": str(model)}
            folder = results / "runs" / name
            run_notebook(name, folder, given | PARAMETERS[name] | {"results": str(results)})
            done[name] = open_run(folder)
        return done[name]

    return execute


def test_every_notebook_is_run_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_notebook_answers_with_tables_figures_and_metrics(name: str, executed) -> None:
    if name == "70_pareto":
        executed("60_evaluate")
    run = executed(name)
    assert run.done and run.metrics and run.params
    figures = sorted(run.figures.glob("*.svg"))
    assert len(figures) >= 2
    for svg in figures:
        assert svg.with_suffix(".png").is_file() and not pd.read_csv(svg.with_suffix(".csv")).empty
    outputs = outputs_of(run.folder / "notebook.ipynb")
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2, "figures are shown"
    assert sum("<table" in output.get("data", {}).get("text/html", "") for output in outputs) >= 2, "versions, a table"
    assert "metrics.json" in outputs[-1]["text"], "the last cell says what was written where"
    noise = [output["text"] for output in outputs if output.output_type == "stream" and output["name"] == "stderr"]
    assert noise == []


def outputs_of(notebook: Path) -> list:
    cells = nbformat.read(notebook, as_version=4).cells
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def test_doctor_proves_the_compiler(executed) -> None:
    metrics = executed("00_doctor").metrics
    assert metrics["proof_ok"] and metrics["works"]["workbench"]
    small, large = metrics["proofs"]
    assert large["ddr_bytes"] > small["ddr_bytes"] > 0


def test_model_agrees_with_the_rwkv_package(executed) -> None:
    metrics = executed("10_model").metrics
    assert metrics["compared_with"] == "rwkv package" and metrics["parity"]
    assert metrics["worst_relative_error"] < 1e-4


def test_context_cache_counts_bytes_for_every_precision_and_chunk(executed) -> None:
    metrics = executed("50_context_cache").metrics
    per_token = metrics["ddr_bytes_per_token"]
    assert per_token["fp16"] > per_token["a16w8"] > 0
    assert len(metrics["graphs"]) == 2 * 2 * 2, "precisions x chunks x decode and prefill"
    sums = {
        p: sum(g["DDR read, B"] + g["DDR write, B"] for g in metrics["graphs"] if is_decode(g, p)) for p in per_token
    }
    assert sums == per_token


def is_decode(graph: dict, precision: str) -> bool:
    return graph["graph"] == "decode" and graph["precision"] == precision


def test_evaluation_carries_protocol_and_fidelity(executed) -> None:
    from rwkvlab.evaluate.evaluation import Evaluation

    found = Evaluation.model_validate(executed("60_evaluate").metrics)
    assert (found.score.n, found.score.protocol.where, found.baseline.protocol.where) == (4, "torch-sim", "torch-fp32")
    assert found.fidelity and (found.fidelity.reference, found.fidelity.other) == ("torch-sim", "htp-sim")
    assert found.fidelity.sequences == 1 and found.fidelity.n > 40 and found.fidelity.mean_kl < 1e-3
    assert found.ddr_bytes_per_token == executed("50_context_cache").metrics["ddr_bytes_per_token"]["a16w8"]


def test_pareto_gathers_what_was_evaluated(executed) -> None:
    executed("60_evaluate")
    metrics = executed("70_pareto").metrics
    assert (metrics["evaluations"], metrics["left_out"], metrics["front"]) == (1, 0, ["a16w8"])
    assert metrics["table"][0]["n"] == 4 and "token 0 first" in metrics["protocol"]


def test_plain_papermill_from_any_folder(executed, tmp_path: Path) -> None:
    runs = executed("60_evaluate").folder.parent
    command = [sys.executable, "-m", "papermill", str(notebook_path("70_pareto")), "out.ipynb", "--no-progress-bar"]
    parameters = ["-p", "runs", str(runs), "-p", "results", str(tmp_path / "results")]
    environment = os.environ | {"PYTHONPATH": str(project_root())}
    subprocess.run([*command, *parameters], cwd=tmp_path, env=environment, check=True, capture_output=True)
    (made,) = (tmp_path / "results" / "runs").iterdir()
    assert "-70_pareto-" in made.name and open_run(made).done


def test_a_failing_cell_is_named_and_the_copy_kept(model: Path, results: Path, tmp_path: Path) -> None:
    given = {"model": str(model), "results": str(results), "precision": "a16w3"}
    with pytest.raises(RwkvlabError, match=r"60_evaluate failed in code cell 4: RwkvlabError: .*a16w3") as caught:
        run_notebook("60_evaluate", tmp_path, given)
    assert str(tmp_path / "notebook.ipynb") in str(caught.value)
    (shown,) = [output for output in outputs_of(tmp_path / "notebook.ipynb") if output.output_type == "error"]
    assert len(shown["traceback"]) == 1 and shown["traceback"][0].startswith("RwkvlabError: the parameters: precision")
    assert not (tmp_path / "metrics.json").exists()


def test_the_kernel_is_this_interpreter_whatever_the_user_has_installed(tmp_path: Path) -> None:
    theirs = tmp_path / ".local" / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"argv": ["/usr/bin/false"], "display_name": "theirs", "language": "python"}')
    find = "from jupyter_client.kernelspec import KernelSpecManager as M; print(M().get_kernel_spec('python3').argv[0])"
    user = {"HOME": str(tmp_path), "JUPYTER_PREFER_ENV_PATH": "0"}
    with _own_kernel() as environment:
        found = subprocess.run(
            [sys.executable, "-c", find], env=environment | user, capture_output=True, text=True, check=True
        )
    assert found.stdout.strip() == sys.executable


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match=r"60_evaluate has no parameter precison; allowed: model, tokenizer"):
        run_notebook("60_evaluate", tmp_path / "run", {"precison": "a16w8"})
    assert not (tmp_path / "run").exists()


def test_an_unknown_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match="no notebook 99_none in"):
        run_notebook("99_none", tmp_path, {})


# --- what a reader finds, without running anything ---


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_typed_and_explained(path: Path) -> None:
    for name, facts in inspect_notebook(str(path)).items():
        assert facts["inferred_type_name"] in ("str", "int", "float", "bool"), name
        assert len(facts["help"]) > 5, name
    assert parameter_names(path)[-2:] == ["results", "run"]


def test_papermill_lists_the_parameters() -> None:
    command = [sys.executable, "-m", "papermill", "--help-notebook", str(notebook_path("60_evaluate"))]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "precision: str" in text and '"fp16", "a16w8", "a16w4"' in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_readable(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert cells[0].source.splitlines()[0].endswith("?"), "one question"
    lines = [cell.source.count("\n") + 1 for cell in cells if cell.cell_type == "code"]
    assert max(lines) <= 25 and statistics.median(lines) <= 8
    text = [cell for cell in cells if cell.cell_type == "markdown"]
    assert len(text) >= 0.6 * len(lines)
    assert not any(line.startswith("def ") for cell in cells for line in cell.source.splitlines()), (
        "logic is in rwkvlab"
    )
