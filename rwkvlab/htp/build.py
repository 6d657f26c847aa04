"""Compiling exported graphs into a context cache."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError
from tqdm import tqdm

from rwkvlab.errors import RwkvlabError
from rwkvlab.export.manifest import ExportManifest, GraphInfo, changes
from rwkvlab.files import atomic_path, write_text_atomic
from rwkvlab.htp.cache import MANIFEST, ContextCache, ContextGraph, Manifest, StoredFile, load_manifest
from rwkvlab.htp.compile import compile_context
from rwkvlab.htp.limits import check_supported
from rwkvlab.soc import Soc


def build_cache(exported: Path, folder: Path, soc: Soc, force: bool = False, progress: bool = True) -> ContextCache:
    """Compile every graph of an export for `soc`; an up-to-date cache is returned at once.

    A killed build is continued: each compiled graph leaves a record, and only those without one are compiled.

    Args:
        exported: folder made by `export_model`.
        folder: of the cache; made if absent.
        soc: target chip.
        force: replace a cache that is stale, foreign or damaged.
        progress: show a bar.

    Raises:
        RwkvlabError: the export is unfinished; the chip lacks what the recipe needs; the folder holds a cache of
            something else or a damaged one; a graph is refused by the compiler.
    """
    export = ExportManifest.load(exported)
    check_supported(soc, export.source.recipe)
    if (folder / MANIFEST).exists() and not force:
        return _reuse(folder, export, soc)
    (folder / MANIFEST).unlink(missing_ok=True)
    records = folder / ".compiled"
    if force:
        shutil.rmtree(records, ignore_errors=True)
    graphs, builds = [], set()
    for info in tqdm(export.graphs, desc=f"compile for {soc.name}", disable=not progress):
        record = records / f"{info.name}.json"
        stamp = f"{soc.name} {version('onnxruntime-qnn')} {export.source.model_dump_json()}"
        graph, build = _recorded(folder, record, stamp) or _compile(exported, folder, info, soc, record, stamp)
        graphs.append(graph)
        builds.add(build)
    manifest = Manifest(
        source=export.source,
        soc=soc.name,
        qnn_id=soc.qnn_id,
        htp_arch=soc.htp_arch,
        sdk_build=builds.pop(),
        onnxruntime_qnn=version("onnxruntime-qnn"),
        graphs=graphs,
        embedding=_copy_embedding(exported, folder, export.embedding),
    )
    manifest.save(folder)
    shutil.rmtree(records, ignore_errors=True)
    return ContextCache(folder, manifest)


def _reuse(folder: Path, export: ExportManifest, soc: Soc) -> ContextCache:
    old = load_manifest(folder)
    why = changes(old.source, export.source)
    if old.soc != soc.name:
        why.append(f"SoC {old.soc} -> {soc.name}")
    if old.onnxruntime_qnn != version("onnxruntime-qnn"):
        why.append(f"onnxruntime-qnn {old.onnxruntime_qnn} -> {version('onnxruntime-qnn')}")
    if why:
        raise RwkvlabError(
            f"{folder} holds another context cache ({'; '.join(why)})",
            "an empty folder, or the cache of the same export",
            "choose another folder, or add --force to replace it",
        )
    return ContextCache.open(folder)


def _compile(
    exported: Path, folder: Path, info: GraphInfo, soc: Soc, record: Path, stamp: str
) -> tuple[ContextGraph, str]:
    made = compile_context(exported / f"{info.name}.onnx", folder, info.name, soc)
    graph = ContextGraph(
        graph=info,
        binary=StoredFile.of(made.binary),
        wrapper=StoredFile.of(made.wrapper),
        ddr_read_bytes=made.traffic.read,
        ddr_write_bytes=made.traffic.write,
        ddr_spill_bytes=made.traffic.spill,
        ddr_fill_bytes=made.traffic.fill,
        ops=made.ops,
    )
    write_text_atomic(record, "\n".join([stamp, made.sdk_build, graph.model_dump_json()]))
    return graph, made.sdk_build


def _recorded(folder: Path, record: Path, stamp: str) -> tuple[ContextGraph, str] | None:
    """What an interrupted build already compiled for the same inputs, if its files are still intact."""
    try:
        old_stamp, build, content = record.read_text().split("\n", 2)
        graph = ContextGraph.model_validate_json(content)
        intact = all(StoredFile.of(folder / file.name) == file for file in (graph.binary, graph.wrapper))
    except (OSError, ValueError, ValidationError):
        return None
    return (graph, build) if intact and old_stamp == stamp else None


def _copy_embedding(exported: Path, folder: Path, name: str | None) -> StoredFile | None:
    if name is None:
        return None
    with atomic_path(folder / name) as temporary:
        shutil.copyfile(exported / name, temporary)
    return StoredFile.of(folder / name)
