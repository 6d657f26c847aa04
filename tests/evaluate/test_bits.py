from __future__ import annotations

import math

import numpy as np
import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.bits import bits_per_byte
from rwkvlab.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")


class Constant:
    """Gives the letter `a` one probability everywhere."""

    where = "constant"

    def __init__(self, share: float) -> None:
        self.logit, self.seen = math.log(share / ((1 - share) / 255)), []

    def logits(self, sequences):
        self.seen = [list(ids) for ids in sequences]
        for index, ids in enumerate(sequences):
            scores = np.zeros((len(ids), 256), np.float32)
            scores[:, ord("a")] = self.logit
            yield index, scores


def test_every_byte_is_predicted_once():
    source = Constant(0.5)
    got = bits_per_byte(source, ["aab", "a"], BYTES)
    assert source.seen == [[0, 97, 97], [0]] and got.n_bytes == 4
    np.testing.assert_allclose(got.bits, 3 * 1 + 1 * (1 + math.log2(255)), rtol=1e-6)
    np.testing.assert_allclose(got.value, got.bits / 4)
    assert got.protocol.bos and got.protocol.n == 2


def test_without_leading_token_the_first_is_only_read():
    source = Constant(0.25)
    got = bits_per_byte(source, ["baa"], BYTES, bos=False)
    assert source.seen == [[98, 97]] and got.n_bytes == 2
    np.testing.assert_allclose(got.bits, 4, rtol=1e-6)


def test_bytes_not_characters():
    assert bits_per_byte(Constant(0.5), ["aé"], BYTES).n_bytes == 3


@pytest.mark.parametrize(("texts", "bos"), [([], True), ([""], True), (["a", ""], True), (["a"], False)])
def test_nothing_to_predict_is_refused(texts, bos):
    with pytest.raises(RwkvlabError, match="no token to predict"):
        bits_per_byte(Constant(0.5), texts, BYTES, bos=bos)
