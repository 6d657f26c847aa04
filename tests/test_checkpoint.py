from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.layout import tensor_shapes
from rwkvlab.spec import ModelSpec

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors(tiny_checkpoint: Checkpoint) -> Tensors:
    return torch.load(tiny_checkpoint.path, weights_only=True)


def refusal(path: Path) -> str:
    """The one-line error of opening `path`; any other exception fails the test."""
    with pytest.raises(RwkvlabError) as error:
        Checkpoint.open(path)
    assert "\n" not in str(error.value) and path.name in str(error.value)
    assert "weights_only" not in str(error.value)  # torch's advice to switch its protection off goes no further
    return str(error.value)


def save(content: Any, path: Path, legacy: bool = False) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["zip", "legacy", "compressed", "safetensors"])
def test_every_form_gives_the_stored_weights(tmp_path: Path, tensors: Tensors, dtype: torch.dtype, form: str) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    path = tmp_path / ("a.safetensors" if form == "safetensors" else "a.pth")
    if form == "safetensors":
        save_file(stored, path)
    else:
        save(stored, path, legacy=form == "legacy")
    if form == "compressed":
        compress(path)
    checkpoint = Checkpoint.open(path)
    assert set(checkpoint.shapes) == set(stored)
    for name, tensor in stored.items():
        value = checkpoint.tensor(name)
        assert value.dtype == torch.float32
        assert torch.equal(value, tensor.float()), name


def compress(path: Path) -> None:
    """What re-packing a .pth with an ordinary archiver does to it."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


def test_flat_vectors_come_back_in_the_usual_shape(tmp_path: Path, tensors: Tensors, tiny_spec: ModelSpec) -> None:
    flat = {name: tensor.flatten() if tensor.ndim == 3 else tensor for name, tensor in tensors.items()}
    checkpoint = Checkpoint.open(save(flat, tmp_path / "a.pth"))
    assert checkpoint.shapes["blocks.0.att.x_r"] == (64,)
    for name, shape in tensor_shapes(tiny_spec).items():
        assert torch.equal(checkpoint.tensor(name), tensors[name].reshape(shape)), name


def test_parameters_views_and_unused_tensors_are_fine(tmp_path: Path, tensors: Tensors) -> None:
    tensors["emb.weight"] = torch.nn.Parameter(tensors["emb.weight"].t().contiguous().t())
    tensors["blocks.0.att.v1"] = torch.ones(5, 7)
    checkpoint = Checkpoint.open(save(tensors, tmp_path / "a.pth"))
    assert torch.equal(checkpoint.tensor("emb.weight"), tensors["emb.weight"])
    assert not checkpoint.tensor("emb.weight").requires_grad
    assert checkpoint.tensor("blocks.0.att.v1").shape == (5, 7)


def test_a_tensor_is_the_callers_own(tiny_checkpoint: Checkpoint) -> None:
    first = tiny_checkpoint.tensor("head.weight")
    kept = first.clone()
    first.zero_()
    assert torch.equal(tiny_checkpoint.tensor("head.weight"), kept)


def test_the_hash_is_the_files(tiny_checkpoint: Checkpoint) -> None:
    assert tiny_checkpoint.sha256 == hashlib.sha256(tiny_checkpoint.path.read_bytes()).hexdigest()


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    """Of 66 MB of weights, none are in memory until asked for."""
    spec = ModelSpec.model_validate(
        {"n_layer": 1, "n_embd": 256, "head_size": 32, "n_ffn": 64, "vocab_size": 32_000,
         "lora": {"decay": 4, "iclr": 4, "value": 0, "gate": 4}}
    )  # fmt: skip
    for suffix in (".pth", ".safetensors"):
        path = write_random_checkpoint(spec, tmp_path / f"big{suffix}")
        code = f"""
import psutil
from rwkvlab.checkpoint import Checkpoint
resident = lambda: psutil.Process().memory_info().rss
before = resident()
checkpoint = Checkpoint.open({str(path)!r})
print(resident() - before)
kept = checkpoint.tensor("emb.weight")
print(resident() - before)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        opened, read = map(int, done.stdout.split())
        assert opened < 16e6 < 30e6 < read


class Payload:
    """Runs a shell command when unpickled carelessly."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("form", ["zip", "legacy", "among tensors", *range(pickle.HIGHEST_PROTOCOL + 1)])
def test_a_pickle_that_wants_to_run_code_is_refused_by_name(tmp_path: Path, tensors: Tensors, form: str | int) -> None:
    path, marker = tmp_path / "evil.pth", tmp_path / "ran"
    payload = Payload(marker)
    if isinstance(form, int):
        path.write_bytes(pickle.dumps(payload, protocol=form))
    else:
        save(tensors | {"x": payload} if form == "among tensors" else payload, path, legacy=form == "legacy")
    assert f"wants to run code when opened ({os.system.__module__}.system)" in refusal(path)
    assert not marker.exists()


def test_a_whole_module_is_refused_by_name(tmp_path: Path) -> None:
    assert "torch.nn.modules.linear.Linear" in refusal(save(torch.nn.Linear(2, 2), tmp_path / "a.pth"))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, tiny_spec: ModelSpec, suffix: str, share: float) -> None:
    data = write_random_checkpoint(tiny_spec, tmp_path / f"whole{suffix}").read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(data[: int(len(data) * share)])
    assert "is empty" in refusal(path) if not path.stat().st_size else "truncated" in refusal(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_truncated_legacy_file_is_refused(tmp_path: Path, tensors: Tensors, share: float) -> None:
    path = save(tensors, tmp_path / "a.pth", legacy=True)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "truncated" in refusal(path)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("text.pth", b"version https://git-lfs.github.com/spec/v1\n", "no checkpoint"),
        ("page.safetensors", b"<html>" * 99, "no checkpoint"),
        ("model.gguf", b"GGUF", "suffix '.gguf'"),
        ("model", b"x", "suffix ''"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert expected in refusal(tmp_path / name)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert "no checkpoint at" in refusal(tmp_path / "absent.pth")
    (tmp_path / "folder.pth").mkdir()
    assert "is not a file" in refusal(tmp_path / "folder.pth")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1, 2], "holds a list"),
        ({"model": {"a": torch.ones(1)}}, "entry 'model' is a dict"),
        ({"step": 3}, "entry 'step' is a int"),
        ({1: torch.ones(1)}, "entry 1 is a Tensor"),
        ({"a": torch.ones(2, dtype=torch.int8)}, "a is torch.int8"),
        ({"a": torch.eye(3).to_sparse()}, "torch.sparse_coo"),
        ({}, "not an RWKV checkpoint"),
        ({"fc.weight": torch.ones(2, 2)}, "not an RWKV checkpoint: its 1 tensors are named fc.weight"),
    ],
)
def test_a_pth_that_holds_something_else_is_refused(tmp_path: Path, content: Any, expected: str) -> None:
    assert expected in refusal(save(content, tmp_path / "a.pth"))


def test_integer_safetensors_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.int8)}, tmp_path / "a.safetensors")
    assert "a is I8" in refusal(tmp_path / "a.safetensors")


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path, tensors: Tensors) -> None:
    del tensors["ln_out.bias"]
    tensors["blocks.2.att.g2"] = torch.ones(3, 64)
    message = refusal(save(tensors, tmp_path / "a.pth"))
    assert "1 missing tensors: ln_out.bias" in message
    assert "1 misshapen tensors: blocks.2.att.g2 is [3, 64], not [12, 64]" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_nan_and_infinite_weights_are_named(tmp_path: Path, tensors: Tensors, bad: float, suffix: str) -> None:
    tensors["blocks.1.ffn.key.weight"][3, 5] = bad
    path = tmp_path / f"a{suffix}"
    save_file(tensors, path) if suffix == ".safetensors" else save(tensors, path)
    checkpoint = Checkpoint.open(path)
    checkpoint.tensor("blocks.1.ffn.value.weight")
    with pytest.raises(RwkvlabError, match=r"blocks.1.ffn.key.weight holds 1 NaN or infinite"):
        checkpoint.tensor("blocks.1.ffn.key.weight")


def test_weights_too_large_for_the_wanted_type_are_named(tmp_path: Path, tensors: Tensors) -> None:
    tensors["head.weight"][0, 0] = 1e5
    checkpoint = Checkpoint.open(save(tensors, tmp_path / "a.pth"))
    with pytest.raises(RwkvlabError, match=r"head.weight has weights too large for torch.float16"):
        checkpoint.tensor("head.weight", torch.float16)


def test_an_unknown_name_is_refused(tiny_checkpoint: Checkpoint) -> None:
    with pytest.raises(RwkvlabError, match=r"no tensor 'blocks.9.ln1.weight'"):
        tiny_checkpoint.tensor("blocks.9.ln1.weight")


def test_random_checkpoints_are_reproducible_and_alive(tmp_path: Path, tiny_spec: ModelSpec) -> None:
    first = Checkpoint.open(write_random_checkpoint(tiny_spec, tmp_path / "a.pth", seed=3))
    again = Checkpoint.open(write_random_checkpoint(tiny_spec, tmp_path / "b.safetensors", seed=3))
    other = Checkpoint.open(write_random_checkpoint(tiny_spec, tmp_path / "c.pth", seed=4))
    assert first.spec == again.spec == tiny_spec
    for name in first.shapes:
        assert torch.equal(first.tensor(name), again.tensor(name))
        assert not torch.equal(first.tensor(name), other.tensor(name))
        assert first.tensor(name).std() > 0
    decay = torch.exp(-0.606531 * torch.sigmoid(first.tensor("blocks.0.att.w0")))
    assert decay.min() < 0.75 and decay.max() > 0.99


def test_a_random_checkpoint_overwrites_nothing(tmp_path: Path, tiny_spec: ModelSpec) -> None:
    (tmp_path / "mine.pth").write_text("mine")
    with pytest.raises(RwkvlabError, match="exists already"):
        write_random_checkpoint(tiny_spec, tmp_path / "mine.pth")
    with pytest.raises(RwkvlabError, match=r"cannot write a checkpoint as a.bin"):
        write_random_checkpoint(tiny_spec, tmp_path / "a.bin")
    assert (tmp_path / "mine.pth").read_text() == "mine"


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_full_disk_leaves_no_checkpoint(tmp_path: Path, tiny_spec: ModelSpec, suffix: str) -> None:
    code = f"""
import resource
from rwkvlab.checkpoint import write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.spec import ModelSpec
spec = ModelSpec.model_validate_json({tiny_spec.model_dump_json()!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_random_checkpoint(spec, {str(tmp_path / ("a" + suffix))!r})
except RwkvlabError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "cannot write" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_published_checkpoints(shared: Path) -> None:
    spec = Checkpoint.open(shared / "models" / "tiny-rwkv-7v0-834K.pth").spec
    assert (spec.n_layer, spec.n_embd, spec.head_size, spec.n_ffn, spec.vocab_size) == (12, 64, 64, 256, 256)
    spec = Checkpoint.open(shared / "models" / "tiny-rwkv-6v0-3m-q5.pth").spec
    assert (spec.version, spec.n_layer, spec.n_embd, spec.head_size, spec.n_ffn) == ("6.0", 12, 128, 8, 448)
    spec = Checkpoint.open(shared / "models" / "tiny-rwkv-5v2-730K.pth").spec
    assert (spec.version, spec.n_layer, spec.n_embd, spec.head_size, spec.n_ffn) == ("5.2", 12, 64, 8, 256)
