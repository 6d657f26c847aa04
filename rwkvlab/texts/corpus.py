"""Text for calibration: files in, rows of tokens out, counted and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.tokenizer import END_OF_TEXT, Tokenizer


@dataclass(frozen=True)
class Source:
    """A named text."""

    name: str
    text: str


@dataclass(frozen=True, eq=False)
class CalibrationText:
    """Rows of tokens to run a model on.

    Attributes:
        batches: int64 [rows, length]; every row starts with the end-of-text token, as every prompt does.
        sha256: hex digest of the ids, little-endian, row by row: equal digests mean equal calibration input.
        sources: names of the texts the rows were cut from.
    """

    batches: np.ndarray
    sha256: str
    sources: tuple[str, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens in all, leading ones included."""
        return self.batches.size


def calibration_tokens(
    paths: Path | str | Iterable[Path | str], tokenizer: Tokenizer, n_tokens: int, length: int
) -> CalibrationText:
    """`cut_rows` of text files, or of all .txt files below a folder in the order of their names.

    Raises:
        RwkvlabError: a missing, unreadable, empty or non-UTF-8 file, no files, or too little text (with counts).
    """
    return cut_rows(read_sources(paths), tokenizer, n_tokens, length)


def read_sources(paths: Path | str | Iterable[Path | str]) -> list[Source]:
    """Text files, and the .txt files below folders, as named texts."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    files = [file for path in given for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]
    if not files:
        raise RwkvlabError(
            f"no text files in {', '.join(map(str, given)) or 'an empty list'}", "text files, or folders of .txt files"
        )
    return [Source(file.name, _read(file)) for file in files]


def cut_rows(sources: Sequence[Source], tokenizer: Tokenizer, n_tokens: int, length: int) -> CalibrationText:
    """Cut the texts, joined by end-of-text tokens, into rows, and take as many as needed, evenly spread over the whole.

    Args:
        sources: the texts.
        tokenizer: the model's.
        n_tokens: at least so many tokens in all; rounded up to whole rows.
        length: tokens in a row, the leading end-of-text token included.

    Raises:
        RwkvlabError: the texts are too short (with counts), or `n_tokens` or `length` makes no sense.
    """
    if n_tokens < 1 or length < 2:
        raise RwkvlabError(f"n_tokens {n_tokens}, length {length}", "n_tokens >= 1 and length >= 2")
    stream: list[int] = []
    for source in sources:
        stream += [END_OF_TEXT] * bool(stream) + tokenizer.encode(source.text)
    rows, available = -(-n_tokens // length), len(stream) // (length - 1)
    if available < rows:
        raise RwkvlabError(
            f"the calibration text has {len(stream)} tokens, enough for {available} rows of {length}",
            f"{rows} rows, from at least {rows * (length - 1)} tokens",
            "give more text, or ask for fewer tokens or shorter rows",
        )
    windows = np.array(stream[: available * (length - 1)], dtype=np.int64).reshape(available, length - 1)
    chosen = windows[np.arange(rows) * available // rows]
    batches = np.pad(chosen, ((0, 0), (1, 0)), constant_values=END_OF_TEXT)
    digest = hashlib.sha256(batches.astype("<i8").tobytes()).hexdigest()
    return CalibrationText(batches, digest, tuple(source.name for source in sources))


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RwkvlabError(f"cannot read {path}: {error.strerror}", "text files, or folders of .txt files") from error
    except UnicodeDecodeError as error:
        raise RwkvlabError(f"{path} is not UTF-8 at byte {error.start}", "UTF-8 text") from error
    if not text.strip():
        raise RwkvlabError(f"{path} holds no text", "text to calibrate on", "remove it from the list or fill it")
    return text
