"""A context cache: the folder of context binaries that runs, with a manifest that says what it is.

Reading one needs neither torch nor AIMET.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.export.manifest import GraphInfo, GraphKind, Source
from rwkvlab.files import sha256_file, write_text_atomic

MANIFEST = "manifest.json"


class StoredFile(BaseModel):
    """A file of the cache: name, bytes, digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        """Describe an existing file."""
        return cls(name=path.name, bytes=path.stat().st_size, sha256=sha256_file(path))


class ContextGraph(BaseModel):
    """One compiled graph.

    Attributes:
        graph: which.
        binary, wrapper: the context binary, and the small ONNX file through which ONNX Runtime loads it.
        ddr_read_bytes, ddr_write_bytes: memory traffic of one execution, from the compiler.
        ddr_spill_bytes, ddr_fill_bytes: on-chip memory moved out to DDR and back in, from the compiler.
        ops: QNN operations by type, as handed to the compiler.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    graph: GraphInfo
    binary: StoredFile
    wrapper: StoredFile
    ddr_read_bytes: int
    ddr_write_bytes: int
    ddr_spill_bytes: int
    ddr_fill_bytes: int
    ops: dict[str, int]

    @property
    def ddr_bytes(self) -> int:
        """DDR bytes read and written in one execution."""
        return self.ddr_read_bytes + self.ddr_write_bytes


class Manifest(BaseModel):
    """`manifest.json`, written last: its presence means the cache is whole.

    Attributes:
        source: model, recipe, encodings.
        soc, qnn_id, htp_arch: the chip compiled for.
        sdk_build: the QNN build that compiled, e.g. v2.49.40.260810104044.
        onnxruntime_qnn: version of the package it came in.
        graphs: one per chunk and kind.
        embedding: the external embedding table, float32 [V, C], ln0 applied.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: Source
    soc: str
    qnn_id: int
    htp_arch: int
    sdk_build: str
    onnxruntime_qnn: str
    graphs: list[ContextGraph]
    embedding: StoredFile | None

    def save(self, folder: Path) -> None:
        """Write into `folder`."""
        write_text_atomic(folder / MANIFEST, self.model_dump_json(indent=1))

    def ddr_bytes_per_token(self, kind: GraphKind = "decode") -> float:
        """DDR bytes of one token through all chunks; for prefill, a full block's divided by its tokens."""
        return sum(g.ddr_bytes / g.graph.tokens for g in self.graphs if g.graph.kind == kind)

    @property
    def files(self) -> list[StoredFile]:
        """Every file the cache consists of, besides the manifest."""
        compiled = [file for graph in self.graphs for file in (graph.binary, graph.wrapper)]
        return compiled + ([self.embedding] if self.embedding else [])


@dataclass(frozen=True)
class ContextCache:
    """An intact cache on disk."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path | str) -> ContextCache:
        """Read and verify a cache.

        Raises:
            RwkvlabError: not a finished cache, or a file is missing or changed since it was made.
        """
        folder = Path(folder)
        manifest = load_manifest(folder)
        for file in manifest.files:
            _verify(folder, file)
        return cls(folder, manifest)

    def graphs(self, kind: GraphKind) -> list[ContextGraph]:
        """The chain of chunks of one kind, in order."""
        return sorted((g for g in self.manifest.graphs if g.graph.kind == kind), key=lambda g: g.graph.chunk)

    def check_runtime(self, installed_sdk: str) -> None:
        """Refuse a cache made by a newer QNN than the installed one, which would fail to load without saying why.

        Args:
            installed_sdk: as "2.49.40".

        Raises:
            RwkvlabError: with both versions.
        """
        made_by = self.manifest.sdk_build.lstrip("v").split(".")[:3]
        if [int(n) for n in made_by] > [int(n) for n in installed_sdk.split(".")[:3]]:
            raise RwkvlabError(
                f"{self.folder} was compiled by QNN {'.'.join(made_by)}, the installed runtime is {installed_sdk}",
                "a runtime as new as the compiler",
                f"pip install 'onnxruntime-qnn=={self.manifest.onnxruntime_qnn}', or compile again here",
            )


def load_manifest(folder: Path) -> Manifest:
    """Read `manifest.json`.

    Raises:
        RwkvlabError: missing or damaged.
    """
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_text())
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise RwkvlabError(
            f"{folder} holds no finished context cache ({str(error).splitlines()[0]})",
            f"a folder with {MANIFEST}",
            "run rwkvlab make-context-cache",
        ) from error


def _verify(folder: Path, file: StoredFile) -> None:
    path = folder / file.name
    found = StoredFile.of(path) if path.is_file() else None
    if found != file:
        why = "is missing" if found is None else "changed since it was compiled (its sha256 differs)"
        raise RwkvlabError(
            f"{path} {why}",
            "the files the manifest lists, untouched",
            "run rwkvlab make-context-cache --force, or copy the folder again",
        )
