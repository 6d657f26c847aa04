"""A planted fault is found where it was planted."""

from __future__ import annotations

import dataclasses

import pytest

import rwkvlab.htp.locate as module
from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.locate import CPU, FLOAT, HTP, PAIRS, SIM, Probed, locate
from rwkvlab.model.load import load_chunk
from rwkvlab.quant.encodings import Encodings
from rwkvlab.soc import find_soc
from rwkvlab.spec import LoraRanks, ModelSpec
from tests.pipeline import encodings_of, token_rows

SM8650 = find_soc("SM8650")


@pytest.fixture(scope="module")
def tokens(tiny_checkpoint) -> list[int]:
    return token_rows(tiny_checkpoint)[0][:32].tolist()


@pytest.fixture(scope="module")
def encodings(tiny_checkpoint) -> Encodings:
    return encodings_of(tiny_checkpoint, "a16w8")


@pytest.fixture(scope="module")
def sound(tiny_checkpoint, encodings, tokens, tmp_path_factory):
    return locate(tiny_checkpoint, encodings, tokens, SM8650, tmp_path_factory.mktemp("sound"))


def test_sound_implementations_agree(sound):
    assert [sound.first(pair) for pair in PAIRS] == [None, None, None], sound.render()
    names = [d.tensor for d in sound.differences]
    assert names[0] == "blocks.0.ln1" and names[-1] == "head" and "blocks.1.att.ln_x" in names
    assert names.index("blocks.0.att.key") < names.index("blocks.0.att") < names.index("blocks.0.ffn.value")


def test_table_names_every_tensor(sound):
    text = sound.render()
    assert all(d.tensor in text for d in sound.differences)
    assert "torch-sim | qdq-cpu: agree" in text


def test_wrong_encoding_parts_quantsim_from_float(tiny_checkpoint, encodings, tokens, tmp_path):
    fault = "blocks.1.ffn.key"
    wrong = encodings.params[f"{fault}.weight"]
    wrong = dataclasses.replace(wrong, scale=wrong.scale / 4)  # three quarters of the weights' range clips
    planted = Encodings(encodings.params | {f"{fault}.weight": wrong}, encodings.activations)
    found = locate(tiny_checkpoint, planted, tokens, SM8650, tmp_path)
    assert found.first((FLOAT, SIM)) == fault
    assert found.first((SIM, CPU)) is None and found.first((CPU, HTP)) is None
    assert f"{FLOAT} | {SIM}: {fault}" in found.render()


@pytest.mark.parametrize(("pair", "stage"), [((SIM, CPU), "_run_torch"), ((CPU, HTP), "_run_cpu")])
def test_fault_in_one_implementation_is_seen_there(
    tiny_checkpoint, encodings, tokens, tmp_path, monkeypatch, pair, stage
):
    """As if that implementation computed one tensor otherwise than its neighbour."""
    real = getattr(module, stage)

    def faulty(*arguments):
        results = real(*arguments)
        return results | {n: v * 1.1 for n, v in results.items() if n == "probe_blocks_2_att_value"}

    monkeypatch.setattr(module, stage, faulty)
    assert locate(tiny_checkpoint, encodings, tokens, SM8650, tmp_path).first(pair) == "blocks.2.att.value"


def test_underscores_in_names_survive(tmp_path):
    """RWKV-6's linears are called time_maa_w1 and the like; a table must name what a user can look up."""
    spec = ModelSpec(
        version="6.0", n_layer=1, n_embd=32, head_size=16, n_ffn=48, vocab_size=40, lora=LoraRanks(mix=4, decay=4)
    )
    chunk = load_chunk(Checkpoint.open(write_random_checkpoint(spec, tmp_path / "six.pth")), 0, 1)
    probed = Probed(chunk)
    modules = dict(chunk.named_modules())
    assert "blocks.0.att.time_maa_w1" in probed.probed and set(probed.probed) <= modules.keys()
    assert probed.output_names[-len(probed.probed) :] == probed.probe_names


@pytest.mark.parametrize("count", [0, 16, 33])
def test_other_lengths_are_refused(tiny_checkpoint, encodings, tmp_path, count):
    with pytest.raises(RwkvlabError):
        locate(tiny_checkpoint, encodings, [1] * count, SM8650, tmp_path)
