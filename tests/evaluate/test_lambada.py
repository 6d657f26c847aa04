from __future__ import annotations

import math

import numpy as np
import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.lambada import encode_context, evaluate_lambada
from rwkvlab.texts.lambada import Item
from rwkvlab.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")


class Scripted:
    """A source whose logits are a function of the sequence; yields in reverse order, as sources may."""

    where = "scripted"

    def __init__(self, score) -> None:
        self.score, self.seen = score, []

    def logits(self, sequences):
        self.seen = [list(ids) for ids in sequences]
        for index in reversed(range(len(sequences))):
            yield index, self.score(self.seen[index])


def knows(word: bytes, favourite: float, start: int):
    """Gives the bytes of `word` in turn the probability `favourite` from position `start` on, the rest share evenly."""

    def score(ids):
        probabilities = np.full((len(ids), 256), (1 - favourite) / 255)
        for offset, byte in enumerate(word):
            if start + offset < len(ids):
                probabilities[start + offset, byte] = favourite
        return np.log(probabilities).astype(np.float32) + 7  # any constant: logits are not normalised

    return score


def test_scores_by_hand():
    """Two items of one context; " ab" is expected with 0.5 a byte. The other's word shares " a" and then fails."""
    items = [Item("xyz", " ab"), Item("xyz", " ac")]
    result = evaluate_lambada(Scripted(knows(b" ab", 0.5, 3)), items, BYTES, progress=False)
    right, wrong = 3 * math.log(0.5), 2 * math.log(0.5) + math.log(0.5 / 255)
    np.testing.assert_allclose(result.log_probs, [right, wrong], rtol=1e-5)
    assert result.correct.tolist() == [True, False] and (result.k, result.n, result.acc) == (1, 2, 0.5)
    assert math.isclose(result.ppl, math.exp(-(right + wrong) / 2), rel_tol=1e-5)
    assert "acc 1/2 = 50.00%" in str(result)


def test_every_token_of_the_word_must_be_the_argmax():
    score = knows(b" ab", 0.9, 3)

    def misses_the_middle(ids):
        logits = score(ids)
        logits[4, ord("q")] = 100
        return logits

    result = evaluate_lambada(Scripted(misses_the_middle), [Item("xyz", " ab")], BYTES, progress=False)
    assert result.k == 0


@pytest.mark.parametrize("bos", [True, False])
def test_what_the_source_reads(bos):
    source = Scripted(lambda ids: np.zeros((len(ids), 256), np.float32))
    result = evaluate_lambada(source, [Item("xyz", " ab")], BYTES, bos=bos, progress=False)
    # the word's last token is predicted, never read; token 0 comes first unless switched off
    assert source.seen == [[0] * bos + list(b"xyz a")]
    assert result.protocol.bos == bos
    np.testing.assert_allclose(result.log_probs, -3 * math.log(256))


def test_item_without_context_needs_the_leading_token():
    assert encode_context("", BYTES, bos=True) == [0]
    with pytest.raises(RwkvlabError, match="no-bos"):
        encode_context("", BYTES, bos=False)


def flat(ids):
    return np.zeros((len(ids), 256), np.float32)


def test_partial_runs_say_so():
    items = [Item("a", " b")] * 5
    part = evaluate_lambada(Scripted(flat), items, BYTES, limit=2, progress=False)
    assert part.n == 2 and part.protocol.partial == "partial: 2 of 5 items" and "partial: 2 of 5" in str(part)
    whole = evaluate_lambada(Scripted(flat), items, BYTES, progress=False)
    assert whole.protocol.partial == "" and "partial" not in str(whole)


def test_protocol_tells_item_sets_apart():
    def protocol(*items):
        return evaluate_lambada(Scripted(flat), list(items), BYTES, progress=False).protocol

    first = protocol(Item("a", " b"))
    assert first == protocol(Item("a", " b"))
    assert first.items_hash != protocol(Item("a", " c")).items_hash
    assert (first.where, first.tokenizer, first.n) == ("scripted", "bytes", 1)
    assert BYTES.hash.startswith(first.tokenizer_hash)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(bad):
    def score(ids):
        logits = flat(ids)
        logits[-1, 3] = bad
        return logits

    with pytest.raises(RwkvlabError, match="not finite for item 0"):
        evaluate_lambada(Scripted(score), [Item("a", " b")], BYTES, progress=False)


def test_hopeless_models_have_an_infinite_perplexity():
    """exp(1000) does not fit a float; a broken model must give a number, not a traceback."""

    def score(ids):
        logits = flat(ids)
        logits[:, 0] = 1000
        return logits

    result = evaluate_lambada(Scripted(score), [Item("a", " bcd")], BYTES, progress=False)
    assert result.ppl == math.inf and result.acc == 0


@pytest.mark.parametrize(("items", "limit"), [([], None), ([Item("a", " b")], 0)])
def test_nothing_to_measure_is_refused(items, limit):
    with pytest.raises(RwkvlabError, match="no items"):
        evaluate_lambada(Scripted(flat), items, BYTES, limit=limit, progress=False)


def test_torch_agrees_with_scoring_word_by_word(tiny_checkpoint):
    """An independent path: step through the words and pick the probabilities one at a time."""
    import torch

    from rwkvlab.model.load import load_model
    from rwkvlab.quant.torch_source import TorchSource

    class Letters:
        name, hash, vocab_size = "letters", "0" * 64, 80

        def encode(self, text):
            return [ord(c) % 80 for c in text]

    items = [Item("once upon a", " time"), Item("a", " b"), Item("the quick brown fox jumps over the", " dog")]
    result = evaluate_lambada(TorchSource(tiny_checkpoint), items, Letters(), progress=False)  # type: ignore[arg-type]
    model = load_model(tiny_checkpoint)
    for item, log_prob in zip(items, result.log_probs, strict=True):
        state, total = None, 0.0
        context, word = [0, *Letters().encode(item.context)], Letters().encode(item.target)
        for token in context:
            logits, state = model(torch.tensor([[token]]), state)
        for token in word:
            total += torch.log_softmax(logits[0, 0].double(), 0)[token].item()
            logits, state = model(torch.tensor([[token]]), state)
        assert math.isclose(log_prob, total, rel_tol=1e-4)
