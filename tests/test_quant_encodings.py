"""The committed encodings are the bundled model's, made as their records say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.quant import provenance
from rwkvlab.quant.quantize import linear_weights, weight_encoding

FILES = sorted((Path(__file__).resolve().parents[1] / "quant_encodings").glob("*/*.encodings"))


def test_there_are_some():
    assert {path.stem for path in FILES} == {"a16w8", "a16w4", "att-a16w8+ffn-a16w4"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_belong_to_the_bundled_model_and_to_their_record(path):
    checkpoint = Checkpoint.open(zoo.path(path.parent.name))
    encodings, record = provenance.open_encodings(path, checkpoint)
    assert record is not None
    assert record.model_sha256 == checkpoint.sha256
    assert record.encodings_sha256 == encodings.sha256
    assert record.recipe.precision == path.stem
    for name, weight in linear_weights(checkpoint):
        fresh, stored = (
            weight_encoding(weight, record.recipe.weight_bits(name) or 16),
            encodings.params[f"{name}.weight"],
        )
        assert stored.bits == fresh.bits
        np.testing.assert_allclose(stored.scale, fresh.scale, rtol=1e-6)
