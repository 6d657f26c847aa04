"""Training batches from the story world: every batch is a function of (seed, step), so a resumed run sees what an
uninterrupted one would have seen."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rwkvlab.texts.stories import Story, generate, lessons
from rwkvlab.tokenizer import Tokenizer

END = 0
"""Token id that starts every document."""
ANSWER_WEIGHT = 4.0
"""Weight in the loss of the tokens that the story determines; every other token has weight 1."""
DIALOGUE_SHARE = 0.5
"""Share of documents whose story is followed by questions and answers: a quarter of all tokens."""


@dataclass(frozen=True)
class Batch:
    """Token ids [rows, length + 1] and the loss weight [rows, length] of each predicted one."""

    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Reading:
    """What a step of training reads.

    Attributes:
        lessons: share of documents that are short lessons instead of stories.
        easy: whether the stories are easy ones.
    """

    lessons: float = 0.0
    easy: bool = False


def batch(tokenizer: Tokenizer, seed: int, step: int, rows: int, length: int, reading: Reading) -> Batch:
    """Rows of whole documents, each row starting with a fresh one and the last one in a row cut off.

    Args:
        tokenizer: of the bundled models.
        seed, step: what the batch is a function of.
        rows, length: its shape, in tokens.
        reading: which documents.
    """
    rng = random.Random(f"{seed}-{step}")
    documents = _documents(rng, rows * (length // 25 + 2), reading)
    filled = [_row(tokenizer, documents, length + 1) for _ in range(rows)]
    tokens, weights = (torch.tensor(part) for part in zip(*filled, strict=True))
    return Batch(tokens, weights[:, 1:])


Piece = tuple[str, float]
"""Text and the weight of its tokens in the loss; the empty text stands for the end-of-text token."""


def _documents(rng: random.Random, at_most: int, reading: Reading) -> Iterator[list[Piece]]:
    stories = generate(at_most, rng.getrandbits(48), "train", reading.easy)
    easy = lessons(at_most, rng.getrandbits(48))
    for story, lesson in zip(stories, easy, strict=True):
        is_lesson, with_dialogue = rng.random() < reading.lessons, rng.random() < DIALOGUE_SHARE
        chosen = lesson if is_lesson else story
        body = _pieces(chosen.text, chosen.recalls, begin=" " if is_lesson else "")
        yield [("", 1.0), *body, *(_dialogue_pieces(chosen) if with_dialogue else [])]


def _row(tokenizer: Tokenizer, documents: Iterator[list[Piece]], length: int) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    weights: list[float] = []
    while len(tokens) < length:
        for text, weight in next(documents):
            ids = tokenizer.encode(text) if text else [END]
            tokens += ids
            weights += [weight] * len(ids)
    return tokens[:length], weights[:length]


def _pieces(text: str, recalls: Sequence[int], begin: str) -> list[Piece]:
    """`begin` is " " for a lesson, which starts as if in mid-text: with a word that has a leading space."""
    pieces, done = [], 0
    for start in recalls:
        word = re.match(r" [A-Za-z]+", text[start:])
        assert word, f"no word at {start} of {text!r}"
        pieces += [(begin + text[done:start], 1.0), (word[0], ANSWER_WEIGHT)]
        begin, done = "", start + len(word[0])
    return pieces


def _dialogue_pieces(story: Story) -> list[Piece]:
    pieces = [(".\n\n", 1.0)]
    for turn in story.turns:
        opening, answer = f"User: {turn.question}\n\nAssistant: {turn.answer}".rsplit(" ", 1)
        pieces += [(opening, 1.0), (f" {answer}", ANSWER_WEIGHT), ("\n\n", 1.0)]
    return pieces
