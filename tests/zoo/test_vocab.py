"""The bundled vocabulary is exactly what the story world needs."""

from __future__ import annotations

import pytest

from rwkvlab import zoo
from rwkvlab.errors import RwkvlabError
from rwkvlab.texts.stories import generate
from rwkvlab.tokenizer import load_tokenizer
from rwkvlab.zoo.network import X070
from rwkvlab.zoo.vocab import vocabulary, vocabulary_text


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("zoo")


def test_file_is_in_step_with_the_world():
    assert zoo.vocab_path().read_text(encoding="utf-8") == vocabulary_text(vocabulary())


def test_single_bytes_come_first():
    tokens = vocabulary()
    assert tokens[:256] == [bytes([value]) for value in range(256)]
    assert len(set(tokens)) == len(tokens)


def test_size_fits_the_model(tokenizer):
    assert 756 <= tokenizer.vocab_size <= X070.vocab_size


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_word_is_one_token(tokenizer, split):
    """Single bytes are used for punctuation only."""
    punctuation = {1 + ord(mark) for mark in ".,:?"}
    for story in generate(1000, 21, split):
        text = f"{story.text}.\n\n{story.dialogue}"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not [token for token in ids if token <= 256 and token not in punctuation]
        assert len(tokenizer.encode(story.target)) == 1


def test_encodings_of_context_and_target_join_to_that_of_the_text(tokenizer):
    for story in generate(200, 22, "test"):
        assert tokenizer.encode(story.context) + tokenizer.encode(story.target) == tokenizer.encode(story.text)


def test_unknown_model_is_refused_with_the_names_there_are():
    with pytest.raises(RwkvlabError, match="x070"):
        zoo.path("x999")
