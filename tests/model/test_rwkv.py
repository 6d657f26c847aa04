"""The model against the `rwkv` package, an independent implementation, and against itself cut in every way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import folded_embedding, load_chunk, load_model
from rwkvlab.model.rwkv import Model, linear_names, zero_state
from rwkvlab.spec import LoraRanks, ModelSpec

PROMPT = [0, *range(2, 60)]

SPECS = {
    "odd sizes": ModelSpec(
        n_layer=3, n_embd=48, head_size=16, n_ffn=80, vocab_size=70, lora=LoraRanks(decay=8, iclr=10, value=6, gate=12)
    ),
    "usual head": ModelSpec(
        n_layer=2,
        n_embd=128,
        head_size=64,
        n_ffn=512,
        vocab_size=300,
        lora=LoraRanks(decay=16, iclr=8, value=8, gate=24),
    ),
    "one layer": ModelSpec(
        n_layer=1, n_embd=64, head_size=32, n_ffn=100, vocab_size=64, lora=LoraRanks(decay=8, iclr=8, value=8, gate=8)
    ),
}

REFERENCE = """
import os, sys
os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
import torch
torch.set_num_threads(1)
from rwkv.model import RWKV
ids = [int(i) for i in sys.argv[1].split(",")]
results = {}
for path in sys.argv[3:]:
    model = RWKV(model=path.removesuffix(".pth"), strategy="cpu fp32")
    whole, state = model.forward(ids, None, full_output=True)
    rows, state = [], None
    for i in ids:
        row, state = model.forward([i], state)
        rows.append(row)
    results[path] = (whole, torch.stack(rows))
torch.save(results, sys.argv[2])
"""


def run_reference(folder: Path, paths: list[Path]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    out = folder / "reference.pt"
    ids = ",".join(map(str, PROMPT))
    command = [sys.executable, "-c", REFERENCE, ids, str(out), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(out)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("models")
    paths = {
        name: write_random_checkpoint(spec, folder / f"{i}.pth", i) for i, (name, spec) in enumerate(SPECS.items())
    }
    # a layer 0 that carries the unused v0, v1, v2, as released models do
    tensors = torch.load(paths["usual head"])
    tensors |= {f"blocks.0.att.v{i}": tensors[f"blocks.1.att.v{i}"] + 1 for i in range(3)}
    torch.save(tensors, folder / "unused.pth")
    found = {name: Checkpoint.open(path) for name, path in paths.items()}
    found["unused v0 in layer 0"] = Checkpoint.open(folder / "unused.pth")
    if "x070" in zoo.names():
        found["trained"] = Checkpoint.open(zoo.path("x070"))
    return found


NAMES = [*SPECS, "unused v0 in layer 0", *(["trained"] if "x070" in zoo.names() else [])]


@pytest.fixture(scope="module")
def reference(checkpoints, tmp_path_factory):
    paths = [checkpoint.path for checkpoint in checkpoints.values()]
    results = run_reference(tmp_path_factory.mktemp("reference"), paths)
    return {name: results[str(checkpoint.path)] for name, checkpoint in checkpoints.items()}


def assert_close_to_range(got: torch.Tensor, want: torch.Tensor, share: float = 1e-4) -> None:
    assert got.shape == want.shape
    assert float((got - want).abs().max()) < share * float(want.max() - want.min())


@pytest.mark.parametrize("name", NAMES)
def test_sequence_equals_the_rwkv_package(checkpoints, reference, name):
    logits, _ = load_model(checkpoints[name])(torch.tensor([PROMPT]))
    assert_close_to_range(logits[0], reference[name][0])


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_rwkv_package(checkpoints, reference, name):
    model, state, rows = load_model(checkpoints[name]), None, []
    for token in PROMPT:
        logits, state = model(torch.tensor([[token]]), state)
        rows.append(logits[0, 0])
    assert_close_to_range(torch.stack(rows), reference[name][1])


def chained(checkpoint: Checkpoint, chunks: int, embedding: bool = True) -> Model:
    plan = plan_chunks(checkpoint.spec.n_layer, chunks)
    return Model([load_chunk(checkpoint, p.first, p.last, embedding) for p in plan]).eval()


@pytest.mark.parametrize("chunks", [2, 3])
def test_chained_chunks_equal_the_whole(tiny_checkpoint, chunks):
    tokens = torch.tensor([PROMPT])
    want, want_state = load_model(tiny_checkpoint)(tokens)
    got, got_state = chained(tiny_checkpoint, chunks)(tokens)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(got_state, want_state, rtol=0, atol=1e-6)


def test_values_of_layer_0_cross_the_border(tiny_checkpoint):
    """Without v_first the second chunk computes something else: the hand-over is used."""
    first, second = chained(tiny_checkpoint, 2).chunks
    spec = tiny_checkpoint.spec
    x, v_first, *_ = first(torch.tensor([PROMPT]), *zero_state(spec, 1, "cpu", first.first, first.last))
    states = zero_state(spec, 1, "cpu", second.first, second.last)
    assert_close_to_range(second(x, v_first, *states)[0], load_model(tiny_checkpoint)(torch.tensor([PROMPT]))[0])
    difference = second(x, v_first, *states)[0] - second(x, torch.zeros_like(v_first), *states)[0]
    assert difference.abs().max() > 0.01


@pytest.mark.parametrize("cut", [1, 16, 31, len(PROMPT) - 1])
def test_continuing_from_a_state_equals_one_pass(tiny_checkpoint, cut):
    model = load_model(tiny_checkpoint)
    want, want_state = model(torch.tensor([PROMPT]))
    first, state = model(torch.tensor([PROMPT[:cut]]))
    second, state = model(torch.tensor([PROMPT[cut:]]), state)
    torch.testing.assert_close(torch.cat([first, second], 1), want, rtol=0, atol=2e-5)
    torch.testing.assert_close(state, want_state, rtol=1e-4, atol=2e-5)


def test_right_padding_and_neighbours_change_nothing(tiny_checkpoint):
    model = load_model(tiny_checkpoint)
    rows = [PROMPT, PROMPT[:9], PROMPT[5:6]]
    batch = torch.zeros(3, len(PROMPT), dtype=torch.long)
    for row, ids in zip(batch, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    logits, _ = model(batch)
    for got, ids in zip(logits, rows, strict=True):
        torch.testing.assert_close(got[: len(ids)], model(torch.tensor([ids]))[0][0], rtol=0, atol=2e-5)


def test_external_embedding_equals_the_inner_one(tiny_checkpoint):
    tokens = torch.tensor([PROMPT])
    vectors = folded_embedding(tiny_checkpoint)[tokens]
    got, _ = chained(tiny_checkpoint, 2, embedding=False)(vectors, zero_state(tiny_checkpoint.spec, 1))
    torch.testing.assert_close(got, load_model(tiny_checkpoint)(tokens)[0], rtol=0, atol=1e-6)


def test_embedding_has_the_first_norm_folded_in(tiny_checkpoint):
    table = tiny_checkpoint.tensor("emb.weight").double()
    centred = table - table.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    want = normed * tiny_checkpoint.tensor("blocks.0.ln0.weight") + tiny_checkpoint.tensor("blocks.0.ln0.bias")
    torch.testing.assert_close(folded_embedding(tiny_checkpoint).double(), want, rtol=0, atol=1e-5)


def test_names_of_what_crosses_chunks(tiny_checkpoint):
    first, second = chained(tiny_checkpoint, 2).chunks
    assert first.input_names == ["in", *(f"state{i}_in" for i in range(6))]
    assert first.output_names == ["out", "v_first_out", *(f"state{i}_out" for i in range(6))]
    assert second.input_names == ["in", "v_first_in", *(f"state{i}_in" for i in range(6, 9))]
    assert second.output_names == ["logits", *(f"state{i}_out" for i in range(6, 9))]


def test_a_chunk_reads_its_own_blocks_only(tiny_checkpoint, monkeypatch):
    read = []
    original = Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", lambda self, name, *a: read.append(name) or original(self, name, *a))
    load_chunk(tiny_checkpoint, 1, 2)
    assert read and all(name.startswith("blocks.1.") for name in read)


def test_linear_names(tiny_spec):
    names = linear_names(tiny_spec)
    assert names[-1] == "head" and len(names) == len(set(names))
    assert "blocks.0.att.v1" not in names and "blocks.1.att.v1" in names
    # 4 projections, 8 or 6 low-rank maps (layer 0 has no value mix), 2 of the feed-forward half; the head
    assert len(names) == 3 * (4 + 8 + 2) - 2 + 1
