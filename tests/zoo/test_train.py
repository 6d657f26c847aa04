"""Training the bundled model: data, gradients, resuming, and what it writes."""

from __future__ import annotations

import pytest
import torch

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.load import load_model
from rwkvlab.tokenizer import load_tokenizer
from rwkvlab.zoo.batches import ANSWER_WEIGHT, Reading, batch
from rwkvlab.zoo.network import X070, Network, checkpoint_tensors, initialise, spread_norm_gains
from rwkvlab.zoo.train import Settings, Training, train

SMALL = Settings(steps=4, rows=2, length=48)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_batches_depend_on_seed_and_step_only():
    tokenizer = load_tokenizer("zoo")
    first, again, other = (batch(tokenizer, 1, step, 3, 128, Reading()) for step in (5, 5, 6))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert first.tokens.shape == (3, 129) and first.weights.shape == (3, 128)


@pytest.mark.parametrize("lesson_share", [0.0, 1.0])
def test_rows_start_with_a_document_and_answers_weigh_more(lesson_share):
    tokenizer = load_tokenizer("zoo")
    data = batch(tokenizer, 1, 0, 8, 256, Reading(lessons=lesson_share))
    assert (data.tokens[:, 0] == 0).all()
    weighted = data.tokens[:, 1:][data.weights == ANSWER_WEIGHT]
    assert len(weighted) >= 8 * 2
    assert all(tokenizer.decode([token]).startswith(" ") for token in weighted.tolist())
    known_bytes = {1 + ord(mark) for mark in ".,:?"}
    assert not [token for token in data.tokens.flatten().tolist() if 0 < token <= 256 and token not in known_bytes]


def test_every_parameter_learns():
    training = Training(SMALL, torch.device("cpu"))
    before = {name: value.clone() for name, value in training.network.named_parameters()}
    for _ in range(4):
        training.advance()
    unchanged = [name for name, value in training.network.named_parameters() if torch.equal(value, before[name])]
    assert not unchanged


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    whole = Checkpoint.open(train(SMALL, tmp_path / "whole.pth"))
    half = Training(SMALL, torch.device("cpu"))
    for _ in range(2):
        half.advance()
    half.save(tmp_path / "parts.resume.pt")
    parts = Checkpoint.open(train(SMALL, tmp_path / "parts.pth"))
    assert all(torch.equal(whole.tensor(name), parts.tensor(name)) for name in whole.shapes)
    assert not (tmp_path / "parts.resume.pt").exists()


def test_a_run_with_other_settings_is_not_resumed(tmp_path):
    Training(SMALL, torch.device("cpu")).save(tmp_path / "x.resume.pt")
    with pytest.raises(RwkvlabError, match=r"x\.resume\.pt"):
        train(Settings(steps=5, rows=2, length=48), tmp_path / "x.pth")


def test_outlier_channels_leave_the_logits_alone():
    network = _random_network()
    tokens = torch.randint(0, X070.vocab_size, (2, 19), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = network(tokens)
        key = network.blocks[2].att.key.weight.clone()
        spread_norm_gains(network, 1.0, torch.Generator().manual_seed(2))
        assert float((network.blocks[2].att.key.weight - key).abs().max()) > 0.1
        torch.testing.assert_close(network(tokens), before, rtol=1e-4, atol=1e-4)


def test_written_checkpoint_computes_what_the_network_does(tmp_path):
    """BlinkDL's names and layouts, read back by the reader every model goes through."""
    network = _random_network()
    torch.save(checkpoint_tensors(network, torch.float32), tmp_path / "n.pth")
    checkpoint = Checkpoint.open(tmp_path / "n.pth")
    assert checkpoint.spec == X070
    tokens = torch.randint(0, X070.vocab_size, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load_model(checkpoint)(tokens)[0], network(tokens), rtol=1e-4, atol=1e-4)


def _random_network() -> Network:
    """No parameter at zero or one, so that none can be misplaced unnoticed."""
    network = Network(X070)
    generator = torch.Generator().manual_seed(0)
    initialise(network, generator)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.1 * torch.randn(value.shape, generator=generator)
    return network
