from __future__ import annotations

import numpy as np
import pytest
import torch

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.rwkv import linear_names
from rwkvlab.quant.calibrate import Calibration
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.grid import affine_range
from rwkvlab.quant.quantize import quantize
from rwkvlab.quant.recipe import Recipe
from tests.pipeline import calibration_of, recipe_for


@pytest.fixture(scope="module")
def calibration(tiny_checkpoint) -> Calibration:
    return calibration_of(tiny_checkpoint)


@pytest.mark.parametrize("precision", ["a16w8", "a16w4"])
def test_every_linear_gets_its_grids(tiny_checkpoint, calibration, precision):
    recipe = recipe_for(precision)
    made = quantize(tiny_checkpoint, calibration, recipe)
    names = linear_names(tiny_checkpoint.spec)
    assert set(made.params) == {f"{name}.weight" for name in names}
    assert set(made.activations) == {f"{name}.{end}" for name in names for end in ("input", "output")}
    for name in names:
        weight = made.params[f"{name}.weight"]
        assert weight.bits == recipe.weight_bits(name) and weight.symmetric
    assert made.params["head.weight"].scale.shape == (80,)
    assert {e.bits for e in made.activations.values()} == {16}


def test_activation_grids_cover_what_was_seen(tiny_checkpoint, calibration):
    made = quantize(tiny_checkpoint, calibration, Recipe())
    for name, encoding in made.activations.items():
        low, high = calibration.ranges[name].limits(None)
        half = encoding.scale.item() / 2 * 1.0001
        assert encoding.low.item() <= min(low, 0) + half and encoding.high.item() >= max(high, 0) - half
        assert (encoding.scale.item(), encoding.offset.item()) == affine_range(low, high, 16)


def test_percentile_narrows_grids(tiny_checkpoint, calibration):
    whole = quantize(tiny_checkpoint, calibration, Recipe())
    cut = quantize(tiny_checkpoint, calibration, Recipe(activation_range="percentile", percentile=99.0))
    ratios = [cut.activations[n].scale.item() / e.scale.item() for n, e in whole.activations.items()]
    assert max(ratios) <= 1 and np.median(ratios) < 0.95
    assert cut.params == whole.params


def test_weights_are_the_checkpoints(tiny_checkpoint, calibration):
    made = quantize(tiny_checkpoint, calibration, Recipe())
    low_rank = tiny_checkpoint.tensor("blocks.1.att.w1").T  # stored input-first
    for name, weight in (("head", tiny_checkpoint.tensor("head.weight")), ("blocks.1.att.w1", low_rank)):
        want = torch.maximum(weight.amax(1) / 127, -weight.amin(1) / 128)
        np.testing.assert_allclose(made.params[f"{name}.weight"].scale, want.numpy(), rtol=1e-6)


def test_float_needs_no_calibration(tiny_checkpoint):
    assert quantize(tiny_checkpoint, None, recipe_for("fp16")) == Encodings()
    with pytest.raises(RwkvlabError, match="needs a calibration"):
        quantize(tiny_checkpoint, None, Recipe())


def test_calibration_of_another_model_is_refused(tiny_spec, calibration, tmp_path):
    other = Checkpoint.open(write_random_checkpoint(tiny_spec, tmp_path / "other.pth", seed=2))
    with pytest.raises(RwkvlabError, match=r"another model.*other\.pth"):
        quantize(other, calibration, Recipe())


def test_incomplete_calibration_is_refused_by_name(tiny_checkpoint, calibration):
    ranges = {name: r for name, r in calibration.ranges.items() if name != "head.input"}
    with pytest.raises(RwkvlabError, match=r"head\.input"):
        quantize(tiny_checkpoint, Calibration(calibration.source, ranges), Recipe())
