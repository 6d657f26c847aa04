"""What the notebooks do first: from the text of their parameters to a model, items to evaluate on, and a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.lambada import encode_context
from rwkvlab.runs import results_root
from rwkvlab.stages import Stages
from rwkvlab.texts.lambada import Item, load_items
from rwkvlab.texts.stories import EVALUATION_SEED, STORIES, generate
from rwkvlab.tokenizer import Tokenizer, load_tokenizer


def open_stages(model: str, tokenizer: str, results: Path | str = "") -> Stages:
    """A model with its stage cache in `<results>/stages`, which all notebooks share.

    Args:
        model: path of a checkpoint, or the name of a bundled model.
        tokenizer: "zoo", "world", "bytes" or a vocabulary file.
        results: folder of all results; empty is the project's.

    Raises:
        RwkvlabError: see `Checkpoint.open`, `load_tokenizer` and `check_vocabulary`.
    """
    checkpoint, vocabulary = Checkpoint.open(zoo.find(model)), load_tokenizer(tokenizer)
    return Stages(checkpoint, vocabulary, results_root(results) / "stages", progress=False)


def evaluation_items(source: str, n: int, seed: int = EVALUATION_SEED) -> tuple[str, list[Item]]:
    """The task's name and its items.

    Args:
        source: "stories", unseen ones of the bundled world; or a LAMBADA .jsonl or .txt file, or "hub" for the official
            set, of which all items are returned and the first `n` are to be measured.
        n: how many stories.
        seed: of the stories.

    Raises:
        RwkvlabError: `n` is below 1, or the file cannot be read.
    """
    if n < 1:
        raise RwkvlabError(f"{n} items to evaluate", "at least 1", "raise the number")
    if source == STORIES:
        return STORIES, [Item(story.context, story.target) for story in generate(n, seed, "test")]
    return "lambada", load_items(source)


def token_rows(items: Sequence[Item], tokenizer: Tokenizer, bos: bool = True) -> list[list[int]]:
    """Whole items, last word included, as token ids."""
    return [encode_context(item.context, tokenizer, bos) + tokenizer.encode(item.target) for item in items]
