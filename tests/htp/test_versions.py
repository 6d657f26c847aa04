"""RWKV-5 and 6 wholly on the HTP: every precision compiles, and the simulator computes what QuantSim does."""

from __future__ import annotations

import numpy as np
import pytest

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.device.local import LocalTarget
from rwkvlab.evaluate.fidelity import compare
from rwkvlab.quant.torch_source import TorchSource
from rwkvlab.spec import LoraRanks, ModelSpec
from tests.pipeline import build_to, encodings_of, recipe_for

RANKS = {"5.2": LoraRanks(), "6.0": LoraRanks(mix=6, decay=10)}
PRECISIONS = ("fp16", "a16w8", "a16w4", "att-a16w8+ffn-a16w4")


@pytest.fixture(scope="module", params=RANKS)
def checkpoint(request, tmp_path_factory) -> Checkpoint:
    sizes = {"n_layer": 2, "n_embd": 64, "head_size": 16, "n_ffn": 96, "vocab_size": 80}
    spec = ModelSpec.model_validate({"version": request.param, "lora": RANKS[request.param], **sizes})
    return Checkpoint.open(write_random_checkpoint(spec, tmp_path_factory.mktemp("v") / f"{request.param}.pth", seed=3))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiles_wholly_and_follows_quantsim(checkpoint, precision, tmp_path):
    chunks = 1 + PRECISIONS.index(precision) % 2
    encodings = encodings_of(checkpoint, precision)
    target = LocalTarget(build_to(tmp_path, checkpoint, encodings, recipe_for(precision, chunks)))
    ids = [0, *np.random.default_rng(1).integers(0, 80, 70).tolist()]
    found = compare(TorchSource(checkpoint, encodings), target, [ids])
    assert found.mean_kl < 1e-3
    assert found.max_error < 0.03 * found.logit_range
    # blocks and then single tokens, as generation reads a prompt, end where whole blocks do
    (_, logits), *_ = target.logits([ids])
    np.testing.assert_allclose(target.prefill(ids)[0], logits[-1], atol=0.02 * found.logit_range)
