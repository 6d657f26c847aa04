"""What goes wrong at the command line: one line, a way out, exit code 2, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rwkvlab.export.manifest import ExportManifest
from rwkvlab.htp.cache import ContextCache
from tests.command_line import check_refusal, fail, files_in, succeed, write_tiny

BYTES = ("--tokenizer", "bytes")
CALIBRATION = (*BYTES, "--tokens", 256)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that is right: checkpoint, calibration, encodings, graphs."""
    folder = tmp_path_factory.mktemp("sound")
    model = write_tiny(folder / "tiny.pth")
    succeed("calibrate", model, *CALIBRATION, "-o", folder / "tiny.npz")
    succeed("quantize", model, "--calibration", folder / "tiny.npz", "-o", folder / "a16w8.encodings")
    succeed("export", model, "-o", folder / "graphs", "--chunks", 2)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder, in which a refused command must leave nothing."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def refused_by_all(model: Path, sound: Path, out: Path) -> str:
    """The refusal of a bad checkpoint, the same from every command that opens one."""
    encodings = sound / "a16w8.encodings"
    lines = {
        fail("info", model),
        fail("calibrate", model, *CALIBRATION, "-o", out / "x.npz"),
        fail("quantize", model, "--calibration", sound / "tiny.npz", "-o", out / "x.encodings"),
        fail("export", model, "-o", out / "graphs"),
        fail("evaluate", model, *BYTES, "-o", out / "x.json"),
        fail("evaluate", model, *BYTES, "--encodings", encodings, "-o", out / "x.json"),
    }
    assert files_in(out) == set()
    assert len(lines) == 1
    return lines.pop()


def altered(path: Path, sound: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """The sound checkpoint with its tensors changed."""
    tensors = torch.load(sound / "tiny.pth", weights_only=True)
    change(tensors)
    torch.save(tensors, path)
    return path


# --- checkpoints ---


def test_missing_file(sound: Path, out: Path) -> None:
    assert "no checkpoint at nowhere.pth" in refused_by_all(Path("nowhere.pth"), sound, out)


def test_truncated_pth(sound: Path, out: Path, tmp_path: Path) -> None:
    data = (sound / "tiny.pth").read_bytes()
    for kept in (0, 3, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.pth").write_bytes(data[:kept])
        line = refused_by_all(tmp_path / "cut.pth", sound, out)
        assert "cut.pth is " in line and "download the file again" in line


def test_pth_that_is_not_rwkv(sound: Path, out: Path, tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(3, 3)}, tmp_path / "other.pth")
    assert "not an RWKV checkpoint: its 1 tensors are named conv1.weight" in refused_by_all(
        tmp_path / "other.pth", sound, out
    )


class Malicious:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch '{self.trace}'",)


def test_malicious_pickle_is_named_and_does_not_run(sound: Path, out: Path, tmp_path: Path) -> None:
    torch.save({"emb.weight": Malicious(tmp_path / "pwned")}, tmp_path / "evil.pth")
    line = refused_by_all(tmp_path / "evil.pth", sound, out)
    assert "wants to run code when opened (posix.system); nothing was run" in line
    assert not (tmp_path / "pwned").exists()


def test_missing_tensors_are_named(sound: Path, out: Path, tmp_path: Path) -> None:
    model = altered(tmp_path / "gap.pth", sound, lambda t: (t.pop("blocks.1.att.k_k"), t.pop("ln_out.bias")))
    assert "2 missing tensors: blocks.1.att.k_k, ln_out.bias" in refused_by_all(model, sound, out)


def test_misshapen_tensors_are_named(sound: Path, out: Path, tmp_path: Path) -> None:
    model = altered(tmp_path / "odd.pth", sound, lambda t: t.update({"blocks.1.ffn.value.weight": torch.zeros(32, 63)}))
    line = refused_by_all(model, sound, out)
    assert "1 misshapen tensors: blocks.1.ffn.value.weight is [32, 63], not [32, 64]" in line


def test_nan_weights_are_found_and_never_measured(sound: Path, out: Path, tmp_path: Path) -> None:
    name = "blocks.1.att.key.weight"
    model = altered(tmp_path / "nan.pth", sound, lambda t: t[name].__setitem__((0, 0), float("nan")))
    lines = [
        fail("info", model),
        fail("calibrate", model, *CALIBRATION, "-o", out / "x.npz"),
        fail("evaluate", model, *BYTES, "-o", out / "x.json"),
        fail("export", model, "-o", out / "graphs", "--chunks", 2),
    ]
    assert all(name in line and "finite weights" in line for line in lines)
    assert not (out / "graphs" / "export.json").exists()
    assert files_in(out) <= {"graphs", "graphs/.source.json"} | first_chunk(out)


def first_chunk(out: Path) -> set[str]:
    """Graphs that were finished before the bad weight was met."""
    return {name for name in files_in(out) if name.startswith("graphs/nan_chunk1of2")}


# --- tokenizers and texts ---


def test_vocabulary_smaller_than_the_models(sound: Path, out: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.txt"
    small.write_text("".join(f"{value + 1} {bytes([value])!r} 1\n" for value in range(100)))
    refusal = "tokenizer 'small.txt' has 101 ids, the model 257 rows"
    assert refusal in fail("calibrate", sound / "tiny.pth", "--tokenizer", small, "-o", out / "x.npz")
    assert refusal in fail("evaluate", sound / "tiny.pth", "--tokenizer", small, "-o", out / "x.json")
    assert files_in(out) == set()


@pytest.mark.parametrize(
    "line",
    ["2 __import__('os').system('touch pwned') 1", "2 [1, 2] 2", "-1 'b' 1", "1 'b' 1", "2 'b' 7", "2 'b", "\x1b"],
)
def test_hostile_vocabulary_line_is_named_and_does_not_run(
    sound: Path, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text(f"1 'a' 1\n{line}\n")
    said = fail("calibrate", sound / "tiny.pth", "--tokenizer", "vocab.txt", "-o", out / "x.npz")
    assert "vocab.txt line 2: " in said and "\x1b" not in said
    assert files_in(tmp_path) == {"vocab.txt", "out"}


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_empty_calibration_text(sound: Path, out: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.txt").write_text(text)
    said = fail("calibrate", sound / "tiny.pth", *BYTES, "--text", tmp_path / "empty.txt", "-o", out / "x.npz")
    assert "empty.txt holds no text" in said
    assert files_in(out) == set()


def test_too_little_calibration_text_is_counted(sound: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x" * 200)
    said = fail("calibrate", sound / "tiny.pth", *BYTES, "--text", tmp_path / "short.txt", "-o", out / "x.npz")
    assert "200 tokens, enough for 1 rows of 128; allowed: 64 rows" in said
    assert files_in(out) == set()


# --- options ---


def test_more_chunks_than_layers(sound: Path, out: Path) -> None:
    for words in (["export", sound / "tiny.pth", "-o", out / "x"], ["calibrate", sound / "tiny.pth", *CALIBRATION]):
        target = [] if words[0] == "export" else ["-o", out / "x.npz"]
        assert "error: 3 chunks; allowed: 1 to 2, the model's layers" in fail(*words, *target, "--chunks", 3)
    assert files_in(out) == set()


def test_unknown_soc(sound: Path, out: Path) -> None:
    said = fail("make-context-cache", sound / "graphs", out / "cache", "SM9999")
    assert "unknown SoC 'SM9999'; allowed: QCM6490, SC8280X, SC8380, " in said
    assert files_in(out) == set()


def test_unknown_recipe_key_is_named(sound: Path, out: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "typo.yaml"
    words = ["quantize", sound / "tiny.pth", "--calibration", sound / "tiny.npz", "--recipe", recipe]
    for text, key in [("precison: a16w4\n", "precison"), ("graph: {chunk: 2}\n", "graph.chunk")]:
        recipe.write_text(text)
        said = fail(*words, "-o", out / "x.encodings")
        assert f"typo.yaml: {key}: " in said and "precision" in said
    for text in ("", "- a\n", "a: [\n", "!!python/object/apply:os.system ['touch pwned']\n"):
        recipe.write_text(text)
        fail(*words, "-o", out / "x.encodings")
    assert files_in(out) == set()


@pytest.mark.parametrize(
    "options", [["--percentile", 100], ["--activation-range", "percentile", "--percentile", "nan"]]
)
def test_percentile_out_of_range(sound: Path, out: Path, options: list) -> None:
    words = ["quantize", sound / "tiny.pth", "--calibration", sound / "tiny.npz", "-o", out / "x.encodings"]
    assert "percentile" in fail(*words, *options)
    assert files_in(out) == set()


def test_prefill_block_that_the_graph_cannot_have(sound: Path, out: Path) -> None:
    assert "prefill_tokens" in fail("export", sound / "tiny.pth", "-o", out / "x", "--prefill-tokens", 17)
    assert files_in(out) == set()


def test_output_below_a_file(sound: Path, out: Path) -> None:
    file = out / "file"
    file.write_text("mine")
    model, encodings = sound / "tiny.pth", sound / "a16w8.encodings"
    lines = [
        fail("calibrate", model, *CALIBRATION, "-o", file / "x.npz"),
        fail("quantize", model, "--calibration", sound / "tiny.npz", "-o", file / "x.encodings"),
        fail("export", model, "--encodings", encodings, "-o", file),
        fail("make-context-cache", sound / "graphs", file / "cache", "SM8650"),
        fail("evaluate", model, *BYTES, "-o", file / "x.json"),
    ]
    assert all(f"cannot write into {file}; " in line for line in lines)
    assert file.read_text() == "mine" and files_in(out) == {"file"}


# --- files of another model ---


def test_encodings_for_another_model(sound: Path, out: Path, tmp_path: Path) -> None:
    other, encodings = write_tiny(tmp_path / "other.pth", seed=2), sound / "a16w8.encodings"
    lines = [
        fail("export", other, "--encodings", encodings, "-o", out / "graphs"),
        fail("evaluate", other, *BYTES, "--encodings", encodings, "-o", out / "x.json"),
    ]
    assert all("a16w8.encodings was made for tiny (sha256 " in line for line in lines)
    said = fail("quantize", other, "--calibration", sound / "tiny.npz", "-o", out / "x.encodings")
    assert "the calibration is of another model" in said
    assert files_in(out) == set()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "0.6.1"}', '{"version": "1.0.0"}'])
def test_damaged_encodings(sound: Path, out: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.encodings").write_text(content)
    assert "bad.encodings" in fail(
        "export", sound / "tiny.pth", "--encodings", tmp_path / "bad.encodings", "-o", out / "x"
    )
    assert files_in(out) == set()


def test_damaged_record_beside_the_encodings(sound: Path, out: Path, tmp_path: Path) -> None:
    encodings = tmp_path / "own.encodings"
    encodings.write_bytes((sound / "a16w8.encodings").read_bytes())
    for content in ("precision: a16w8\n", "- x\n", "a: [\n"):
        encodings.with_suffix(".yaml").write_text(content)
        assert "own.yaml is not the record" in fail(
            "export", sound / "tiny.pth", "--encodings", encodings, "-o", out / "x"
        )
    assert files_in(out) == set()


def test_damaged_calibration(sound: Path, out: Path, tmp_path: Path) -> None:
    data = (sound / "tiny.npz").read_bytes()
    for content in (b"", b"no zip", data[: len(data) // 2]):
        (tmp_path / "bad.npz").write_bytes(content)
        words = ["quantize", sound / "tiny.pth", "--calibration", tmp_path / "bad.npz", "-o", out / "x.encodings"]
        assert "cannot read the calibration" in fail(*words)
    assert files_in(out) == set()


def test_folders_that_are_no_export_and_no_cache(sound: Path, out: Path, tmp_path: Path) -> None:
    assert "no finished export" in fail("make-context-cache", tmp_path, out / "cache", "SM8650")
    assert "no finished context cache" in fail("evaluate", tmp_path, *BYTES)
    assert "no finished context cache" in fail("fidelity", sound / "graphs", sound / "tiny.pth", *BYTES)
    assert files_in(out) == set()


# --- a full disk ---

FULL = """
mount -t tmpfs -o size="$1" none "$2" || exit 99
folder=$2; shift 2
"$@"; code=$?
cd "$folder" && find . -type f >&1
exit $code
"""


@cache
def private_mounts() -> list[str] | None:
    """How this user gets a mount of their own; None where the system grants none."""
    for prefix in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            done = subprocess.run([*prefix, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
        except OSError:
            return None
        if done.returncode == 0:
            return prefix
    return None


def on_a_full_disk(folder: Path, size: str, *words: object) -> set[str]:
    """Run a command whose output folder is a tiny disk; check that it says so and return the files it left."""
    prefix = private_mounts()
    if prefix is None:
        pytest.skip("needs a tmpfs of its own: neither root's nor a user namespace's mount is allowed here")
    command = [*prefix, "sh", "-c", FULL, "sh", size, str(folder), sys.executable, "-m", "rwkvlab", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = check_refusal(done.returncode, done.stderr)
    assert f"cannot write {folder}/" in said and "No space left" in said and "/." not in said.split(";")[0]
    return {line.removeprefix("./") for line in done.stdout.splitlines() if line.startswith("./")}


def test_disk_full_while_calibrating(sound: Path, out: Path) -> None:
    assert on_a_full_disk(out, "4k", "calibrate", sound / "tiny.pth", *CALIBRATION, "-o", out / "x.npz") == set()


def test_disk_full_while_quantizing(sound: Path, out: Path) -> None:
    words = ["quantize", sound / "tiny.pth", "--calibration", sound / "tiny.npz", "-o", out / "x.encodings"]
    assert on_a_full_disk(out, "16k", *words) == set()


def test_disk_full_while_exporting(sound: Path, out: Path) -> None:
    left = on_a_full_disk(out, "160k", "export", sound / "tiny.pth", "-o", out / "graphs")
    assert left <= {"graphs/.source.json"}


def test_disk_full_while_compiling(sound: Path, out: Path) -> None:
    left = on_a_full_disk(out, "160k", "make-context-cache", sound / "graphs", out / "cache", "SM8650")
    assert left <= {"cache/tiny_chunk1of2.log"}


# --- kill -9 ---


def kill_after(sign: Callable[[], list[Path]], end: Path, *words: object) -> dict[Path, int]:
    """Kill a command and its children as soon as `sign` finds files; these files and their times.

    `end` is written last: a command that was faster than the kill was not killed in the middle, and fails the test.
    """
    command = [sys.executable, "-m", "rwkvlab", *map(str, words)]
    started = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while not sign():
            assert started.poll() is None, started.communicate()[0].decode()
            time.sleep(0.002)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
    assert not end.exists(), "finished before it could be killed"
    return {path: path.stat().st_mtime_ns for path in sign()}


def unchanged(times: dict[Path, int]) -> bool:
    return bool(times) and {path: path.stat().st_mtime_ns for path in times} == times


def visible(folder: Path) -> set[str]:
    """Files but for the hidden temporary ones, which the killed process could not remove and nothing reads."""
    return {name for name in files_in(folder) if not name.startswith(".")}


def test_kill_while_exporting(sound: Path, out: Path) -> None:
    graphs = out / "graphs"
    words = ["export", sound / "tiny.pth", "-o", graphs, "--chunks", 2]
    finished = kill_after(lambda: sorted(graphs.glob("*.onnx")), graphs / "export.json", *words)
    assert "holds no finished export" in fail("make-context-cache", graphs, out / "cache", "SM8650")
    succeed(*words)
    assert unchanged(finished)
    assert len(ExportManifest.load(graphs).graphs) == 4
    assert visible(graphs) == visible(sound / "graphs")
    assert all((graphs / path.name).stat().st_size == path.stat().st_size for path in (sound / "graphs").glob("*.data"))


def test_kill_while_compiling(sound: Path, out: Path) -> None:
    cache_folder = out / "cache"
    words = ["make-context-cache", sound / "graphs", cache_folder, "SM8650"]

    def compiled() -> list[Path]:
        return [cache_folder / f"{p.stem}.bin" for p in sorted((cache_folder / ".compiled").glob("[!.]*.json"))]

    finished = kill_after(compiled, cache_folder / "manifest.json", *words)
    assert "holds no finished context cache" in fail("evaluate", cache_folder, *BYTES)
    succeed(*words)
    assert unchanged(finished)
    assert len(ContextCache.open(cache_folder).manifest.graphs) == 4
    names = {path.stem for path in (sound / "graphs").glob("*.onnx")}
    assert visible(cache_folder) == {f"{n}.{end}" for n in names for end in ("bin", "onnx", "log")} | {"manifest.json"}
