"""The commands and options that rwkv-qualcomm's users know, and that they make what our own stations make."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.export import export
from rwkvlab.export.manifest import ExportManifest
from rwkvlab.htp import build
from rwkvlab.quant import provenance
from rwkvlab.quant.calibrate import calibrate
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.quantize import quantize
from rwkvlab.quant.recipe import Recipe
from rwkvlab.range_aids import RangeAids
from rwkvlab.spec import LoraRanks, ModelSpec
from rwkvlab.tokenizer import load_tokenizer
from tests.command_line import fail, files_in, succeed, write_tiny

TINY_V6 = ModelSpec(
    version="6.0", n_layer=2, n_embd=32, head_size=16, n_ffn=64, vocab_size=257, lora=LoraRanks(mix=4, decay=6)
)

BYTES = ("--tokenizer", "bytes")
TEXT = ("--text", "novel.txt")
GRAPHS = {f"tiny_chunk{i}of2{kind}.onnx{end}" for i in (1, 2) for kind in ("", "_prefill") for end in ("", ".data")}
QUANTIZED = ("convert-model", "tiny.pth", "--use_qnn_quant")


def stop() -> None:
    """In the place of long work: the command ends here."""
    raise RwkvlabError("stopped", todo="go on")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What exporting was asked for; nothing is exported."""
    calls: list[tuple] = []
    monkeypatch.setattr(export, "export_model", lambda *words: calls.append(words) or stop())
    return calls


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with samples in two chunks, and what our own stations make of the same text: .npz and encodings."""
    folder = tmp_path_factory.mktemp("desk")
    write_tiny(folder / "tiny.pth")
    (folder / "novel.txt").write_text("It was the best of times, it was the worst of times. " * 200)
    before = Path.cwd()
    os.chdir(folder)
    try:
        reading = [*BYTES, *TEXT, "--tokens", 64, "--length", 32]
        said = {"samples": succeed("make-calibration-samples", "tiny.pth", "samples", 2, *reading)}
        succeed("calibrate", "tiny.pth", *reading, "-o", "tiny.npz")
        for precision in ("a16w8", "a16w4"):
            words = ["--precision", precision, "-o", f"{precision}.encodings"]
            succeed("quantize", "tiny.pth", "--calibration", "tiny.npz", *words)
        said["convert"] = succeed(*following(said["samples"]))
    finally:
        os.chdir(before)
    (folder / "said.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(desk)
    return desk


def following(output: str) -> list[str]:
    """The words of the command that the last line of an output names."""
    words = shlex.split(output.splitlines()[-1])
    assert words[:2] == ["next:", "rwkvlab"], output
    return words[2:]


def said(desk: Path, command: str) -> str:
    return json.loads((desk / "said.json").read_text())[command]


def recipe_of(folder: Path | str):
    return ExportManifest.load(folder).source.recipe


@pytest.mark.parametrize("command", ["make-calibration-samples", "convert-model", "convert-vocab"])
def test_help_shows_how_a_command_is_used(command: str) -> None:
    assert f"Examples:\n    rwkvlab {command}" in succeed(command, "--help")


# --- make-calibration-samples ---


def test_samples_name_the_conversion_that_takes_them(desk: Path) -> None:
    assert "64 samples for each of 2 chunks" in said(desk, "samples")
    words = ["convert-model", "tiny.pth", "--chunks", "2", "--use-qnn-quant", "--calib-data-path", "samples"]
    assert following(said(desk, "samples")) == words
    assert len((desk / "samples" / "input_list_chunk2.txt").read_text().splitlines()) == 64


@pytest.mark.parametrize("spelling", ["--ext_embedding", "--ext-embedding"])
def test_samples_of_embedded_vectors(at_desk: Path, tmp_path: Path, spelling: str) -> None:
    reading = [*BYTES, *TEXT, "--tokens", 4, "--length", 4]
    shown = succeed("make-calibration-samples", "tiny.pth", tmp_path / "s", 1, spelling, *reading)
    assert (tmp_path / "s" / "samples" / "3" / "input_0.bin").stat().st_size == 4 * 32
    words = following(shown)
    assert "--ext-embedding" in words and "--calib-data-path" not in words
    refusal = fail(*QUANTIZED, "--chunks", 1, "--calib_data_path", tmp_path / "s", "-o", tmp_path / "graphs")
    assert "made with --ext-embedding, and no token ids" in refusal and "again without" in refusal
    assert not (tmp_path / "graphs").exists()


def test_samples_are_refused_like_every_output(at_desk: Path, tmp_path: Path) -> None:
    words = ["make-calibration-samples", "tiny.pth"]
    assert "exists already" in fail(*words, "samples", 2, *BYTES)
    assert "ids, the model 257 rows" in fail(*words, tmp_path / "s", 2, "--tokenizer", "world")
    assert "9 chunks" in fail(*words, tmp_path / "s", 9, *BYTES)
    assert files_in(tmp_path) == set()


# --- convert-model ---


def test_converting_leaves_graphs_encodings_and_their_record(desk: Path) -> None:
    assert files_in(desk / "onnx") == GRAPHS | {"export.json", "tiny.encodings", "tiny.yaml"}
    assert following(said(desk, "convert")) == [
        "make-context-cache", "onnx/tiny_chunk1of2.onnx", "caches/tiny-a16w8-SM8650", "SM8650",
    ]  # fmt: skip


def test_converting_from_samples_is_calibrating_on_their_text(desk: Path) -> None:
    """Ids read back from files of states give, to the last bit, what the stations made from the text itself."""
    assert (desk / "onnx" / "tiny.encodings").read_text() == (desk / "a16w8.encodings").read_text()
    source = ExportManifest.load(desk / "onnx").source
    assert source.encodings_sha256 == Encodings.load(desk / "a16w8.encodings").sha256
    assert (source.recipe.precision, source.recipe.graph.chunks) == ("a16w8", 2)
    calibration = source.recipe.calibration
    assert (calibration.text, calibration.tokens, calibration.length) == ("samples", 64, 32)


def test_the_same_conversion_is_found_done_and_another_refused(at_desk: Path) -> None:
    again = following(said(at_desk, "samples"))
    times = {path: path.stat().st_mtime_ns for path in Path("onnx").iterdir()}
    succeed(*again)
    for words in ([*again, "--weights_bitwidth", 4], [*again, "--ext_embedding"], ["convert-model", "tiny.pth"]):
        assert "onnx holds another export (tiny, a16w8, 2 chunks)" in fail(*words)
    assert {path: path.stat().st_mtime_ns for path in Path("onnx").iterdir()} == times


def test_without_quantizing_graphs_are_fp16(at_desk: Path, tmp_path: Path) -> None:
    """Two chunks and the external embedding, by the reference's spelling and default."""
    shown = succeed("convert-model", "tiny.pth", "--ext_embedding", "-o", tmp_path / "onnx")
    assert files_in(tmp_path / "onnx") == GRAPHS | {"export.json", "tiny.emb"}
    source = ExportManifest.load(tmp_path / "onnx").source
    assert (source.recipe.precision, source.encodings_sha256) == ("fp16", None)
    assert "encodings" not in shown and "caches/tiny-fp16-SM8650" in shown


SPELLINGS = [
    ("--use_qnn_quant", "--act_bitwidth", "--weights_bitwidth", "--calib_data_path"),
    ("--use-qnn-quant", "--act-bitwidth", "--weights-bitwidth", "--calib-data-path"),
]


@pytest.mark.parametrize("options", SPELLINGS)
def test_four_bit_weights_by_either_spelling(
    at_desk: Path, tmp_path: Path, exported: list[tuple], options: tuple[str, ...]
) -> None:
    quantizes, act, weights, samples = options
    words = [quantizes, act, 16, weights, 4, samples, "samples", "-o", tmp_path / "onnx"]
    assert "stopped" in fail("convert-model", "tiny.pth", *words)
    _, encodings, recipe, folder, *_ = exported[0]
    assert encodings == Encodings.load("a16w4.encodings")
    assert (recipe.precision, recipe.graph.chunks, folder) == ("a16w4", 2, tmp_path / "onnx")


def test_without_samples_it_reads_text_as_calibrate_does(at_desk: Path, tmp_path: Path, exported: list[tuple]) -> None:
    assert "stopped" in fail(*QUANTIZED, *BYTES, *TEXT, "-o", tmp_path / "onnx")
    succeed("calibrate", "tiny.pth", *BYTES, *TEXT, "-o", tmp_path / "long.npz")
    succeed("quantize", "tiny.pth", "--calibration", tmp_path / "long.npz", "-o", tmp_path / "long.encodings")
    assert exported[0][1] == Encodings.load(tmp_path / "long.encodings")
    assert exported[0][2].calibration.tokens == 8192


REFUSED = [
    ([*QUANTIZED, "--act_bitwidth", 8], "--act-bitwidth 8; allowed: 16"),
    ([*QUANTIZED, "--weights_bitwidth", 6], "--weights-bitwidth 6; allowed: 8 or 4"),
    (["convert-model", "tiny.pth", "--weights_bitwidth", 4], "--weights-bitwidth without --use-qnn-quant"),
    (["convert-model", "tiny.pth", "--calib_data_path", "samples"], "--calib-data-path without --use-qnn-quant"),
    ([*QUANTIZED, "--calib_data_path", "samples", *TEXT], "--text beside --calib-data-path"),
    ([*QUANTIZED, "--chunks", 1, "--calib_data_path", "samples"], "keep the chunks parameter the same: --chunks 2"),
    ([*QUANTIZED, "--chunks", 3], "3 chunks; allowed: 1 to 2"),
    ([*QUANTIZED, "--calib_data_path", "nowhere"], "nowhere holds no calibration samples"),
    ([*QUANTIZED, "--linear_param_encodings", "nowhere"], "cannot read encodings nowhere"),
    ([*QUANTIZED, "--linear_param_encodings", "old.encodings"], "version '0.6.1'; allowed: 1.0.0"),
    ([*QUANTIZED], "has .* ids, the model 257 rows"),  # the default tokenizer is the bundled model's
    (["convert-model", "nowhere.pth"], "no checkpoint at nowhere.pth"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_converted_is_refused_before_the_work(
    at_desk: Path, tmp_path: Path, words: list, message: str
) -> None:
    Path("old.encodings").write_text('{"version": "0.6.1", "activation_encodings": {}, "param_encodings": {}}')
    assert re.search(message, fail(*words, "-o", tmp_path / "onnx"))
    assert files_in(tmp_path) == set()


def test_complete_encodings_are_exported_as_they_are(at_desk: Path, tmp_path: Path) -> None:
    words = ["--linear_param_encodings", "a16w4.encodings", "--chunks", 1, "-o", tmp_path / "onnx"]
    shown = succeed(*QUANTIZED, *words)
    assert ExportManifest.load(tmp_path / "onnx").source.encodings_sha256 == Encodings.load("a16w4.encodings").sha256
    assert recipe_of(tmp_path / "onnx").precision == "a16w4"
    assert "encodings: a16w4.encodings" in shown and ".encodings" not in "".join(files_in(tmp_path))


def test_weights_of_another_tool_are_kept_and_the_rest_is_chosen(at_desk: Path, tmp_path: Path) -> None:
    """Coarser 4-bit grids for the linears that rwkv-qualcomm gives 4 bits, nothing else in the file, no record."""
    ours, wide = Encodings.load("a16w4.encodings"), Encodings.load("a16w8.encodings")
    four = {name: e for name, e in ours.params.items() if ".ffn." in name or name.endswith("att.output.weight")}
    theirs = {name: replace(encoding, scale=2 * encoding.scale) for name, encoding in four.items()}
    Encodings(theirs).save(tmp_path / "w4.encodings")
    words = ["--linear_param_encodings", tmp_path / "w4.encodings", "--calib_data_path", "samples"]
    succeed(*QUANTIZED, *words, "-o", tmp_path / "onnx")
    made = Encodings.load(tmp_path / "onnx" / "tiny.encodings")
    assert made == Encodings(wide.params | theirs, wide.activations)
    assert ExportManifest.load(tmp_path / "onnx").source.encodings_sha256 == made.sha256
    recipe = recipe_of(tmp_path / "onnx")
    assert (recipe.precision, recipe.exceptions) == ("att-a16w8+ffn-a16w4", ())
    assert not provenance.sidecar(tmp_path / "onnx" / "tiny.encodings").exists()


def test_range_aids_of_the_record_hold_while_calibrating(at_desk: Path, tmp_path: Path, exported: list[tuple]) -> None:
    """Weights from a file whose record rewrites an RWKV-6, activations from text."""
    model = Checkpoint.open(write_random_checkpoint(TINY_V6, tmp_path / "v6.pth", seed=1))
    recipe = Recipe(precision="a16w4", aids=RangeAids(scale_kv=True, halve_every=1))
    rows = np.arange(64).reshape(2, 32)
    statistics = calibrate(model.with_aids(recipe.aids), rows, "numbers", "0" * 64, progress=False)
    theirs, file = quantize(model, statistics, recipe), tmp_path / "w4.encodings"
    provenance.save(file, theirs, provenance.describe(model, recipe, statistics.source, theirs))
    words = ["convert-model", model.path, "--use_qnn_quant", "--linear_param_encodings", file, *BYTES, *TEXT]
    assert "stopped" in fail(*words, "-o", tmp_path / "onnx")
    _, encodings, used, *_ = exported[0]
    assert encodings.params == theirs.params and encodings.activations != theirs.activations
    assert (used.aids, used.precision, used.graph.chunks) == (recipe.aids, "a16w4", 2)


def test_encodings_a_user_edited_are_not_replaced(at_desk: Path, tmp_path: Path) -> None:
    edited = tmp_path / "onnx" / "tiny.encodings"
    edited.parent.mkdir()
    edited.write_text("mine")
    words = [*QUANTIZED, "--calib_data_path", "samples", "-o", tmp_path / "onnx"]
    assert "tiny.encodings exists already" in fail(*words)
    assert (edited.read_text(), files_in(edited.parent)) == ("mine", {"tiny.encodings"})


# --- make-context-cache ---


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that compiling was asked for; nothing is compiled."""
    folders: list[Path] = []
    monkeypatch.setattr(build, "build_cache", lambda folder, *_: folders.append(folder) or stop())
    return folders


def test_the_first_chunk_stands_for_the_whole_export(at_desk: Path, tmp_path: Path, compiled: list[Path]) -> None:
    first = following(said(at_desk, "convert"))[1]
    for given in (first, at_desk / first, "onnx"):
        assert "stopped" in fail("make-context-cache", given, tmp_path / "cache", "SM8650")
    assert compiled == [Path("onnx"), at_desk / "onnx", Path("onnx")]


@pytest.mark.parametrize(
    "given", ["onnx/tiny_chunk2of2.onnx", "onnx/tiny_chunk1of2_prefill.onnx", "onnx/export.json", "onnx/other.onnx"]
)
def test_another_file_of_an_export_is_refused(at_desk: Path, tmp_path: Path, compiled: list, given: str) -> None:
    refusal = fail("make-context-cache", given, tmp_path / "cache", "SM8650")
    assert f"{given} is not the first chunk" in refusal and "onnx/tiny_chunk1of2.onnx" in refusal
    assert compiled == []


@pytest.mark.parametrize("given", ["novel.txt", "tiny.pth", "tiny_chunk1of2.onnx"])
def test_a_file_outside_an_export_is_refused(at_desk: Path, tmp_path: Path, compiled: list, given: str) -> None:
    assert "holds no finished export" in fail("make-context-cache", given, tmp_path / "cache", "SM8650")
    assert compiled == []


# --- convert-vocab ---


def test_a_vocabulary_is_converted_into_a_folder_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("1 'é' 2\n5 b'\\xc3' 1\n2 ' ' 1\n")
    wanted = "1 b'\\xc3\\xa9' 2\n5 b'\\xc3' 1\n2 b'\\x20' 1\n"
    shown = succeed("convert-vocab", tmp_path / "v.txt", tmp_path)
    assert (tmp_path / "b_v.txt").read_text() == wanted
    assert f"{tmp_path}/b_v.txt: 3 tokens" in shown
    succeed("convert-vocab", tmp_path / "b_v.txt", tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == wanted
    assert load_tokenizer(tmp_path / "again.txt").hash == load_tokenizer(tmp_path / "v.txt").hash


def test_the_standard_vocabulary_gets_the_references_name(tmp_path: Path) -> None:
    succeed("convert-vocab", "world", tmp_path)
    assert files_in(tmp_path) == {"b_rwkv_vocab_v20230424.txt"}
    assert load_tokenizer(tmp_path / "b_rwkv_vocab_v20230424.txt").hash == load_tokenizer("world").hash


def test_converted_vocabularies_replace_nothing(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("1 'a' 1\n")
    (tmp_path / "b_v.txt").write_text("mine")
    assert "--force" in fail("convert-vocab", tmp_path / "v.txt", tmp_path)
    assert "has no vocabulary file" in fail("convert-vocab", "bytes", tmp_path)
    assert "cannot read vocabulary" in fail("convert-vocab", tmp_path / "nowhere.txt", tmp_path)
    assert (tmp_path / "b_v.txt").read_text() == "mine"
    succeed("convert-vocab", tmp_path / "v.txt", tmp_path, "--force")
    assert (tmp_path / "b_v.txt").read_text() == "1 b'\\x61' 1\n"
