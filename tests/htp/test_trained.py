"""The matrix again on the bundled model, whose activations have the outliers that random weights lack."""

from __future__ import annotations

import numpy as np
import pytest

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.device.local import LocalTarget
from rwkvlab.evaluate.fidelity import compare
from rwkvlab.quant.recipe import Recipe
from rwkvlab.stages import Stages
from rwkvlab.texts.stories import generate
from rwkvlab.tokenizer import load_tokenizer
from tests.pipeline import recipe_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif("x070" not in zoo.names(), reason="no bundled model")]


@pytest.mark.parametrize("precision", ["fp16", "a16w8", "a16w4"])
def test_chunk_counts_agree_on_the_bundled_model(precision, tmp_path):
    tokenizer = load_tokenizer("zoo")
    stages = Stages(Checkpoint.open(zoo.path("x070")), tokenizer, tmp_path, progress=False)
    sequences = [[0, *tokenizer.encode(story.text)] for story in generate(3, 5, "test")]
    scores = {}
    for chunks in (1, 2, 3):
        recipe: Recipe = recipe_for(precision, chunks)
        target = LocalTarget(stages.context(recipe))
        scores[chunks] = dict(target.logits(sequences))
        fidelity = compare(stages.torch(recipe), target, sequences)
        print(f"{precision} in {chunks} chunks: {fidelity}")
        assert fidelity.top1 > 0.97 and fidelity.mean_kl < 1e-3
    for index in scores[1]:
        for chunks in (2, 3):
            assert np.abs(scores[chunks][index] - scores[1][index]).max() < 0.02 * np.ptp(scores[1][index])
