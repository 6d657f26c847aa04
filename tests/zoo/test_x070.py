"""The bundled model is small, runs in the reference implementation, and is worth quantizing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model.load import load_model
from rwkvlab.texts.stories import generate
from rwkvlab.tokenizer import load_tokenizer
from rwkvlab.zoo.evidence import answer, measure, report


@pytest.fixture(scope="module")
def model():
    return load_model(Checkpoint.open(zoo.path("x070")))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("zoo")


def test_size():
    assert zoo.path("x070").stat().st_size < 3e6
    spec = Checkpoint.open(zoo.path("x070")).spec
    assert spec.n_layer <= 4 and spec.n_embd <= 128 and spec.head_size == 64


def test_figures_on_a_sample_of_unseen_stories(model, tokenizer):
    figures = measure(model, tokenizer, stories=200, questions=40, seed=77)
    assert figures.accuracy >= 0.85
    assert figures.last_sentence_accuracy < 0.35
    assert figures.accuracy - figures.w4_accuracy >= 0.03 or figures.w4_divergence >= 0.03
    assert figures.answers >= 0.8 * figures.questions
    assert "n = 200" in report(figures)


def test_answers_stop_at_the_end_of_the_turn(model, tokenizer):
    story = generate(1, 78, "train")[0]
    assert "\n" not in answer(model, tokenizer, story.prompt(1))


_REFERENCE = """
import os, sys
os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
from rwkv.model import RWKV
import torch
torch.set_num_threads(1)
model = RWKV(model=sys.argv[1], strategy="cpu fp32")
ids = [int(i) for i in sys.argv[2].split(",")]
torch.save(model.forward(ids, None, full_output=True)[0], sys.argv[3])
"""


def test_rwkv_package_loads_it_and_agrees(model, tokenizer, tmp_path):
    ids = [0, *tokenizer.encode(generate(1, 79, "test")[0].text)]
    arguments = [str(zoo.path("x070").with_suffix("")), ",".join(map(str, ids)), str(tmp_path / "logits.pt")]
    subprocess.run([sys.executable, "-c", _REFERENCE, *arguments], check=True, capture_output=True)
    expected = torch.load(tmp_path / "logits.pt", weights_only=True)
    with torch.no_grad():
        got = model(torch.tensor([ids]))[0][0]
    span = float(expected.max() - expected.min())
    assert float((got - expected).abs().max()) < 1e-4 * span
