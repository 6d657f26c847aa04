"""Every precision at every chunk count compiles wholly for the HTP, runs on the host simulator, and agrees."""

from __future__ import annotations

import numpy as np
import pytest

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.device.local import LocalTarget
from rwkvlab.htp.build import build_cache
from rwkvlab.model.rwkv import linear_names
from rwkvlab.quant.torch_source import TorchSource
from rwkvlab.soc import find_soc
from tests.pipeline import build_to, encodings_of, recipe_for, token_rows

PRECISIONS = ["fp16", "a16w8", "a16w4"]
OTHER_SOCS = ["SM8550", "SC8380", "SM8750"]
FP16_NOISE = 0.01
"""Of the logit range. Between torch and the HTP lie a thousand roundings to float16's 11 bits."""


@pytest.fixture(scope="module", params=PRECISIONS)
def precision(request) -> str:
    return request.param


class Case:
    """One precision's caches by chunk count, and what torch says of the same tokens."""

    def __init__(self, checkpoint: Checkpoint, precision: str, folder) -> None:
        self.precision, self.folder, self.checkpoint = precision, folder, checkpoint
        self.tokens = token_rows(checkpoint)[0][:40].tolist()  # one whole block of 32 and a part of one
        self.encodings = encodings_of(checkpoint, precision)
        self.torch = dict(TorchSource(checkpoint, self.encodings).logits([self.tokens]))[0]
        self.range = float(np.ptp(self.torch))
        self.caches = {
            chunks: build_to(folder / str(chunks), checkpoint, self.encodings, recipe_for(precision, chunks))
            for chunks in (1, 2, 3)
        }

    def error(self, got: np.ndarray, want: np.ndarray) -> float:
        return float(np.abs(got - want).max()) / self.range


@pytest.fixture(scope="module")
def case(tiny_checkpoint, precision, tmp_path_factory) -> Case:
    return Case(tiny_checkpoint, precision, tmp_path_factory.mktemp(precision))


def test_all_graphs_are_there(case):
    for chunks, cache in case.caches.items():
        for kind in ("decode", "prefill"):
            graphs = cache.graphs(kind)
            assert [graph.graph.chunk for graph in graphs] == list(range(1, chunks + 1))
            assert all(graph.ddr_read_bytes > 0 and graph.ddr_write_bytes > 0 for graph in graphs)
            assert all(graph.ops.get("LayerNorm", 0) >= 2 for graph in graphs)


def test_every_linear_reaches_the_htp_as_one_and_stays_quantized(case):
    linears = len(linear_names(case.checkpoint.spec))
    for kind in ("decode", "prefill"):
        ops = case.caches[1].graphs(kind)[0].ops
        assert ops["FullyConnected"] == linears
        # low-rank pairs without anything between them hand integers on; every other linear's result becomes float once
        assert (ops.get("Dequantize", 0) >= linears) == (case.precision != "fp16")


def test_simulator_agrees_with_torch_at_every_chunk_count(case):
    scores = {n: dict(LocalTarget(cache).logits([case.tokens]))[0] for n, cache in case.caches.items()}
    for chunks, got in scores.items():
        assert got.shape == (40, case.checkpoint.spec.vocab_size)
        assert case.error(got, case.torch) < FP16_NOISE, chunks
        assert case.error(got, scores[1]) < FP16_NOISE, chunks


def test_decode_agrees_with_torch_at_every_chunk_count(case):
    for chunks, cache in case.caches.items():
        target = LocalTarget(cache)
        state = target.empty_state()
        for position, token in enumerate(case.tokens[:6]):
            logits, state = target.step(token, state)
            assert case.error(logits, case.torch[position]) < FP16_NOISE, chunks


def test_fewer_bits_move_fewer_bytes(case):
    """Weights dominate even here; the compiler's own count must show it."""
    spec, cache = case.checkpoint.spec, case.caches[1]
    matrices = 3 * (4 * spec.n_embd**2 + 2 * spec.n_embd * spec.n_ffn)
    bits = {"fp16": 16, "a16w8": 8, "a16w4": 4}[case.precision]
    assert cache.graphs("decode")[0].ddr_read_bytes > matrices * bits / 8


@pytest.mark.parametrize("soc", OTHER_SOCS)
def test_other_chips_compile_and_run(case, soc):
    cache = build_cache(case.folder / "1" / "graphs", case.folder / soc, find_soc(soc), progress=False)
    assert (cache.manifest.soc, cache.manifest.htp_arch) == (soc, find_soc(soc).htp_arch)
    (_, got), *_ = LocalTarget(cache).logits([case.tokens[:20]])
    assert case.error(got, case.torch[:20]) < FP16_NOISE
