"""A checkpoint that nobody here trained, its logits computed by rwkv.cpp, and real LAMBADA text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.shared_7v0 import measure, render
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model.load import load_model

NAME = "tiny-rwkv-7v0-834K.pth"


def test_logits_equal_those_of_rwkv_cpp(shared):
    """After the bytes `"in` from the empty state."""
    want = np.fromfile(shared / "models" / "expected-logits-7v0-834K.bin", np.float32)
    model = load_model(Checkpoint.open(shared / "models" / NAME))
    whole = model(torch.tensor([list(b'"in')]))[0][0, -1]
    np.testing.assert_allclose(whole.numpy(), want, rtol=0, atol=1e-4)
    state = None
    for byte in b'"in':
        logits, state = model(torch.tensor([[byte]]), state)
    np.testing.assert_allclose(logits[0, 0].numpy(), want, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_whole_pipeline_on_real_lambada_bytes(shared, tmp_path):
    lambada = shared / "data" / "lambada_test.jsonl"
    text = shared / "corpus" / "jack-london_the-call-of-the-wild.txt"
    float_bits, rows = measure(shared / "models" / NAME, lambada, tmp_path, 20, 2, text)
    print("\n" + render(float_bits, rows))
    w8, w4 = rows
    assert 1 < float_bits < 8  # barely trained, yet better than chance
    assert abs(w8.bits / float_bits - 1) < 0.01
    assert w8.to_float.mean_kl < w4.to_float.mean_kl and w8.ddr_bytes > w4.ddr_bytes
    for row in rows:
        assert row.to_sim.mean_kl < 1e-3 and row.to_sim.top1 > 0.97
        assert abs(row.sim_bits / row.torch_bits - 1) < 0.005
