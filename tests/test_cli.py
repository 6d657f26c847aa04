"""The commands as a user meets them: one after the other, each by what the last one said comes next."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from math import exp, prod
from pathlib import Path

import pytest
import torch
import yaml

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.cli import overview
from rwkvlab.files import sha256_file
from rwkvlab.model.load import load_model
from rwkvlab.quant.calibrate import Calibration
from rwkvlab.quant.encodings import Encodings
from tests.command_line import fail, files_in, process, run, succeed, write_tiny

COMMANDS = ["doctor", "info", "calibrate", "quantize", "export", "make-context-cache", "evaluate", "fidelity"]
COMMANDS += ["locate", "demo"]
BYTES = ("--tokenizer", "bytes")
PASSAGES = ["The red fox saw the red fox", "one two one two one two", "a b c a b c a b c", "so it goes and so it goes"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and a text, from which the whole way has been gone by following `next:`."""
    folder = tmp_path_factory.mktemp("desk")
    write_tiny(folder / "tiny.pth")
    (folder / "items.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES))
    before = Path.cwd()
    os.chdir(folder)
    try:
        said = {"info": succeed("info", "tiny.pth")}
        said["calibrate"] = succeed(*following(said["info"]), "--tokens", 256)
        said["quantize"] = succeed(*following(said["calibrate"]))
        said["export"] = succeed(*following(said["quantize"]), "--chunks", 2, "--ext_embedding")
        said["make-context-cache"] = succeed(*following(said["export"]))
        evaluate = following(said["make-context-cache"])
        said["evaluate"] = succeed(*evaluate, "--text", "items.jsonl", "-o", "cache.json")
        said["fidelity"] = succeed(*following(said["evaluate"]), "--positions", 100)
    finally:
        os.chdir(before)
    (folder / "said.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(desk)
    return desk


def said(desk: Path, command: str) -> str:
    return json.loads((desk / "said.json").read_text())[command]


def following(output: str) -> list[str]:
    """The words of the command that the last line of an output names."""
    words = shlex.split(output.splitlines()[-1])
    assert words[:2] == ["next:", "rwkvlab"], output
    return words[2:]


# --- help and errors ---


def test_without_a_command_the_help_lists_all_of_them() -> None:
    assert all(f"\n  {command} " in succeed() for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_how_a_command_is_used(command: str) -> None:
    assert f"Examples:\n    rwkvlab {command}" in succeed(command, "--help")


@pytest.mark.parametrize("words", [["info"], ["info", "a", "b"], ["info", "--bogus"], ["bogus"], ["export", "m"]])
def test_wrong_usage_is_one_line_that_points_to_the_help(words: list[str]) -> None:
    assert "--help" in fail(*words)


def test_a_number_out_of_range_is_one_line() -> None:
    assert "'--chunks'" in fail("calibrate", "x.pth", "-o", "x.npz", "--chunks", 0)
    assert "'--precision'" in fail("export", "x.pth", "-o", "x", "--precision", "int3")


def test_python_m_rwkvlab_is_the_command() -> None:
    done = process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rwkvlab 0.")
    assert process("info", "nowhere.pth").stderr.startswith("error: no checkpoint at nowhere.pth; ")


def test_ctrl_c_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overview.doctor, "examine", interrupt)
    result = run("doctor")
    assert result.exit_code == 130
    assert result.stderr.startswith("error: interrupted") and result.stderr.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(overview.doctor, "examine", break_down)
    assert isinstance(run("doctor").exception, ZeroDivisionError)


def test_a_hostile_name_cannot_move_the_cursor() -> None:
    assert "\x1b" not in fail("info", "\x1b[2Jmodel.pth")


# --- the way through ---


def test_the_way_through_leaves_the_files_it_names(desk: Path) -> None:
    graphs = {f"tiny_chunk{i}of2{kind}" for i in (1, 2) for kind in ("", "_prefill")}
    exported = files_in(desk / "exports" / "tiny-a16w8")
    assert exported == {f"{g}.onnx{end}" for g in graphs for end in ("", ".data")} | {"export.json", "tiny.emb"}
    compiled = files_in(desk / "caches" / "tiny-a16w8-SM8650")
    assert compiled == {f"{g}.{end}" for g in graphs for end in ("bin", "onnx", "log")} | {"manifest.json", "tiny.emb"}


def test_info_counts_what_is_in_the_file(desk: Path) -> None:
    tensors = torch.load(desk / "tiny.pth", weights_only=True)
    total = sum(prod(tensor.shape) for tensor in tensors.values())
    shown = said(desk, "info")
    assert f"{total:,}" in shown and f"{2 * total:,}" in shown
    assert sha256_file(desk / "tiny.pth") in shown
    large = sum(prod(t.shape) for n, t in tensors.items() if n.count(".weight") and t.ndim == 2 and "blocks" in n)
    rest = sum(
        prod(t.shape) for n, t in tensors.items() if t.ndim < 2 or t.shape[0] == 1 or n.endswith(("r_k", "emb.weight"))
    )
    assert f"{large // 2 + 2 * rest + (total - large - rest):,}" in shown


def test_calibrate_reads_what_it_was_told_to(desk: Path) -> None:
    source = Calibration.load(desk / "tiny.npz").source
    assert (source.text, source.tokens, source.length, source.seed) == ("stories", 256, 128, 0)
    assert source.model_sha256 == sha256_file(desk / "tiny.pth")


def test_encodings_have_a_record_of_how_they_were_made(desk: Path) -> None:
    record = yaml.safe_load((desk / "quant_encodings" / "tiny" / "a16w8.yaml").read_text())
    source = Calibration.load(desk / "tiny.npz").source
    assert record["model_sha256"] == sha256_file(desk / "tiny.pth")
    assert (record["calibration_sha256"], record["calibration_tokens"]) == (source.text_sha256, 256)
    assert record["recipe"]["precision"] == "a16w8" and record["recipe"]["calibration"]["tokens"] == 256
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]


def test_make_context_cache_shows_bytes_as_in_the_manifest(desk: Path) -> None:
    manifest = json.loads((desk / "caches" / "tiny-a16w8-SM8650" / "manifest.json").read_text())
    decode = [graph for graph in manifest["graphs"] if graph["graph"]["kind"] == "decode"]
    moved = sum(graph["ddr_read_bytes"] + graph["ddr_write_bytes"] for graph in decode)
    shown = said(desk, "make-context-cache")
    assert f"DDR bytes per token (decode, all chunks): {moved:,}" in shown
    assert all(f"{graph['binary']['bytes']:,}" in shown for graph in manifest["graphs"])


def test_fidelity_of_the_same_encodings_is_close(desk: Path) -> None:
    shown = said(desk, "fidelity")
    assert "htp-sim against torch-sim: top-1 128/128" in shown or "top-1 127/128" in shown


# --- evaluate ---


def scores(path: Path) -> list[float]:
    return [item["log_prob"] for item in json.loads(path.read_text())["items"]]


def log_prob(checkpoint: Checkpoint, text: str, bos: bool) -> float:
    """Summed log-probability of the last word's bytes, straight from the definition."""
    ids = [0] * bos + list(text.encode())
    logits, _ = load_model(checkpoint)(torch.tensor([ids]))
    steps = torch.log_softmax(logits[0].double(), -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return float(steps[-len(text.rsplit(" ", 1)[1]) - 1 :].sum())


@pytest.mark.parametrize("bos", [True, False])
def test_evaluate_a_checkpoint_by_the_definition(at_desk: Path, tmp_path: Path, bos: bool) -> None:
    out = tmp_path / "float.json"
    words = ["evaluate", "tiny.pth", *BYTES, "--text", "items.jsonl", "-o", out]
    shown = succeed(*words) if bos else succeed(*words, "--no-bos")
    expected = [log_prob(Checkpoint.open("tiny.pth"), text, bos) for text in PASSAGES]
    assert scores(out) == pytest.approx(expected, abs=1e-4)
    assert json.loads(out.read_text())["ppl"] == pytest.approx(exp(-sum(expected) / 4), rel=1e-4)
    assert f"[torch-fp32, token 0 first: {'yes' if bos else 'no'}]" in shown


def test_evaluate_a_cache_agrees_with_its_simulation_in_torch(at_desk: Path, tmp_path: Path) -> None:
    out = tmp_path / "sim.json"
    encodings = "quant_encodings/tiny/a16w8.encodings"
    shown = succeed("evaluate", "tiny.pth", *BYTES, "--encodings", encodings, "--text", "items.jsonl", "-o", out)
    assert "[torch-sim, " in shown and "[htp-sim, " in said(at_desk, "evaluate")
    assert scores(Path("cache.json")) == pytest.approx(scores(out), abs=0.1)


def test_a_partial_evaluation_says_so(at_desk: Path) -> None:
    shown = succeed("evaluate", "tiny.pth", *BYTES, "--text", "items.jsonl", "--limit", 3)
    assert "partial: 3 of 4 items" in shown


def test_a_mistyped_folder_is_not_taken_for_a_checkpoint() -> None:
    assert "nothing at caches/tyni; allowed: a checkpoint" in fail("evaluate", "caches/tyni")


def test_where_is_a_promise(at_desk: Path) -> None:
    cache = "caches/tiny-a16w8-SM8650"
    assert "is a checkpoint" in fail("evaluate", "tiny.pth", *BYTES, "--where", "sim")
    assert "is a context cache" in fail("evaluate", cache, *BYTES, "--where", "torch")
    assert "compiled in" in fail("evaluate", cache, *BYTES, "--encodings", "quant_encodings/tiny/a16w8.encodings")


def test_fidelity_wants_the_model_and_the_encodings_of_the_cache(at_desk: Path, tmp_path: Path) -> None:
    cache, encodings = "caches/tiny-a16w8-SM8650", Path("quant_encodings/tiny/a16w8.encodings")
    other = write_tiny(tmp_path / "other.pth", seed=2)
    assert "was compiled from tiny " in fail("fidelity", cache, other, "--encodings", encodings, *BYTES)
    assert "not compiled from no encodings" in fail("fidelity", cache, "tiny.pth", *BYTES)
    loaded, edited = Encodings.load(encodings), tmp_path / "edited.encodings"
    wider = dict(loaded.activations)
    wider["head.input"] = replace(wider["head.input"], scale=2 * wider["head.input"].scale)
    Encodings(loaded.params, wider).save(edited)
    assert "not compiled from" in fail("fidelity", cache, "tiny.pth", "--encodings", edited, *BYTES)


# --- recipes and records ---


def test_options_name_the_file_they_make(at_desk: Path) -> None:
    options = ["--precision", "a16w4", "--activation-range", "percentile", "--percentile", 99.9]
    shown = succeed("quantize", "tiny.pth", "--calibration", "tiny.npz", *options)
    made = Path("quant_encodings/tiny/a16w4-p99.9.encodings")
    assert str(made) in shown
    bits = {name: encoding.bits for name, encoding in Encodings.load(made).params.items()}
    assert (bits["blocks.1.ffn.key.weight"], bits["head.weight"]) == (4, 8)


def test_a_recipe_asks_for_the_calibration_it_names(at_desk: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("precision: a16w4\ncalibration: {tokens: 200}\n")
    words = ["quantize", "tiny.pth", "--calibration", "tiny.npz", "--recipe", recipe]
    assert "replace your recipe" in fail(*words, "-o", tmp_path / "mine.encodings", "--force")
    succeed(*words, "-o", tmp_path / "asked.encodings")  # 200 tokens are two rows of 128, as were calibrated
    recipe.write_text("precision: a16w4\ncalibration: {tokens: 8192}\n")
    assert "--tokens 256" in fail(*words, "-o", tmp_path / "other.encodings")
    assert "beside --recipe" in fail(*words, "--precision", "a16w8")


def test_fp16_needs_no_encodings(at_desk: Path) -> None:
    assert "without --encodings" in fail("quantize", "tiny.pth", "--calibration", "tiny.npz", "--precision", "fp16")
    assert "quantize first" in fail("export", "tiny.pth", "--precision", "a16w8", "-o", "nothing")
    assert not Path("nothing").exists()


def test_encodings_without_a_record_need_a_precision(at_desk: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.encodings"
    alone.write_text(Path("quant_encodings/tiny/a16w8.encodings").read_text())
    words = ["export", "tiny.pth", "--encodings", alone, "-o", tmp_path / "graphs"]
    assert "--precision" in fail(*words)
    assert "8 bits" in fail(*words, "--precision", "a16w4")
    assert "chunks" in fail(*words, "--precision", "a16w8", "--chunks", 9)
    assert files_in(tmp_path) == {"alone.encodings"}


def test_edited_encodings_are_taken_and_said_to_be_edited(at_desk: Path, tmp_path: Path) -> None:
    for suffix in (".encodings", ".yaml"):
        (tmp_path / f"own{suffix}").write_text(Path(f"quant_encodings/tiny/a16w8{suffix}").read_text())
    loaded = Encodings.load(tmp_path / "own.encodings")
    head = loaded.params["head.weight"]
    Encodings(loaded.params | {"head.weight": replace(head, scale=2 * head.scale)}, loaded.activations).save(
        tmp_path / "own.encodings"
    )
    shown = succeed("export", "tiny.pth", "--encodings", tmp_path / "own.encodings", "-o", tmp_path / "graphs")
    assert "own.encodings was edited" in shown


# --- what a user made stays ---


def test_nothing_is_overwritten_unless_forced(at_desk: Path) -> None:
    encodings = "quant_encodings/tiny/a16w8.encodings"
    commands = [
        (["calibrate", "tiny.pth", *BYTES, "--tokens", 256, "-o", "tiny.npz"], "tiny.npz"),
        (["quantize", "tiny.pth", "--calibration", "tiny.npz"], encodings),
        (["evaluate", "tiny.pth", *BYTES, "--text", "items.jsonl", "--limit", 1, "-o", "cache.json"], "cache.json"),
    ]
    for words, path in commands:
        content = Path(path).read_bytes()
        assert "--force" in fail(*words)
        assert Path(path).read_bytes() == content
    words, path = commands[1]
    Path(path).write_text("mine")
    succeed(*words, "--force")
    assert Encodings.load(path).params


def test_folders_of_something_else_are_refused_and_equal_ones_reused(at_desk: Path) -> None:
    graphs, cache, encodings = "exports/tiny-a16w8", "caches/tiny-a16w8-SM8650", "quant_encodings/tiny/a16w8.encodings"
    times = {path: path.stat().st_mtime_ns for folder in (graphs, cache) for path in Path(folder).iterdir()}
    export = ["export", "tiny.pth", "--encodings", encodings, "-o", graphs, "--ext-embedding"]
    succeed(*export, "--chunks", 2)
    succeed("make-context-cache", graphs, cache, "sm8650")
    assert "recipe.graph" in (refusal := fail(*export, "--chunks", 1)) and "--force" in refusal
    assert "SoC SM8650 -> SM8550" in fail("make-context-cache", graphs, cache, "SM8550")
    assert {path: path.stat().st_mtime_ns for path in times} == times


# --- without the workbench ---

WITHOUT_TORCH = """
import sys
for name in ("torch", "aimet_torch", "onnx", "safetensors", "pandas", "matplotlib", "papermill"):
    sys.modules[name] = None  # makes importing it fail
from rwkvlab.cli import main
sys.argv[0] = "rwkvlab"
main()
"""


def without_torch(desk: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    return subprocess.run(command, cwd=desk, capture_output=True, text=True, check=False)


def test_a_cache_is_evaluated_without_torch(desk: Path) -> None:
    done = without_torch(desk, "evaluate", "caches/tiny-a16w8-SM8650", *BYTES, "--text", "items.jsonl", "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert "[htp-sim, token 0 first: yes, partial: 2 of 4 items]" in done.stdout


def test_doctor_runs_without_torch(desk: Path) -> None:
    assert "What works on this machine" in without_torch(desk, "doctor").stdout


@pytest.mark.parametrize(
    "words", [["info", "tiny.pth"], ["evaluate", "tiny.pth"], ["fidelity", "caches/x", "tiny.pth"]]
)
def test_a_torch_command_without_torch_says_what_to_install(desk: Path, words: list[str]) -> None:
    words = [word.replace("caches/x", "caches/tiny-a16w8-SM8650") for word in words]
    done = without_torch(desk, *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install 'rwkvlab[workbench]'" in done.stderr
