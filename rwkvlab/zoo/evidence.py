"""The bundled model's figures on unseen stories: what it can do, and what 4-bit weights cost it.

    python -m rwkvlab.zoo.evidence

Nothing else imports this module, so it may lean on the quantization package, which comes after the zoo.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.model.load import load_model
from rwkvlab.model.rwkv import Model
from rwkvlab.quant.grid import round_to_nearest
from rwkvlab.quant.recipe import LARGE_LINEARS
from rwkvlab.texts.stories import EVALUATION_SEED, Story, generate
from rwkvlab.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer

_ROWS = 50
_LONGEST_ANSWER = 4


@dataclass(frozen=True)
class Figures:
    """What `measure` finds; shares are of all items, divergences in nats.

    Attributes:
        stories: items behind the accuracies and divergences.
        positions: tokens behind the mean divergence.
        accuracy: last word is the most likely one, whole story read.
        last_sentence_accuracy: the same, only the last sentence read.
        w4_accuracy: whole story read, weights rounded to 4 bits.
        w4_divergence: mean over positions of KL(float || 4 bits).
        answers, questions: dialogue turns answered exactly.
    """

    stories: int
    positions: int
    accuracy: float
    last_sentence_accuracy: float
    w4_accuracy: float
    w4_divergence: float
    answers: int
    questions: int


def measure(model: Model, tokenizer: Tokenizer, stories: int, questions: int, seed: int = EVALUATION_SEED) -> Figures:
    """Evaluate a model of the story world on `stories` test stories and the first question about `questions` others."""
    items = generate(stories, seed, "test")
    asked = generate(questions, seed + 1, "test")
    rounded = round_weights(model)
    divergence, positions = _divergence(model, rounded, tokenizer, items)
    return Figures(
        stories=stories,
        positions=positions,
        accuracy=accuracy(model, tokenizer, items, whole_story),
        last_sentence_accuracy=accuracy(model, tokenizer, items, last_sentence),
        w4_accuracy=accuracy(rounded, tokenizer, items, whole_story),
        w4_divergence=divergence,
        answers=sum(answer(model, tokenizer, story.prompt(0)) == story.turns[0].answer for story in asked),
        questions=questions,
    )


def whole_story(story: Story) -> str:
    """Everything before the last word."""
    return story.context


def last_sentence(story: Story) -> str:
    """The last sentence up to its last word, with the space that precedes it in the story."""
    return " " + story.last_sentence.rsplit(" ", 1)[0]


@torch.no_grad()
def accuracy(model: Model, tokenizer: Tokenizer, stories: Sequence[Story], context: Callable[[Story], str]) -> float:
    """Share of stories whose last word is the most likely continuation of `context(story)`."""
    hits = 0
    for start in range(0, len(stories), _ROWS):
        some = stories[start : start + _ROWS]
        rows, lengths = _padded([_ids(tokenizer, context(story)) for story in some])
        best = model(rows)[0][torch.arange(len(some)), lengths - 1].argmax(-1)
        hits += sum([token] == tokenizer.encode(story.target) for token, story in zip(best.tolist(), some, strict=True))
    return hits / len(stories)


@torch.no_grad()
def answer(model: Model, tokenizer: Tokenizer, prompt: str) -> str:
    """The model's most likely continuation of a dialogue, up to the end of its turn, without the leading space."""
    logits, state = model(torch.tensor([_ids(tokenizer, prompt)]))
    ids: list[int] = []
    while len(ids) < _LONGEST_ANSWER:
        token = int(logits[0, -1].argmax())
        if token == END_OF_TEXT or "\n" in tokenizer.decode([token]):
            break
        ids.append(token)
        logits, state = model(torch.tensor([[token]]), state)
    return tokenizer.decode(ids).removeprefix(" ")


@torch.no_grad()
def round_weights(model: Model) -> Model:
    """A copy with the large linears rounded to the nearest 4-bit value per output channel, the head to 8 bits."""
    rounded = copy.deepcopy(model)
    for name, module in rounded.named_modules():
        if name.endswith((*LARGE_LINEARS, "head")) and isinstance(module, torch.nn.Linear):
            module.weight.copy_(round_to_nearest(module.weight, 8 if name.endswith("head") else 4))
    return rounded


@torch.no_grad()
def _divergence(reference: Model, other: Model, tokenizer: Tokenizer, stories: Sequence[Story]) -> tuple[float, int]:
    total, count = 0.0, 0
    for start in range(0, len(stories), _ROWS):
        rows, lengths = _padded([_ids(tokenizer, story.text) for story in stories[start : start + _ROWS]])
        expected, got = (model(rows)[0].log_softmax(-1) for model in (reference, other))
        kept = torch.arange(rows.shape[1]) < lengths[:, None]
        total += float((expected.exp() * (expected - got)).sum(-1)[kept].double().sum())
        count += int(kept.sum())
    return total / count, count


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [END_OF_TEXT, *tokenizer.encode(text)]


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows padded on the right, where a causal model's earlier positions do not see it, and their lengths."""
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.full((len(rows), int(lengths.max())), END_OF_TEXT)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row)
    return padded, lengths


def report(figures: Figures) -> str:
    """The figures as text, each with what the bundled model has to reach."""
    f = figures
    lost = 100 * (f.accuracy - f.w4_accuracy)
    return "\n".join(
        [
            f"unseen stories (held-out templates)    n = {f.stories}, {f.positions} positions",
            f"last word, whole story read, fp32      {f.accuracy:.1%}   (at least 85 %)",
            f"last word, last sentence only          {f.last_sentence_accuracy:.1%}   (below 35 %)",
            f"last word, round-to-nearest W4         {f.w4_accuracy:.1%}   costs {lost:.1f} points (at least 3,",
            f"mean KL(fp32 || W4)                    {f.w4_divergence:.4f} nats   or at least 0.03 nats)",
            f"questions answered exactly, fp32       {f.answers}/{f.questions} = {f.answers / f.questions:.1%}",
        ]
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="checkpoint; the bundled x070 by default")
    parser.add_argument("--stories", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=200)
    arguments = parser.parse_args()
    model = load_model(Checkpoint.open(arguments.model or zoo.path("x070")))
    print(report(measure(model, load_tokenizer("zoo"), arguments.stories, arguments.questions)))


if __name__ == "__main__":
    main()
