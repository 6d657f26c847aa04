"""Encodings: the scale and offset of every quantized tensor, in AIMET's 1.0.0 file format.

Weights are named as in the torch model (`blocks.0.att.key.weight`); an activation is named by the linear it enters or
leaves (`blocks.0.att.key.input`, `.output`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import sha256_text, write_text_atomic

VERSION = "1.0.0"
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    """One entry of the file. A wrong type is refused, never converted: 4.7 bits are not 4."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    bw: int = Field(ge=2, le=32)
    dtype: Literal["INT"]
    enc_type: Literal["PER_TENSOR", "PER_CHANNEL"]
    is_sym: bool
    scale: list[Scale] = Field(min_length=1)
    offset: list[int]

    def is_sound(self) -> bool:
        """Whether the fields agree, and 0 is on the grid."""
        lowest, middle = 1 - 2**self.bw, -(2 ** (self.bw - 1))
        return (
            len(self.scale) == len(self.offset)
            and (self.enc_type == "PER_CHANNEL" or len(self.scale) == 1)
            and all(offset == middle if self.is_sym else lowest <= offset <= 0 for offset in self.offset)
        )


@dataclass(frozen=True, eq=False)
class Encoding:
    """One tensor's integer grid: value = (code + offset) * scale, codes from 0 to 2^bits - 1.

    Attributes:
        bits: grid width.
        symmetric: offset is -2^(bits-1): the grid is signed and centred.
        scale: [channels] or [1], in the tensor's units.
        offset: as scale, integers.
    """

    bits: int
    symmetric: bool
    scale: np.ndarray
    offset: np.ndarray

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Encoding)
            and (self.bits, self.symmetric) == (other.bits, other.symmetric)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.offset, other.offset)
        )

    @property
    def low(self) -> np.ndarray:
        """Smallest value of the grid, per channel."""
        return self.offset * self.scale

    @property
    def high(self) -> np.ndarray:
        """Largest value of the grid, per channel."""
        return (self.offset + 2**self.bits - 1) * self.scale


@dataclass(frozen=True)
class Encodings:
    """All encodings of one quantized model."""

    params: dict[str, Encoding] = field(default_factory=dict)
    activations: dict[str, Encoding] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Digest of the file these encodings make."""
        return sha256_text(self.to_json())

    def save(self, path: Path) -> None:
        """Write AIMET 1.0.0 JSON."""
        write_text_atomic(path, self.to_json())

    def to_json(self) -> str:
        """The file's content."""
        content = {
            "version": VERSION,
            "activation_encodings": [_entry(name, e) for name, e in self.activations.items()],
            "param_encodings": [_entry(name, e) for name, e in self.params.items()],
            "excluded_layers": [],
        }
        return json.dumps(content, indent=1)

    @classmethod
    def load(cls, path: Path | str) -> Encodings:
        """Read AIMET 1.0.0 JSON.

        Raises:
            RwkvlabError: unreadable, another version, an unknown key, or an entry that contradicts itself.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise RwkvlabError(
                f"cannot read encodings {path}: {error}",
                "an AIMET encodings JSON",
                "check the path, or run rwkvlab quantize",
            ) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            found = content.get("version") if isinstance(content, dict) else type(content).__name__
            raise RwkvlabError(f"{path}: encodings version {found!r}", VERSION, "make them with rwkvlab quantize")
        sections = [_section(path, content, key) for key in ("param_encodings", "activation_encodings")]
        return cls(*sections)


def _entry(name: str, encoding: Encoding) -> dict[str, Any]:
    return {
        "name": name,
        "bw": encoding.bits,
        "dtype": "INT",
        "enc_type": "PER_TENSOR" if encoding.scale.size == 1 else "PER_CHANNEL",
        "is_sym": encoding.symmetric,
        "scale": encoding.scale.tolist(),
        "offset": encoding.offset.tolist(),
    }


def _section(path: Path, content: dict, key: str) -> dict[str, Encoding]:
    entries = content.get(key)
    if not isinstance(entries, list):
        raise RwkvlabError(f"{path}: no list '{key}'", "a list of encodings", "make them with rwkvlab quantize")
    parsed = [_parse(path, entry) for entry in entries]
    found = dict(parsed)
    if len(found) != len(parsed):
        raise RwkvlabError(f"{path}: a tensor has two encodings in '{key}'", "one each", "remove one of them")
    return found


def _parse(path: Path, entry: Any) -> tuple[str, Encoding]:
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as error:
        name = entry.get("name") if isinstance(entry, dict) else repr(entry)[:80]
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise RwkvlabError(
            f"{path}: encoding of {name!r}: {problems}", ", ".join(_Entry.model_fields), "correct that entry"
        ) from error
    if not read.is_sound():
        raise RwkvlabError(
            f"{path}: encoding of {read.name!r} contradicts itself",
            "one offset per scale, one scale per tensor where PER_TENSOR, offsets from -(2^bits - 1) to 0, "
            "-2^(bits-1) where symmetric",
            "correct that entry",
        )
    return read.name, Encoding(read.bw, read.is_sym, np.array(read.scale), np.array(read.offset))
