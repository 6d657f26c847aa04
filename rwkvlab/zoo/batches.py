"""Training batches from the story world: every batch is a function of (seed, step), so a resumed run sees what an
uninterrupted one would have seen."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from rwkvlab.texts.stories import Story, generate
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


def batch(tokenizer: Tokenizer, seed: int, step: int, rows: int, length: int) -> Batch:
    """Rows of whole documents, each row starting with a fresh one and the last one in a row cut off."""
    rng = random.Random(f"{seed}-{step}")
    stories = iter(generate(rows * (length // 40 + 2), rng.getrandbits(48), "train"))
    filled = [_row(tokenizer, stories, rng, length + 1) for _ in range(rows)]
    tokens, weights = (torch.tensor(part) for part in zip(*filled, strict=True))
    return Batch(tokens, weights[:, 1:])


def _row(tokenizer: Tokenizer, stories, rng: random.Random, length: int) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    weights: list[float] = []
    while len(tokens) < length:
        for piece, weight in _document(next(stories), rng.random() < DIALOGUE_SHARE):
            ids = tokenizer.encode(piece)
            tokens += ids if piece else [END]
            weights += [weight] * (len(ids) or 1)
    return tokens[:length], weights[:length]


def _document(story: Story, with_dialogue: bool) -> list[tuple[str, float]]:
    """Pieces of text with their loss weights; the empty piece stands for the end-of-text token."""
    pieces = [("", 1.0), (story.context, 1.0), (story.target, ANSWER_WEIGHT)]
    if with_dialogue:
        pieces.append((".\n\n", 1.0))
        for turn in story.turns:
            *article, answer = turn.answer.rsplit(" ", 1)
            opening = "".join([f"User: {turn.question}\n\nAssistant:", *(f" {word}" for word in article)])
            pieces += [(opening, 1.0), (f" {answer}", ANSWER_WEIGHT), ("\n\n", 1.0)]
    return pieces
