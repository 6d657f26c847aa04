from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.load import load_model
from rwkvlab.model.rwkv import linear_names
from rwkvlab.quant.calibrate import PER_OCTAVE, Calibration, _Running, calibrate
from tests.pipeline import token_rows


@pytest.fixture(scope="module")
def calibration(tiny_checkpoint) -> Calibration:
    return calibrate(tiny_checkpoint, token_rows(tiny_checkpoint), "random ids", "ab" * 32, progress=False)


def assert_same(one: Calibration, other: Calibration) -> None:
    assert one.source == other.source and one.ranges.keys() == other.ranges.keys()
    for name, first in one.ranges.items():
        second = other.ranges[name]
        np.testing.assert_allclose(first.limits(None), second.limits(None), rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(first.rms, second.rms, rtol=1e-5)
        # a value at the edge of a bin may fall on either side of it
        moved = np.abs(np.cumsum(first.positive - second.positive)) + np.abs(
            np.cumsum(first.negative - second.negative)
        )
        assert moved.max() <= 1e-3 * (first.positive.sum() + first.negative.sum()) + 2, name


@pytest.mark.parametrize(("chunks", "batch"), [(2, 8), (3, 8), (1, 3), (3, 1)])
def test_result_depends_on_neither_chunks_nor_batch(tiny_checkpoint, calibration, chunks, batch):
    again = calibrate(tiny_checkpoint, token_rows(tiny_checkpoint), "random ids", "ab" * 32, chunks, batch, False)
    assert_same(calibration, again)


def test_every_linears_input_and_output_are_recorded(tiny_checkpoint, calibration):
    assert set(calibration.ranges) == {
        f"{n}.{e}" for n in linear_names(tiny_checkpoint.spec) for e in ("input", "output")
    }
    logits, _ = load_model(tiny_checkpoint)(torch.from_numpy(token_rows(tiny_checkpoint)))
    head = calibration.ranges["head.output"]
    np.testing.assert_allclose((head.low, head.high), (logits.min(), logits.max()), rtol=1e-5)
    np.testing.assert_allclose(head.rms, logits.square().mean().sqrt(), rtol=1e-5)
    assert head.positive.sum() + head.negative.sum() == logits.numel()


def test_record_says_what_was_read(tiny_checkpoint, calibration):
    source = calibration.source
    assert (source.model_sha256, source.text, source.tokens) == (tiny_checkpoint.sha256, "random ids", 8 * 48)


def running(values: np.ndarray) -> _Running:
    statistics = _Running("x")
    for part in np.array_split(values, 3):
        if part.size:
            statistics.add(torch.from_numpy(part))
    return statistics


BIN = 2 ** (1 / PER_OCTAVE)


@given(st.integers(0, 2**32 - 1), st.sampled_from([90.0, 99.0, 99.9]), st.floats(-2, 2), st.floats(0.01, 100))
@settings(max_examples=60)
def test_percentile_limits_agree_with_numpy_within_a_bin(seed, percentile, shift, spread):
    values = ((np.random.default_rng(seed).standard_normal(5000) + shift) * spread).astype(np.float32)
    low, high = running(values).result().limits(percentile)
    beyond = round((1 - percentile / 100) / 2 * values.size)
    for limit, ends in ((high, np.sort(values)[::-1]), (-low, np.sort(-values)[::-1])):
        outer, inner = ends[beyond - 1], ends[beyond + 1]  # the value and its neighbours, as quantiles are defined
        if inner > 0:
            assert inner <= limit <= outer * BIN
    assert values.min() <= low and high <= values.max()


def test_percentile_ignores_a_rare_outlier_that_min_max_keeps():
    values = np.concatenate([np.linspace(-1, 1, 100_000), [1000.0]]).astype(np.float32)
    result = running(values).result()
    assert result.limits(None) == (-1.0, 1000.0)
    low, high = result.limits(99.9)
    assert -1.03 < low < -0.99 and 0.99 < high < 1.03


@given(st.lists(st.floats(-4e6, 4e6, width=32), min_size=1, max_size=50))
def test_every_value_is_counted_once(values):
    result = running(np.array(values, np.float32)).result()
    assert result.positive.sum() + result.negative.sum() == len(values)
    assert result.negative.sum() == sum(v < 0 for v in values)
    assert (result.low, result.high) == (min(values), max(values))


def test_values_that_are_not_finite_are_refused_by_name(tiny_checkpoint, tmp_path):
    tensors = torch.load(tiny_checkpoint.path)
    tensors["blocks.1.ffn.key.weight"] = tensors["blocks.1.ffn.key.weight"] * 1e30
    torch.save(tensors, tmp_path / "large.pth")
    broken = Checkpoint.open(tmp_path / "large.pth")
    with pytest.raises(RwkvlabError, match=r"blocks\.1\.ffn\.value.* not finite"):
        calibrate(broken, token_rows(broken), "x", "", progress=False)


@pytest.mark.parametrize("bad", [-1, 80])
def test_ids_outside_the_vocabulary_are_refused(tiny_checkpoint, bad):
    rows = token_rows(tiny_checkpoint)
    rows[3, 4] = bad
    with pytest.raises(RwkvlabError, match=f"{bad}.*0 to 79"):
        calibrate(tiny_checkpoint, rows, "x", "", progress=False)


def test_empty_text_is_refused(tiny_checkpoint):
    with pytest.raises(RwkvlabError, match="empty"):
        calibrate(tiny_checkpoint, np.zeros((0, 8), np.int64), "x", "", progress=False)


@pytest.mark.parametrize("name", ["c.npz", "c.calibration"])
def test_file_gives_back_exactly_what_was_saved(calibration, tmp_path, name):
    calibration.save(tmp_path / name)
    loaded = Calibration.load(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert loaded.source == calibration.source and loaded.ranges.keys() == calibration.ranges.keys()
    for tensor, saved in calibration.ranges.items():
        got = loaded.ranges[tensor]
        assert (got.low, got.high, got.rms) == (saved.low, saved.high, saved.rms)
        assert np.array_equal(got.negative, saved.negative) and np.array_equal(got.positive, saved.positive)


def test_damaged_files_are_refused(calibration, tmp_path):
    calibration.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    damaged = [whole[:n] for n in (0, 9, 100, len(whole) // 2, len(whole) - 3)]
    damaged += [bytes(a ^ (i % 997 == k) for i, a in enumerate(whole)) for k in (1, 50)]
    damaged += [b"PK\x03\x04 not really", b"\x93NUMPY", b"text"]
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(content)
        with pytest.raises(RwkvlabError, match="cannot read the calibration"):
            Calibration.load(path)
    with pytest.raises(RwkvlabError, match="cannot read the calibration"):
        Calibration.load(tmp_path / "absent.npz")
