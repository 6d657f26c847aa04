"""Context caches: made once, reused at once, and refused when they are not what they say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rwkvlab.htp.build as build
from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.device.local import LocalTarget
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.export import export_model
from rwkvlab.export.manifest import ExportManifest
from rwkvlab.htp.build import build_cache
from rwkvlab.htp.cache import MANIFEST, ContextCache
from rwkvlab.htp.session import HtpSession
from rwkvlab.quant.encodings import Encodings
from rwkvlab.soc import find_soc
from rwkvlab.spec import LoraRanks, ModelSpec
from tests.pipeline import build_to, recipe_for

SM8650 = find_soc("SM8650")
SPEC = ModelSpec(
    n_layer=2, n_embd=32, head_size=16, n_ffn=48, vocab_size=20, lora=LoraRanks(decay=4, iclr=4, value=4, gate=4)
)


def records(folder):
    """Of graphs compiled so far; a record being written has a name that starts with a dot."""
    return [path for path in folder.glob(".compiled/*.json") if not path.name.startswith(".")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint.open(write_random_checkpoint(SPEC, tmp_path_factory.mktemp("m") / "two.pth", seed=3))


@pytest.fixture(scope="module")
def original(checkpoint, tmp_path_factory) -> Path:
    """graphs/ and cache-SM8650/ of a two-chunk model with external embedding."""
    folder = tmp_path_factory.mktemp("built")
    build_to(folder, checkpoint, Encodings(), recipe_for("fp16", 2, external_embedding=True, prefill_tokens=32))
    return folder


@pytest.fixture
def built(original, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "built"))


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "compile_context", refuse)


def rebuild(folder: Path, soc=SM8650, **options) -> ContextCache:
    return build_cache(folder / "graphs", folder / "cache-SM8650", soc, progress=False, **options)


def test_manifest_says_what_the_cache_is(built, checkpoint):
    cache = ContextCache.open(built / "cache-SM8650")
    manifest = cache.manifest
    assert manifest.source.model_sha256 == checkpoint.sha256 and manifest.source.recipe.graph.chunks == 2
    assert (manifest.soc, manifest.htp_arch, manifest.qnn_id) == ("SM8650", 75, 57)
    assert manifest.sdk_build.startswith("v2.") and manifest.onnxruntime_qnn.startswith("2.5")
    names = {"two_chunk1of2", "two_chunk2of2", "two_chunk1of2_prefill", "two_chunk2of2_prefill"}
    assert {graph.graph.name for graph in manifest.graphs} == names
    assert {file.name for file in manifest.files} == {f"{n}{s}" for n in names for s in (".bin", ".onnx")} | {"two.emb"}
    assert all(file.bytes == (cache.folder / file.name).stat().st_size for file in manifest.files)
    decode = sum(g.ddr_read_bytes + g.ddr_write_bytes for g in cache.graphs("decode"))
    assert manifest.ddr_bytes_per_token() == decode
    prefill = sum(g.ddr_read_bytes + g.ddr_write_bytes for g in cache.graphs("prefill"))
    assert manifest.ddr_bytes_per_token("prefill") == prefill / 32
    assert not (cache.folder / ".compiled").exists()


def test_up_to_date_cache_is_reused_without_compiling(built, no_compiler):
    assert rebuild(built).manifest == ContextCache.open(built / "cache-SM8650").manifest


def edit_export(folder: Path, change) -> None:
    path = folder / "graphs" / "export.json"
    content = json.loads(path.read_text())
    change(content["source"])
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda source: source.update(model_sha256="f" * 64), "model_sha256"),
        (lambda source: source.update(encodings_sha256="e" * 64), "encodings_sha256"),
        (lambda source: source["recipe"].update(precision="a16w8"), "recipe.precision fp16 -> a16w8"),
        (lambda source: source["recipe"]["graph"].update(logits="last"), "recipe.graph"),
        (lambda source: source["spec"].update(group_norm_eps=1e-5), "spec.group_norm_eps 0.00064 -> 1e-05"),
        (lambda source: source.update(code="0" * 12), "code changed"),
    ],
    ids=["model", "encodings", "precision", "graph", "epsilon", "code"],
)
def test_stale_cache_is_refused_with_the_reason(built, no_compiler, change, named):
    edit_export(built, change)
    before = (built / "cache-SM8650" / MANIFEST).read_bytes()
    with pytest.raises(RwkvlabError) as caught:
        rebuild(built)
    assert named in str(caught.value) and "--force" in str(caught.value)
    assert (built / "cache-SM8650" / MANIFEST).read_bytes() == before


def test_cache_of_another_chip_is_refused(built, no_compiler):
    with pytest.raises(RwkvlabError, match="SoC SM8650 -> SM8750"):
        rebuild(built, find_soc("SM8750"))


def test_cache_of_another_compiler_is_refused(built, no_compiler, monkeypatch):
    monkeypatch.setattr(build, "version", lambda _: "2.5.9")
    with pytest.raises(RwkvlabError, match=r"onnxruntime-qnn 2\.5\.0 -> 2\.5\.9"):
        rebuild(built)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "absent":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("how", ["absent", "truncated", "one bit"])
@pytest.mark.parametrize("name", ["two_chunk2of2.bin", "two_chunk1of2_prefill.onnx", "two.emb"])
def test_damaged_cache_is_refused_by_file(built, no_compiler, name, how):
    damage(built / "cache-SM8650" / name, how)
    for use in (lambda: rebuild(built), lambda: ContextCache.open(built / "cache-SM8650")):
        with pytest.raises(RwkvlabError, match=f"{name} (is missing|changed)"):
            use()


@pytest.mark.parametrize("content", [None, "", "{", '{"soc": "SM8650"}'], ids=["absent", "empty", "cut", "other"])
def test_folder_without_a_sound_manifest_is_no_cache(built, content):
    path = built / "cache-SM8650" / MANIFEST
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(RwkvlabError, match="no finished context cache"):
        ContextCache.open(built / "cache-SM8650")


def test_force_replaces_a_damaged_cache(built):
    damage(built / "cache-SM8650" / "two_chunk2of2.bin", "truncated")
    cache = rebuild(built, force=True)
    assert ContextCache.open(cache.folder).manifest == cache.manifest


@pytest.mark.parametrize("how", ["absent", "truncated"])
def test_session_refuses_a_binary_that_does_not_load(built, how):
    folder = built / "cache-SM8650"
    damage(folder / "two_chunk1of2.bin", how)
    with pytest.raises(RwkvlabError, match=r"two_chunk1of2\.bin.*make-context-cache"):
        HtpSession(folder / "two_chunk1of2.onnx")


def test_newer_sdk_is_refused_before_it_fails_to_load(built):
    path = built / "cache-SM8650" / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"sdk_build": "v99.1.2.260810104044"}))
    with pytest.raises(RwkvlabError, match=r"compiled by QNN 99\.1\.2, the installed runtime is 2\."):
        LocalTarget(ContextCache.open(path.parent))


@pytest.mark.parametrize(
    ("made_by", "installed", "fits"),
    [
        ("v2.49.40.1", "2.49.40", True),
        ("v2.9.0.1", "2.49.40", True),
        ("v2.50.0.1", "2.49.40", False),
        ("v2.49.41.1", "2.49.40", False),
    ],
)
def test_versions_are_compared_as_numbers(built, made_by, installed, fits):
    cache = ContextCache.open(built / "cache-SM8650")
    other = ContextCache(cache.folder, cache.manifest.model_copy(update={"sdk_build": made_by}))
    if fits:
        other.check_runtime(installed)
    else:
        with pytest.raises(RwkvlabError, match="as new as the compiler"):
            other.check_runtime(installed)


def test_unfinished_export_is_refused(built, no_compiler):
    (built / "graphs" / "export.json").unlink()
    with pytest.raises(RwkvlabError, match="no finished export"):
        rebuild(built)


def test_interrupted_build_keeps_what_is_done(built, monkeypatch):
    shutil.rmtree(built / "cache-SM8650")
    real, names = build.compile_context, []

    def two_then_interrupt(onnx_file, folder, name, soc):
        if len(names) == 2:
            raise KeyboardInterrupt
        names.append(name)
        return real(onnx_file, folder, name, soc)

    monkeypatch.setattr(build, "compile_context", two_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        rebuild(built)
    with pytest.raises(RwkvlabError, match="no finished context cache"):
        ContextCache.open(built / "cache-SM8650")
    first_two = list(names)
    # one of the two is damaged meanwhile: it is compiled again, the other is not
    damage(built / "cache-SM8650" / f"{first_two[0]}.bin", "one bit")
    monkeypatch.setattr(build, "compile_context", lambda *a: names.append(a[2]) or real(*a))
    cache = rebuild(built)
    assert sorted(names[2:]) == sorted({g.graph.name for g in cache.manifest.graphs} - {first_two[1]})
    assert ContextCache.open(cache.folder).manifest == cache.manifest


BUILD = """
import sys
from pathlib import Path
from rwkvlab.htp.build import build_cache
from rwkvlab.soc import find_soc
build_cache(Path(sys.argv[1]), Path(sys.argv[2]), find_soc("SM8650"), progress=False)
"""


def test_killed_build_leaves_no_cache_and_can_be_continued(built):
    """SIGKILL as soon as the first graph is done: nothing claims to be finished, and the next run finishes."""
    folder = built / "cache-SM8650"
    shutil.rmtree(folder)
    command = [sys.executable, "-c", BUILD, str(built / "graphs"), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not records(folder):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path.stem for path in records(folder)}
    assert done and not (folder / MANIFEST).exists()
    before = {name: (folder / f"{name}.bin").stat().st_mtime_ns for name in done}
    cache = rebuild(built)
    assert ContextCache.open(folder).manifest == cache.manifest
    assert all((folder / f"{name}.bin").stat().st_mtime_ns == time_ for name, time_ in before.items())


def test_killed_export_is_continued(checkpoint, tmp_path, monkeypatch):
    import rwkvlab.export.export as export

    recipe, made, real = recipe_for("fp16", 2, prefill_tokens=32), [], export.export_graph

    def one_then_interrupt(chunk, tokens, path, last):
        if made:
            raise KeyboardInterrupt
        made.append(path.name)
        return real(chunk, tokens, path, last)

    monkeypatch.setattr(export, "export_graph", one_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    with pytest.raises(RwkvlabError, match="no finished export"):
        build_cache(tmp_path, tmp_path / "c", SM8650, progress=False)
    again = []
    monkeypatch.setattr(
        export, "export_graph", lambda c, t, path, last: again.append(path.name) or real(c, t, path, last)
    )
    export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    assert len(again) == 3 and made[0] not in again
    again.clear()
    export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    assert not again, "a finished export is used as it is"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == sorted([".onnx", ".data"] * 4 + [".json"])


def test_export_with_a_missing_data_file_is_not_finished(checkpoint, tmp_path):
    recipe = recipe_for("fp16", 1, prefill_tokens=32)
    export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    (tmp_path / "two_chunk1of1.onnx.data").unlink()
    with pytest.raises(RwkvlabError, match="graph file or the embedding is missing"):
        export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    export_model(checkpoint, Encodings(), recipe, tmp_path, force=True, progress=False)
    assert (tmp_path / "two_chunk1of1.onnx.data").is_file()


def test_damaged_export_is_replaced_only_by_force(checkpoint, tmp_path):
    recipe = recipe_for("fp16", 1, prefill_tokens=32)
    made = export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(RwkvlabError, match="no finished export"):
        export_model(checkpoint, Encodings(), recipe, tmp_path, progress=False)
    assert export_model(checkpoint, Encodings(), recipe, tmp_path, force=True, progress=False) == made
    assert ExportManifest.load(tmp_path) == made


def test_other_export_is_not_overwritten(checkpoint, tmp_path):
    export_model(checkpoint, Encodings(), recipe_for("fp16", 1, prefill_tokens=32), tmp_path, progress=False)
    with pytest.raises(RwkvlabError, match=r"another export \(recipe\.graph.*--force"):
        export_model(checkpoint, Encodings(), recipe_for("fp16", 2, prefill_tokens=32), tmp_path, progress=False)


def test_more_chunks_than_layers_are_refused_with_nothing_written(checkpoint, tmp_path):
    with pytest.raises(RwkvlabError, match=r"3 chunks.*1 to 2"):
        export_model(checkpoint, Encodings(), recipe_for("fp16", 3), tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()
