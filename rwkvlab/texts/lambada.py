"""LAMBADA: passages whose last word is to be predicted (Paperno et al. 2016, OpenAI's variant). Needs no torch.

The word to predict is what follows the last space. The target includes that space, as it does for every model whose
tokens carry their leading space.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import sha256_file, sha256_text

HUB = "hub"
"""Source that stands for the official test set on the Hugging Face hub."""

_HUB_REPOSITORY = "EleutherAI/lambada_openai"
_HUB_FILE = "data/lambada_test.jsonl"
_OFFICIAL_FILE = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
# sha256 of the 5153 official texts joined by zero bytes: recognises them in the `|`-separated form as well
_OFFICIAL_TEXTS = "086d05ab828fe5e34f84fcbafae3279fb5bed54a2933292f0da30df6c4150ac8"
_FORMATS = 'a .jsonl file with a field "text" on each line, or a .txt file with "|" after each passage'


@dataclass(frozen=True)
class Item:
    """One passage: `target` is a space and the word to predict, `context` is everything before it."""

    context: str
    target: str

    @property
    def text(self) -> str:
        """The whole passage."""
        return self.context + self.target


@dataclass(frozen=True)
class LambadaSet:
    """Items and where they came from.

    Attributes:
        items: in the file's order.
        sha256: hex digest of the file.
        official: whether these are exactly the 5153 items of the official test set, in order.
    """

    items: tuple[Item, ...]
    sha256: str
    official: bool


def load_set(source: Path | str) -> LambadaSet:
    """Read a LAMBADA-style set.

    Args:
        source: a .jsonl file (field `text`), a .txt file with `|` after each passage (line breaks around the `|` are no
            part of it), or "hub" for the official set, downloaded once and cached by huggingface_hub.

    Raises:
        RwkvlabError: unreadable, empty or malformed file (the line or item is named), no network, or a download whose
            contents are not the official ones.
    """
    path = _download() if source == HUB else Path(source)
    texts = _read_texts(path)
    items = tuple(split_last_word(text, f"{path} item {number}") for number, text in enumerate(texts, start=1))
    return LambadaSet(items, sha256_file(path), sha256_text("\0".join(texts)) == _OFFICIAL_TEXTS)


def load_items(path: Path | str) -> list[Item]:
    """The items of `load_set(path)`."""
    return list(load_set(path).items)


def split_last_word(text: str, where: str = "the text") -> Item:
    """Split a passage at its last space.

    Raises:
        RwkvlabError: there is no word after, or nothing before, the last space; `where` says which passage it is.
    """
    context, _, word = text.rpartition(" ")
    if not context.strip() or not word.strip() or text != text.rstrip():
        raise RwkvlabError(f"{where} has no last word to predict: {text[-60:]!r}", "a context, a space and a word")
    return Item(context, " " + word)


def _read_texts(path: Path) -> Sequence[str]:
    readers = {".jsonl": _jsonl_texts, ".txt": _separated_texts}
    if path.suffix not in readers:
        raise RwkvlabError(f"{path} has the suffix {path.suffix!r}", _FORMATS)
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise RwkvlabError(
            f"cannot read {path}: {error.strerror}", _FORMATS, f'pass "{HUB}" to download the official set'
        ) from error
    except UnicodeDecodeError as error:
        raise RwkvlabError(f"{path} is not UTF-8 at byte {error.start}", _FORMATS) from error
    texts = list(readers[path.suffix](path, content))
    if not texts:
        raise RwkvlabError(f"{path} holds no passages", _FORMATS)
    return texts


def _jsonl_texts(path: Path, content: str) -> Iterator[str]:
    lines = content.rstrip().split("\n") if content.strip() else []
    for number, line in enumerate(lines, start=1):
        try:
            text = json.loads(line)["text"]
            text.encode()  # an escaped half of a surrogate pair is no text
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RwkvlabError(f"{path} line {number} is malformed: {line[:60]!r}", _FORMATS) from None
        yield text


def _separated_texts(path: Path, content: str) -> Iterator[str]:
    *passages, rest = content.replace("\r\n", "\n").split("|")
    if rest.strip():
        raise RwkvlabError(f"{path} ends without a `|` after passage {len(passages) + 1}: {rest[-60:]!r}", _FORMATS)
    for passage in passages:
        yield passage.strip("\n")


def _download() -> Path:
    try:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(_HUB_REPOSITORY, _HUB_FILE, repo_type="dataset"))
    except ImportError as error:
        raise RwkvlabError("huggingface_hub is not installed", todo="pip install huggingface_hub") from error
    except Exception as error:  # its HTTP client's exceptions have no common base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise RwkvlabError(
            f"cannot download {_HUB_FILE} of {_HUB_REPOSITORY}: {reason}",
            todo=f"copy the file from a machine with network and pass its path (sha256 {_OFFICIAL_FILE})",
        ) from error
    if sha256_file(path) != _OFFICIAL_FILE:
        raise RwkvlabError(f"{path} is not the official LAMBADA file", f"sha256 {_OFFICIAL_FILE}", f"rm {path}")
    return path
