"""The stage cache: every station made once, found again, and never mistaken for another's."""

from __future__ import annotations

import pytest

import rwkvlab.htp.build as build
import rwkvlab.stages as module
from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.cache import ContextCache
from rwkvlab.quant.recipe import CalibrationOptions, GraphOptions, Recipe
from rwkvlab.spec import LoraRanks, ModelSpec
from rwkvlab.stages import Stages, read_calibration_text
from rwkvlab.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")
LORA = LoraRanks(decay=4, iclr=4, value=4, gate=4)
SPEC = ModelSpec(n_layer=1, n_embd=32, head_size=16, n_ffn=48, vocab_size=256, lora=LORA)
TEXT = CalibrationOptions(tokens=256, length=64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint.open(write_random_checkpoint(SPEC, tmp_path_factory.mktemp("m") / "one.pth", seed=3))


@pytest.fixture
def stages(checkpoint, tmp_path) -> Stages:
    return Stages(checkpoint, BYTES, tmp_path, progress=False)


def recipe(**fields) -> Recipe:
    return Recipe.model_validate({"calibration": TEXT.model_dump()} | fields)


def forbid(monkeypatch, where, name: str) -> None:
    def refuse(*_, **__):
        raise AssertionError(f"{name} ran again")

    monkeypatch.setattr(where, name, refuse)


def test_every_station_is_made_once(stages, checkpoint, monkeypatch):
    first = stages.context(recipe())
    assert isinstance(first, ContextCache) and first.folder.is_relative_to(stages.folder)
    forbid(monkeypatch, module, "calibrate")
    forbid(monkeypatch, module, "quantize")
    forbid(monkeypatch, build, "compile_context")
    again = Stages(checkpoint, BYTES, stages.root, progress=False)
    assert again.context(recipe()).manifest == first.manifest
    assert again.encodings(recipe()).sha256 == first.manifest.source.encodings_sha256


def test_other_precision_shares_the_calibration(stages, monkeypatch):
    stages.encodings(recipe())
    forbid(monkeypatch, module, "calibrate")
    w4 = stages.encodings(recipe(precision="a16w4"))
    assert {e.bits for e in w4.params.values()} == {4, 8}


def test_other_graphs_share_the_encodings(stages, monkeypatch):
    stages.encodings(recipe())
    forbid(monkeypatch, module, "quantize")
    stages.encodings(recipe(graph=GraphOptions(prefill_tokens=64, soc="SM8750").model_dump()))


def test_other_text_is_calibrated_anew(stages):
    other = CalibrationOptions(tokens=256, length=64, seed=9)
    first, second = stages.encodings(recipe()), stages.encodings(recipe(calibration=other.model_dump()))
    assert first.activations != second.activations and first.params == second.params


def test_same_name_other_weights_do_not_meet(stages, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    other = Checkpoint.open(write_random_checkpoint(SPEC, tmp_path / "elsewhere" / "one.pth", seed=4))
    assert Stages(other, BYTES, stages.root).folder != stages.folder


def test_another_epsilon_does_not_meet(stages, checkpoint):
    other = Stages(Checkpoint.open(checkpoint.path, group_norm_eps=1e-5), BYTES, stages.root, progress=False)
    assert other.folder != stages.folder
    assert other.encodings(recipe()).activations != stages.encodings(recipe()).activations


def test_encodings_of_other_code_are_made_anew(stages, monkeypatch):
    """As after an edit of a module that decides them: the file of the old code stays and is not used."""
    stages.encodings(recipe())
    ran = []
    for name in ("calibrate", "quantize"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _n=name, _r=real, **k: ran.append(_n) or _r(*a, **k))
    stages.encodings(recipe())
    assert ran == []
    monkeypatch.setattr(module, "sha256_file", lambda path: path.name)
    stages.encodings(recipe())
    assert sorted(ran) == ["calibrate", "quantize"] and len(list(stages.folder.glob("*.encodings"))) == 2


@pytest.mark.parametrize("how", ["damaged", "stale"])
def test_a_bad_context_of_its_own_is_made_anew(stages, how):
    first = stages.context(recipe())
    if how == "damaged":
        first.graphs("decode")
        (first.folder / first.manifest.files[0].name).write_bytes(b"x")
    else:
        path = first.folder / "manifest.json"
        path.write_text(path.read_text().replace(first.manifest.source.code, "0" * 12))
    assert stages.context(recipe()).manifest.source == first.manifest.source


def test_a_damaged_calibration_of_its_own_is_made_anew(stages):
    made = stages.calibration(recipe())
    (path,) = stages.folder.glob("calibration-*.npz")
    path.write_bytes(path.read_bytes()[:100])
    assert stages.calibration(recipe()).ranges.keys() == made.ranges.keys()


def test_damaged_encodings_are_never_replaced_silently(stages):
    """A person may have edited them."""
    stages.encodings(recipe())
    (path,) = stages.folder.glob("*.encodings")
    path.write_text("{")
    with pytest.raises(RwkvlabError, match="cannot read encodings"):
        stages.encodings(recipe())
    assert path.read_text() == "{"


def test_float_needs_no_calibration(stages, monkeypatch):
    forbid(monkeypatch, module, "calibrate")
    assert not stages.encodings(recipe(precision="fp16")).params
    assert stages.torch(recipe(precision="fp16")).where == "torch-fp32" == stages.torch().where
    monkeypatch.undo()
    assert stages.torch(recipe()).where == "torch-sim"


def test_tokenizer_of_another_model_is_refused(checkpoint, tmp_path):
    with pytest.raises(RwkvlabError, match="tokenizer 'world'"):
        Stages(checkpoint, load_tokenizer("world"), tmp_path)


def test_calibration_text_is_counted_and_seeded():
    one, same, other = (
        read_calibration_text(CalibrationOptions(tokens=256, length=64, seed=seed), BYTES) for seed in (0, 0, 1)
    )
    assert one.batches.shape == (4, 64) and one.sha256 == same.sha256 != other.sha256


def test_calibration_text_may_be_a_file(tmp_path):
    (tmp_path / "t.txt").write_text("some words of text " * 50)
    text = read_calibration_text(CalibrationOptions(text=str(tmp_path / "t.txt"), tokens=128, length=32), BYTES)
    assert text.batches.shape == (4, 32)
    with pytest.raises(RwkvlabError):
        read_calibration_text(CalibrationOptions(text=str(tmp_path / "absent.txt")), BYTES)
