"""Last-word prediction, by LAMBADA's definition (Paperno et al. 2016; EleutherAI's lambada_openai task).

    ppl = exp(-mean over items of the summed log-probability of the last word's tokens)
    acc = share of items whose last-word tokens are all the argmax

The text before the word and the word with its leading space are tokenised separately; token 0 comes first, unless
switched off to compare with rows that rwkv-qualcomm published before March 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.numerics import log_softmax, wilson_interval
from rwkvlab.evaluate.protocol import LogitSource, Protocol, make_protocol
from rwkvlab.texts.lambada import Item
from rwkvlab.tokenizer import Tokenizer

BOS = 0


@dataclass(frozen=True)
class LambadaResult:
    """Per-item scores with their protocol.

    Attributes:
        protocol: how they were obtained.
        log_probs: summed log-probability of each item's last word, nats, in the items' order.
        correct: whether every token of the word was the argmax.
    """

    protocol: Protocol
    log_probs: np.ndarray
    correct: np.ndarray

    @property
    def k(self) -> int:
        """Items whose word was predicted."""
        return int(self.correct.sum())

    @property
    def n(self) -> int:
        """Items measured."""
        return len(self.correct)

    @property
    def acc(self) -> float:
        """k / n."""
        return self.k / self.n

    @property
    def acc_interval(self) -> tuple[float, float]:
        """95 % interval of acc."""
        return wilson_interval(self.k, self.n)

    @property
    def ppl(self) -> float:
        """Perplexity per last word, not per token; infinite where it exceeds what a float holds."""
        with np.errstate(over="ignore"):
            return float(np.exp(-self.log_probs.mean()))

    def __str__(self) -> str:
        low, high = self.acc_interval
        notes = [self.protocol.where, f"token 0 first: {'yes' if self.protocol.bos else 'no'}", self.protocol.partial]
        return (
            f"ppl {self.ppl:.4f}  acc {self.k}/{self.n} = {self.acc:.2%} (95 % {low:.2%} to {high:.2%})  "
            f"[{', '.join(filter(None, notes))}]"
        )


def evaluate_lambada(
    source: LogitSource,
    items: Sequence[Item],
    tokenizer: Tokenizer,
    bos: bool = True,
    limit: int | None = None,
    task: str = "lambada",
    progress: bool = True,
) -> LambadaResult:
    """Score the last word of every item.

    Args:
        source: what computes the logits.
        items: context and target.
        tokenizer: the model's.
        bos: put token 0 first.
        limit: measure the first so many items only; the result says that it is partial.
        task: name of the item set, for the protocol.
        progress: show a bar.

    Raises:
        RwkvlabError: no items, or a logit is not finite.
    """
    chosen = list(items[:limit])
    if not chosen:
        raise RwkvlabError("no items to evaluate", "at least one", "raise --limit or check the item file")
    pairs = [(encode_context(item.context, tokenizer, bos), tokenizer.encode(item.target)) for item in chosen]
    log_probs, correct = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
    sequences = [context + target[:-1] for context, target in pairs]
    scored = source.logits(sequences)
    for index, logits in tqdm(scored, total=len(pairs), desc=f"{task} {source.where}", disable=not progress):
        target = pairs[index][1]
        log_probs[index], correct[index] = _score(logits[-len(target) :], target)
    if not np.isfinite(log_probs).all():
        bad = int(np.flatnonzero(~np.isfinite(log_probs))[0])
        raise RwkvlabError(
            f"{source.where} gave logits that are not finite for item {bad}",
            "finite logits",
            "check the model's activation ranges: notebook 20_calibrate",
        )
    texts = [item.context + item.target for item in chosen]
    return LambadaResult(make_protocol(task, source.where, tokenizer, texts, bos, len(items)), log_probs, correct)


def encode_context(text: str, tokenizer: Tokenizer, bos: bool) -> list[int]:
    """Token ids of the text before the word."""
    ids = tokenizer.encode(text)
    if not bos and not ids:
        raise RwkvlabError(
            "an item has no context", "text before the last word, or token 0 first", "leave out --no-bos"
        )
    return [BOS, *ids] if bos else ids


def _score(logits: np.ndarray, target: Sequence[int]) -> tuple[float, bool]:
    log_probs = log_softmax(logits)[np.arange(len(target)), target]
    return float(log_probs.sum()), bool((logits.argmax(-1) == np.array(target)).all())
