"""RWKV-5.1, 5.2 and 6 against the independent `rwkv` package, and the float16 range aids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.aids import clipped_channels
from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import load_chunk, load_model
from rwkvlab.model.parity import compare_with_rwkv_package
from rwkvlab.model.rwkv import Model
from rwkvlab.range_aids import RangeAids
from rwkvlab.spec import LoraRanks, ModelSpec

RANKS = {"5.1": LoraRanks(), "5.2": LoraRanks(), "6.0": LoraRanks(mix=6, decay=10)}
SHARED = {"tiny-rwkv-5v2-730K": ("5v2-730K", 1e-5, 1e-4), "tiny-rwkv-6v0-3m-q5": ("6v0-3m", 64e-5, 0.1)}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("versions")
    sizes = {"n_layer": 6, "n_embd": 64, "head_size": 16, "n_ffn": 96, "vocab_size": 80}
    specs = {v: ModelSpec.model_validate({"version": v, "lora": lora, **sizes}) for v, lora in RANKS.items()}
    return {v: Checkpoint.open(write_random_checkpoint(spec, folder / f"{v}.pth")) for v, spec in specs.items()}


def tokens_for(checkpoint: Checkpoint, length: int = 40) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(0, checkpoint.spec.vocab_size, (2, length)))


@pytest.mark.parametrize("version", RANKS)
def test_logits_equal_the_rwkv_package(checkpoints, version):
    parity = compare_with_rwkv_package(checkpoints[version], tokens_for(checkpoints[version], 50)[0].tolist())
    assert parity.sequence_error < 1e-4 * parity.logit_range
    assert parity.step_error < 1e-4 * parity.logit_range


@pytest.mark.parametrize("version", RANKS)
def test_chunks_and_pieces_of_text_change_nothing(checkpoints, version):
    checkpoint = checkpoints[version]
    tokens = tokens_for(checkpoint)
    with torch.no_grad():
        want, _ = load_model(checkpoint)(tokens)
        chunked = Model([load_chunk(checkpoint, part.first, part.last) for part in plan_chunks(6, 4)])
        first, state = chunked(tokens[:, :17])
        second, _ = chunked(tokens[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHARED)
def test_trained_models_of_rwkv_cpp(shared, name):
    """Published logits after three bytes; rwkv.cpp takes 1e-5 in RWKV-5's group norm, and 6v0 was rounded to 5 bits."""
    expected, eps, tolerance = SHARED[name]
    checkpoint = Checkpoint.open(shared / "models" / f"{name}.pth", group_norm_eps=eps)
    want = np.fromfile(shared / "models" / f"expected-logits-{expected}.bin", np.float32)
    with torch.no_grad():
        got, _ = load_model(checkpoint)(torch.tensor([list(b'"in')]))
    assert np.abs(got[0, -1].numpy() - want).max() < tolerance
    # the default is BlinkDL's, which for these RWKV-5 weights gives other logits
    assert Checkpoint.open(checkpoint.path).spec.group_norm_eps == 64e-5


@pytest.mark.parametrize("version", RANKS)
@pytest.mark.parametrize(
    "aids",
    [RangeAids(scale_kv=True), RangeAids(halve_every=2), RangeAids(scale_kv=True, halve_every=2)],
    ids=lambda aids: f"kv={aids.scale_kv},halve={aids.halve_every}",
)
def test_scaling_aids_are_exact(checkpoints, version, aids):
    """Powers of two and matching epsilons: the same logits to the last few bits, in any number of chunks."""
    checkpoint = checkpoints[version]
    tokens = tokens_for(checkpoint)
    with torch.no_grad():
        want, want_state = load_model(checkpoint)(tokens)
        aided = checkpoint.with_aids(aids)
        got, state = Model([load_chunk(aided, p.first, p.last) for p in plan_chunks(6, 3)])(tokens)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if aids.scale_kv:
        torch.testing.assert_close(state[1], want_state[1] / 8)


@pytest.mark.parametrize("version", RANKS)
def test_residual_shrinks_where_it_is_halved(checkpoints, version):
    checkpoint = checkpoints[version].with_aids(RangeAids(halve_every=2))
    chunk = load_chunk(checkpoint, 0, 6)
    assert [block.halve for block in chunk.blocks.values()] == [False, True, False, True, False, False]


def test_clip_is_exact_inside_its_range_and_counted_outside(checkpoints, tmp_path):
    checkpoint = checkpoints["5.2"]
    tokens = tokens_for(checkpoint)
    inside = load_chunk(checkpoint.with_aids(RangeAids(clip_decay=True)), 0, 6)
    assert clipped_channels(inside) == 0
    with torch.no_grad():
        torch.testing.assert_close(Model([inside])(tokens)[0], load_model(checkpoint)(tokens)[0])
    weights = {name: checkpoint.tensor(name) for name in checkpoint.shapes}
    weights["blocks.1.att.time_decay"][:, :3] = 5.0
    torch.save(weights, tmp_path / "fast.pth")
    fast = Checkpoint.open(tmp_path / "fast.pth").with_aids(RangeAids(clip_decay=True))
    assert clipped_channels(load_chunk(fast, 0, 6)) == 4 * 3


def test_rwkv_7_takes_no_aids(tiny_checkpoint):
    with pytest.raises(RwkvlabError, match="range aids for RWKV-7"):
        load_chunk(tiny_checkpoint.with_aids(RangeAids(halve_every=6)), 0, 1)


def test_group_norm_eps_is_the_users_to_say(checkpoints):
    path = checkpoints["6.0"].path
    assert Checkpoint.open(path, group_norm_eps=1e-5).spec == checkpoints["6.0"].spec.model_copy(
        update={"group_norm_eps": 1e-5}
    )
