"""What a folder of exported graphs holds, and of which model and recipe."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import write_text_atomic
from rwkvlab.quant.recipe import Recipe
from rwkvlab.spec import ModelSpec

GraphKind = Literal["decode", "prefill"]
EXPORT_MANIFEST = "export.json"


class GraphInfo(BaseModel):
    """One graph of one chunk.

    Attributes:
        name: file name without suffix, `<model>_chunk1of2` or `<model>_chunk1of2_prefill`.
        kind: decode, one token, or prefill.
        chunk: from 1.
        tokens: per execution.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    kind: GraphKind
    chunk: int
    tokens: int


class Source(BaseModel):
    """What graphs were made from; equal sources make equal graphs.

    Attributes:
        model: the checkpoint's file name without suffix.
        model_sha256: of the checkpoint file.
        spec: the model's dimensions.
        recipe: as used.
        encodings_sha256: of the encodings, None for fp16.
        code: digest of rwkvlab's own modules that decide a graph.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str
    model_sha256: str
    spec: ModelSpec
    recipe: Recipe
    encodings_sha256: str | None
    code: str


class ExportManifest(BaseModel):
    """`export.json`, written when every graph is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: Source
    graphs: list[GraphInfo]
    embedding: str | None

    def save(self, folder: Path) -> None:
        """Write into `folder`."""
        write_text_atomic(folder / EXPORT_MANIFEST, self.model_dump_json(indent=1))

    @classmethod
    def load(cls, folder: Path | str) -> ExportManifest:
        """Read from `folder`.

        Raises:
            RwkvlabError: no finished export is there.
        """
        path = Path(folder) / EXPORT_MANIFEST
        try:
            return cls.model_validate_json(path.read_text())
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise RwkvlabError(
                f"{folder} holds no finished export ({_first_line(error)})",
                f"a folder with {EXPORT_MANIFEST}",
                "run rwkvlab export",
            ) from error


def changes(old: Source, new: Source) -> list[str]:
    """What differs between two sources, in words a user can act on."""
    found = []
    for key in ("model", "model_sha256", "encodings_sha256"):
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            found.append(f"{key} {str(before)[:12]} -> {str(after)[:12]}")
    for part in ("spec", "recipe"):
        before, after = getattr(old, part).model_dump(), getattr(new, part).model_dump()
        found += [f"{part}.{key} {before[key]} -> {after[key]}" for key in before if before[key] != after[key]]
    if old.code != new.code:
        found.append("rwkvlab's graph code changed")
    return found


def code_digest() -> str:
    """Digest of the modules that decide what a graph computes: the model, its weights on their grids, the tracing."""
    root = Path(__file__).parent.parent
    others = ("checkpoint.py", "range_aids.py", "export/graph.py", "quant/encodings.py", "quant/sim.py")
    files = [*sorted((root / "model").glob("*.py")), *(root / name for name in others)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
