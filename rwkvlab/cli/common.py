"""What several commands share: arguments, opening models, refusing to overwrite, naming the next command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rwkvlab import zoo
from rwkvlab.errors import RwkvlabError
from rwkvlab.tokenizer import Tokenizer, check_vocabulary, load_tokenizer

if TYPE_CHECKING:
    from rwkvlab.checkpoint import Checkpoint

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .pth or .safetensors checkpoint, or a bundled model: x070.")
]
TokenizerName = Annotated[
    str, typer.Option("--tokenizer", metavar="NAME", help="zoo, world, bytes, abc, or a World-format vocabulary file.")
]
Encoded = Annotated[
    Path | None, typer.Option("--encodings", metavar="FILE", help="Made by rwkvlab quantize; none means float.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]

DEFAULT_TOKENIZER = "zoo"


def examples(*lines: str) -> str:
    """Help text that shows how a command is used, one example a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def open_model(model: str) -> Checkpoint:
    """Open a checkpoint by path or by a bundled model's name.

    Raises:
        RwkvlabError: see `Checkpoint.open`.
    """
    from rwkvlab.checkpoint import Checkpoint

    return Checkpoint.open(zoo.find(model))


def open_tokenizer(name: str, vocab_size: int) -> Tokenizer:
    """Load a tokenizer and check that it can be the one of a model with `vocab_size` rows.

    Raises:
        RwkvlabError: no such vocabulary, a malformed one, or one of another model.
    """
    tokenizer = load_tokenizer(name)
    check_vocabulary(tokenizer, vocab_size)
    return tokenizer


def refuse_unwritable(folder: Path) -> None:
    """Stop before any work if files cannot be written below `folder`, which need not exist yet.

    Raises:
        RwkvlabError: it, or the nearest of its parents that exists, is a file or write-protected.
    """
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise RwkvlabError(f"cannot write into {place}", "a folder that you may write to", "choose another output")


def refuse_existing(path: Path, force: bool) -> None:
    """Stop before any work if `path` is a file we would replace or cannot write.

    Raises:
        RwkvlabError: it exists and `force` is off, it is a folder, or its folder cannot be written.
    """
    refuse_unwritable(path.parent)
    if path.is_dir():
        raise RwkvlabError(f"{path} is a folder", "the name of a file", "add a file name to it")
    if path.exists() and not force:
        raise RwkvlabError(f"{path} exists already", "a new file", "choose another -o, or add --force to replace it")


def table(title: str, columns: list[str], rows: list[list[str]], left: int = 1) -> None:
    """Print a table; all columns but the first `left` hold numbers and are aligned to the right."""
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*(cell.replace("[", "\\[") for cell in row))
    Console(file=sys.stdout).print(made)


def show_progress() -> bool:
    """Whether somebody is looking; a log file gets no bars."""
    return sys.stderr.isatty()


def tokenizer_words(name: str) -> list[str]:
    """The option that picks this tokenizer in another command; none for the one picked anyway."""
    return [] if name == DEFAULT_TOKENIZER else ["--tokenizer", name]


def fitting_tokenizer(vocab_size: int) -> str:
    """The first of our tokenizers that can be the one of a model with `vocab_size` rows, for a suggestion."""
    for name in (DEFAULT_TOKENIZER, "world", "bytes", "abc"):
        try:
            open_tokenizer(name, vocab_size)
        except RwkvlabError:
            continue
        return name
    return "FILE"


def say_next(*words: str | Path) -> None:
    """End a command with the one that comes next, ready to be pasted."""
    typer.echo(f"next: {shlex.join(['rwkvlab', *map(str, words)])}")
