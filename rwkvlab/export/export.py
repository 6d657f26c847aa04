"""Exporting a whole model: every chunk's decode and prefill graph, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.graph import export_graph
from rwkvlab.export.manifest import EXPORT_MANIFEST, ExportManifest, GraphInfo, Source, changes, code_digest
from rwkvlab.files import write_bytes_atomic, write_text_atomic
from rwkvlab.model.chunks import ChunkRange, plan_chunks
from rwkvlab.model.load import folded_embedding, load_chunk
from rwkvlab.model.rwkv import Chunk, linear_names
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.recipe import Recipe
from rwkvlab.quant.sim import simulate
from rwkvlab.soc import find_soc
from rwkvlab.spec import ModelSpec

_PENDING = ".source.json"
MAX_CHUNK_BYTES = int(1.9 * 2**30)
"""Of weights; leaves room for the rest below the 2 GiB at which the HTP compiler refuses a serialized graph."""


def export_model(
    checkpoint: Checkpoint,
    encodings: Encodings,
    recipe: Recipe,
    folder: Path,
    force: bool = False,
    progress: bool = True,
) -> ExportManifest:
    """Write all graphs of `recipe` into `folder`; graphs a killed export left complete are kept.

    Args:
        checkpoint: the model.
        encodings: its encodings; empty for fp16.
        recipe: what to export.
        folder: of the graphs; made if absent.
        force: replace an export of something else, or a damaged one.
        progress: show a bar.

    Raises:
        RwkvlabError: the folder holds an export of something else, the encodings are another model's, more chunks than
            layers, or a write fails.
    """
    checkpoint = checkpoint.with_aids(recipe.aids)
    source = Source(
        model=checkpoint.path.stem,
        model_sha256=checkpoint.sha256,
        spec=checkpoint.spec,
        recipe=recipe,
        encodings_sha256=encodings.sha256 if encodings.params else None,
        code=code_digest(),
    )
    check_fits(encodings, checkpoint, recipe)
    plan = plan_chunks(checkpoint.spec.n_layer, recipe.graph.chunks)
    check_sizes(checkpoint.spec, recipe, plan)
    manifest = ExportManifest(
        source=source,
        graphs=[graph for part in plan for graph in graphs_of(source, part)],
        embedding=f"{source.model}.emb" if recipe.graph.external_embedding else None,
    )
    if _is_done(folder, manifest, force):
        return manifest
    with tqdm(total=len(manifest.graphs), desc="export", disable=not progress) as bar:
        for part in plan:
            _export_chunk(checkpoint, encodings, manifest, part, folder, bar)
    if manifest.embedding:
        write_bytes_atomic(folder / manifest.embedding, folded_embedding(checkpoint).numpy().tobytes())
    manifest.save(folder)
    (folder / _PENDING).unlink(missing_ok=True)
    return manifest


def graphs_of(source: Source, part: ChunkRange) -> list[GraphInfo]:
    """The decode and the prefill graph of one chunk."""
    name = source.model + part.suffix
    return [
        GraphInfo(name=name, kind="decode", chunk=part.index, tokens=1),
        GraphInfo(name=f"{name}_prefill", kind="prefill", chunk=part.index, tokens=source.recipe.graph.prefill_tokens),
    ]


def check_fits(encodings: Encodings, checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Raise if encodings name linears the model lacks, or lack those the recipe quantizes.

    Raises:
        RwkvlabError: naming the first few.
    """
    wanted = {f"{n}.weight" for n in linear_names(checkpoint.spec) if recipe.weight_bits(n) is not None}
    odd = sorted(wanted ^ encodings.params.keys())
    if odd:
        raise RwkvlabError(
            f"the encodings do not belong to {checkpoint.path.name} with {recipe.precision}: {', '.join(odd[:3])}"
            + (f" and {len(odd) - 3} more" if len(odd) > 3 else ""),
            "encodings of exactly the linears the recipe quantizes",
            "run rwkvlab quantize on this checkpoint with this recipe",
        )
    wrong = [n for n, e in encodings.params.items() if e.bits != recipe.weight_bits(n.removesuffix(".weight"))]
    if wrong:
        raise RwkvlabError(
            f"the encodings give '{wrong[0]}' {encodings.params[wrong[0]].bits} bits",
            f"{recipe.weight_bits(wrong[0].removesuffix('.weight'))} bits with {recipe.precision}",
            "run rwkvlab quantize with this recipe",
        )


def chunk_bytes(spec: ModelSpec, recipe: Recipe, part: ChunkRange) -> int:
    """Bytes of one chunk's weights as compiled: integers where the recipe quantizes, fp16 elsewhere."""
    with torch.device("meta"):
        chunk = Chunk(spec, part.first, part.last, embedding=not recipe.graph.external_embedding)
    widths = {f"{n}.weight": recipe.weight_bits(n) for n, m in chunk.named_modules() if isinstance(m, nn.Linear)}
    return sum(p.numel() * (widths.get(name) or 16) for name, p in chunk.named_parameters()) // 8


def check_sizes(spec: ModelSpec, recipe: Recipe, plan: Sequence[ChunkRange]) -> None:
    """Raise before the long work if a chunk cannot become one graph.

    Raises:
        RwkvlabError: with a chunk count that fits, if there is one.
    """
    largest = max(plan, key=lambda part: chunk_bytes(spec, recipe, part))
    size = chunk_bytes(spec, recipe, largest)
    if size <= MAX_CHUNK_BYTES:
        return
    larger_plans = (plan_chunks(spec.n_layer, count) for count in range(len(plan) + 1, spec.n_layer + 1))
    fitting = (p for p in larger_plans if all(chunk_bytes(spec, recipe, part) <= MAX_CHUNK_BYTES for part in p))
    enough = next((len(p) for p in fitting), None)
    raise RwkvlabError(
        f"chunk {largest.index} of {largest.count} has {size / 1e9:.2f} GB of weights",
        f"at most {MAX_CHUNK_BYTES / 1e9:.2f} GB a chunk: the HTP takes no graph above 2 GiB",
        f"--chunks {enough}" if enough else "--ext-embedding, or fewer bits",
    )


def _is_done(folder: Path, manifest: ExportManifest, force: bool) -> bool:
    """Whether `folder` already is this export; prepares it for continuing or starting otherwise."""
    finished, pending = folder / EXPORT_MANIFEST, folder / _PENDING
    if finished.is_file():
        old = _readable(folder, force)
        if old == manifest and all((folder / name).is_file() for name in _files(manifest)):
            return True
        if old and not force:
            why = "; ".join(changes(old.source, manifest.source)) or "a graph file or the embedding is missing"
            raise RwkvlabError(
                f"{folder} holds another export ({why})",
                "an empty folder or the same export",
                "choose another folder or add --force",
            )
        finished.unlink()
    if not pending.is_file() or pending.read_text() != manifest.source.model_dump_json():
        for graph in manifest.graphs:
            (folder / f"{graph.name}.onnx").unlink(missing_ok=True)
        write_text_atomic(pending, manifest.source.model_dump_json())
    return False


def _readable(folder: Path, force: bool) -> ExportManifest | None:
    """The export in `folder`; with `force`, None where it is damaged or another version's, for then it is replaced."""
    try:
        return ExportManifest.load(folder)
    except RwkvlabError:
        if force:
            return None
        raise


def _files(manifest: ExportManifest) -> list[str]:
    graphs = [f"{graph.name}.onnx{suffix}" for graph in manifest.graphs for suffix in ("", ".data")]
    return graphs + ([manifest.embedding] if manifest.embedding else [])


def _export_chunk(
    checkpoint: Checkpoint, encodings: Encodings, manifest: ExportManifest, part: ChunkRange, folder: Path, bar: tqdm
) -> None:
    recipe = manifest.source.recipe
    graphs = [graph for graph in manifest.graphs if graph.chunk == part.index]
    todo = [g for g in graphs if not all((folder / f"{g.name}.onnx{end}").is_file() for end in ("", ".data"))]
    if todo:
        chunk = load_chunk(checkpoint, part.first, part.last, embedding=manifest.embedding is None)
        chunk = simulate(chunk, encodings, find_soc(recipe.graph.soc).htp_arch)
        for graph in todo:
            last_only = graph.kind == "prefill" and recipe.graph.logits == "last"
            export_graph(chunk, graph.tokens, folder / f"{graph.name}.onnx", last_only)
    bar.update(2)
