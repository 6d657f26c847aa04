"""Text to token ids and back: World-format vocabulary files, plain bytes, ASCII codes. Needs no torch.

A vocabulary file has one token a line, `id literal length`: a positive id, the token as a Python string or bytes
literal, and its length in bytes (UTF-8 for strings). Encoding takes the longest token that matches, from left to right.
In its byte form, whose file rwkv-qualcomm names b_<vocabulary>, every token is written as b'\\xNN...'.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import sha256_text

END_OF_TEXT = 0
"""Id that ends a text and, put before a prompt, starts one. World-format files leave it out; it decodes to nothing."""

_WORLD_FILE = "rwkv_vocab_v20230424.txt"
_LINE = re.compile(r"(\d{1,9}) (.+) (\d{1,5})", re.ASCII)
_LINE_FORMAT = "lines of: positive id, space, string or bytes literal, space, length in bytes"
_MAX_FILE_BYTES = 64 * 2**20
_MAX_LINE_CHARS = 8192
_MAX_ID = 2**24
_MIN_COVERAGE = 0.9


class Tokenizer(ABC):
    """What evaluation, calibration and generation ask of a tokenizer.

    Attributes:
        name: what to call it in tables.
        hash: hex sha256 of the decoded vocabulary; equal hashes mean equal ids.
    """

    name: str
    hash: str

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Largest id + 1."""

    @abstractmethod
    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids whose tokens join to exactly `data`."""

    @abstractmethod
    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of `ids`, joined; an id without a token raises RwkvlabError."""

    def encode(self, text: str) -> list[int]:
        """Ids of the UTF-8 form of `text`.

        Raises:
            RwkvlabError: the text has no UTF-8 form, or the vocabulary cannot spell it.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise RwkvlabError(
                f"character {error.start} of the text is half of a surrogate pair", "text that has a UTF-8 form"
            ) from error
        return self.encode_bytes(data)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")


def _hash_of_codes(count: int) -> str:
    return sha256_text("".join(f"{value} {bytes([value])!r} 1\n" for value in range(count)))


class ByteTokenizer(Tokenizer):
    """256 tokens, each id the value of its byte (0 too: here it decodes to a zero byte)."""

    name = "bytes"
    hash = _hash_of_codes(256)

    @property
    def vocab_size(self) -> int:
        """256."""
        return 256

    def encode_bytes(self, data: bytes) -> list[int]:
        """The bytes' values."""
        return list(data)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes with these values; others raise RwkvlabError."""
        ids = list(ids)
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise _unknown_id(token, self)
        return bytes(ids)


class AbcTokenizer(ByteTokenizer):
    """128 tokens, each id an ASCII code: BlinkDL's models of music in ABC notation. 2 starts a tune, 3 ends it."""

    name = "abc"
    hash = _hash_of_codes(128)

    @property
    def vocab_size(self) -> int:
        """128."""
        return 128

    def encode_bytes(self, data: bytes) -> list[int]:
        """The characters' codes.

        Raises:
            RwkvlabError: a byte that is not ASCII.
        """
        for position, value in enumerate(data):
            if value >= self.vocab_size:
                raise RwkvlabError(
                    f"byte {data[position : position + 1]!r} at position {position} is not ASCII",
                    "ASCII, as ABC notation is",
                    r"write accents as ABC does (\'e for é), or use another tokenizer",
                )
        return list(data)


@dataclass(frozen=True)
class WorldTokenizer(Tokenizer):
    """Greedy longest match over a World-format vocabulary.

    Attributes:
        name: "world", "zoo" or the file's name.
        hash: hex sha256 of the vocabulary in its byte form, by id: however a file spells and orders it, it is the same.
        tokens: id -> bytes.
    """

    name: str
    hash: str
    tokens: Mapping[int, bytes] = field(repr=False)

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return max(self.tokens) + 1

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids whose tokens join to exactly `data`.

        Raises:
            RwkvlabError: no token matches at some byte (the vocabulary lacks single bytes).
        """
        ids: list[int] = []
        position = 0
        while position < len(data):
            # Past the end a slice is the whole rest, which is still the longest match if it is a token.
            for length in self._lengths.get(data[position : position + 2], (1,)):
                piece = data[position : position + length]
                if piece in self._ids:
                    ids.append(self._ids[piece])
                    position += len(piece)
                    break
            else:
                raise RwkvlabError(
                    f"byte {data[position : position + 1]!r} at position {position} is in no token of "
                    f"vocabulary {self.name!r}",
                    "text this vocabulary can spell",
                    "use another tokenizer or remove the character",
                )
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of `ids`, end-of-text as nothing.

        Raises:
            RwkvlabError: an id without a token.
        """
        pieces = []
        for token in ids:
            piece = b"" if token == END_OF_TEXT else self.tokens.get(token)
            if piece is None:
                raise _unknown_id(token, self)
            pieces.append(piece)
        return b"".join(pieces)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {piece: token for token, piece in self.tokens.items()}

    @cached_property
    def _lengths(self) -> dict[bytes, tuple[int, ...]]:
        """First two bytes -> lengths of the tokens that start so, longest first, then 1."""
        lengths: dict[bytes, set[int]] = {}
        for piece in self._ids:
            if len(piece) > 1:
                lengths.setdefault(piece[:2], {1}).add(len(piece))
        return {prefix: tuple(sorted(found, reverse=True)) for prefix, found in lengths.items()}


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """The tokenizer called `spec`.

    Args:
        spec: "world" (the standard vocabulary, from the installed `rwkv` package), "zoo" (the bundled model's),
            "bytes", "abc" (ASCII codes), or the path of a World-format vocabulary file.

    Raises:
        RwkvlabError: no such file, or a line of it is not what the format allows (named by number).
    """
    if spec == "bytes":
        return ByteTokenizer()
    if spec == "abc":
        return AbcTokenizer()
    path = vocabulary_file(spec)
    return _load_vocabulary(path, str(spec) if spec in ("world", "zoo") else path.name)


def vocabulary_file(spec: str | Path) -> Path:
    """The file of a World-format vocabulary called "world" or "zoo", or given by its path.

    Raises:
        RwkvlabError: "world", but the `rwkv` package is not installed.
    """
    if spec == "world":
        return _world_path()
    return Path(__file__).with_name("zoo") / "vocab.txt" if spec == "zoo" else Path(spec)


def byte_form(tokens: Mapping[int, bytes]) -> str:
    """A vocabulary file's content with every token written as b'\\xNN...', for readers without Python's literals."""
    return "".join(f"{token} b'{_escaped(piece)}' {len(piece)}\n" for token, piece in tokens.items())


def check_sequences(sequences: Iterable[Sequence[int]], vocab_size: int) -> None:
    """Refuse what no model of that vocabulary can run.

    Raises:
        RwkvlabError: an empty sequence, or an id outside the vocabulary.
    """
    for number, ids in enumerate(sequences):
        if not len(ids):
            raise RwkvlabError(f"sequence {number} is empty", "at least one token", "prepend token 0")
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise RwkvlabError(
                f"sequence {number} holds token ids {min(ids)}..{max(ids)}",
                f"0 to {vocab_size - 1}",
                "use the model's own tokenizer",
            )


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer made for another model.

    Args:
        tokenizer: what will produce the ids.
        vocab_size: rows of the model's embedding. A few more than the tokenizer has is padding and normal.

    Raises:
        RwkvlabError: the tokenizer has ids beyond the model's rows, or reaches less than 90 % of them.
    """
    todo = 'pass the tokenizer the model was trained with: "world", "zoo", "bytes", "abc" or a vocabulary file'
    facts = f"tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} ids, the model {vocab_size} rows"
    if tokenizer.vocab_size > vocab_size:
        raise RwkvlabError(facts, f"at most {vocab_size} ids", todo)
    if tokenizer.vocab_size < _MIN_COVERAGE * vocab_size:
        raise RwkvlabError(facts, f"at least {_MIN_COVERAGE:.0%} of the rows used", todo)


def _unknown_id(token: int, tokenizer: Tokenizer) -> RwkvlabError:
    return RwkvlabError(
        f"tokenizer {tokenizer.name!r} has no token with id {token}",
        f"ids below {tokenizer.vocab_size} that it defines",
    )


def _escaped(piece: bytes) -> str:
    return r"\x" + piece.hex("x").replace("x", r"\x")


def _world_path() -> Path:
    package = importlib.util.find_spec("rwkv")  # finds it without running it: the package imports torch
    for folder in (package.submodule_search_locations or []) if package else []:
        if (path := Path(folder) / _WORLD_FILE).is_file():
            return path
    raise RwkvlabError(
        f"the standard vocabulary {_WORLD_FILE} was not found: it comes with the rwkv package",
        todo="pip install rwkv, or pass the path of the file",
    )


def _load_vocabulary(path: Path, name: str) -> WorldTokenizer:
    data = _read_vocabulary(path).replace(b"\r\n", b"\n")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RwkvlabError(f"{path} line {line} is not UTF-8", _LINE_FORMAT) from error
    tokens: dict[int, bytes] = {}
    first_line: dict[bytes, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            token, piece = _parse_line(line)
            if token in tokens:
                raise ValueError(f"id {token} is taken")
            if first_line.setdefault(piece, number) != number:
                raise ValueError(f"the same token as line {first_line[piece]}")
        except ValueError as error:
            raise RwkvlabError(
                f"{path} line {number}: {error} ({line[:60]!r})", _LINE_FORMAT, "use the vocabulary file as published"
            ) from None
        tokens[token] = piece
    return WorldTokenizer(name, sha256_text(byte_form(dict(sorted(tokens.items())))), tokens)


def _read_vocabulary(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if 0 < size <= _MAX_FILE_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise RwkvlabError(
            f"cannot read vocabulary {path}: {error.strerror}", '"world", "zoo", "bytes", "abc" or a vocabulary file'
        ) from error
    raise RwkvlabError(f"vocabulary {path} has {size} bytes", f"1 to {_MAX_FILE_BYTES} bytes")


def _parse_line(line: str) -> tuple[int, bytes]:
    """Id and bytes of one line; ValueError says what is wrong with it."""
    match = _LINE.fullmatch(line) if len(line) <= _MAX_LINE_CHARS else None
    if match is None:
        raise ValueError("not of the form `id literal length`")
    token, piece, length = int(match[1]), _parse_literal(match[2]), int(match[3])
    if not 0 < token <= _MAX_ID:
        raise ValueError(f"id {token} is outside 1..{_MAX_ID}")
    if not piece or len(piece) != length:
        raise ValueError(f"the token has {len(piece)} bytes, the line says {length}")
    return token, piece


def _parse_literal(text: str) -> bytes:
    try:
        value = ast.literal_eval(text)  # evaluates literals only: a vocabulary never runs code
        piece = value.encode() if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        piece = None
    if not isinstance(piece, bytes):
        raise ValueError("not a string or bytes literal")
    return piece
