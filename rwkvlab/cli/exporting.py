"""From encodings to what runs: export, make-context-cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rwkvlab.cli.common import (
    Encoded,
    Force,
    Model,
    examples,
    fitting_tokenizer,
    open_model,
    refuse_unwritable,
    say_next,
    show_progress,
    table,
    tokenizer_words,
)
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.manifest import ExportManifest
from rwkvlab.quant.recipe import Precision, Recipe
from rwkvlab.soc import SOCS, find_soc

if TYPE_CHECKING:
    from rwkvlab.checkpoint import Checkpoint
    from rwkvlab.htp.cache import Manifest
    from rwkvlab.quant.encodings import Encodings


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(
        epilog=examples(
            "rwkvlab export x070 -o exports/x070-fp16",
            "rwkvlab export x070 --encodings quant_encodings/x070/a16w8.encodings --chunks 2 -o exports/x070-a16w8",
        )
    )(export)
    app.command(
        epilog=examples(
            "rwkvlab make-context-cache exports/x070-a16w8 caches/x070-a16w8-SM8650 SM8650",
            "rwkvlab make-context-cache exports/x070-a16w8 caches/x070-a16w8-SC8380 SC8380 --force",
            "rwkvlab make-context-cache onnx/x070_chunk1of2.onnx caches/x070-SM8650 SM8650",
        )
    )(make_context_cache)


def export(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Folder of the graphs.")],
    encodings: Encoded = None,
    precision: Annotated[
        Precision | None, typer.Option(help="Of encodings without a .yaml beside them, which says it otherwise.")
    ] = None,
    chunks: Annotated[int | None, typer.Option(min=1, help="Pieces to cut the model into; 1 unless given.")] = None,
    ext_embedding: Annotated[
        bool, typer.Option("--ext-embedding", "--ext_embedding", help="Leave the embedding out; write <model>.emb.")
    ] = False,
    prefill_tokens: Annotated[
        int | None, typer.Option(help="Tokens per prefill block, a multiple of 16 from 32 on.")
    ] = None,
    logits: Annotated[
        Literal["all", "last"] | None, typer.Option(help="Positions of a block that get scores; evaluate needs all.")
    ] = None,
    force: Force = False,
) -> None:
    """Write the ONNX graphs: for every chunk a decode graph (one token) and a prefill graph (a block of tokens)."""
    refuse_unwritable(output)
    checkpoint = open_model(model)
    from rwkvlab.export.export import export_model
    from rwkvlab.quant.encodings import Encodings

    loaded, recipe = _quantized(checkpoint, encodings, precision) if encodings else (Encodings(), _float(precision))
    options = {"chunks": chunks, "prefill_tokens": prefill_tokens, "logits": logits}
    graph = recipe.graph.model_dump() | {key: value for key, value in options.items() if value is not None}
    graph["external_embedding"] = graph["external_embedding"] or ext_embedding
    recipe = Recipe.parse(recipe.model_dump() | {"graph": graph}, "the options")
    made = export_model(checkpoint, loaded, recipe, output, force, show_progress())
    typer.echo(f"{output}: {len(made.graphs)} graphs, {recipe.precision}, {recipe.graph.chunks} chunks")
    say_next("make-context-cache", output, Path("caches") / f"{output.name}-SM8650", "SM8650")


def make_context_cache(
    exported: Annotated[
        Path,
        typer.Argument(metavar="EXPORT_FOLDER", help="Made by rwkvlab export; or the .onnx of its first chunk."),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the context cache.")],
    soc: Annotated[str, typer.Argument(metavar="SOC", help=f"The chip: {', '.join(sorted(SOCS))}.")],
    force: Force = False,
) -> None:
    """Compile every graph to an HTP context binary; an up-to-date cache is reused, a stopped one continued."""
    chip = find_soc(soc)
    refuse_unwritable(output)
    from rwkvlab.htp.build import build_cache

    manifest = build_cache(_export_folder(exported), output, chip, force, show_progress()).manifest
    _show(manifest)
    per_token = manifest.ddr_bytes_per_token()
    typer.echo(f"DDR bytes per token (decode, all chunks): {per_token:,.0f}")
    typer.echo(f"{output}: {manifest.soc}, HTP v{manifest.htp_arch}, QNN {manifest.sdk_build}")
    if manifest.source.recipe.graph.logits == "all":
        words = tokenizer_words(fitting_tokenizer(manifest.source.spec.vocab_size))
        say_next("evaluate", output, *words, "--text", "stories", "--limit", "8")
    else:
        typer.echo(
            "its prefill graphs score the last position only; rwkvlab evaluate needs an export with --logits all"
        )
        say_next("export", "--help")


def _export_folder(given: Path) -> Path:
    """The folder itself, or that of the first chunk's graph, which stands for all chunks as in rwkv-qualcomm."""
    if given.is_dir() or not (given.is_file() or given.suffix == ".onnx"):
        return given
    first = given.with_name(f"{ExportManifest.load(given.parent).graphs[0].name}.onnx")
    if given != first:
        what = f"{given} is not the first chunk of its export"
        raise RwkvlabError(what, f"{first.parent}, or {first} for all of it", "give one of them")
    return first.parent


def _float(precision: Precision | None) -> Recipe:
    if precision not in (None, "fp16"):
        raise RwkvlabError(f"{precision} without encodings", "--encodings FILE", "run rwkvlab quantize first")
    return Recipe(precision="fp16")


def _quantized(checkpoint: Checkpoint, file: Path, precision: Precision | None) -> tuple[Encodings, Recipe]:
    """The encodings, and what they were made with: from the record beside them, else from the option."""
    from rwkvlab.quant import provenance

    encodings, record = provenance.open_encodings(file, checkpoint)
    if record is None:
        if precision is None:
            what = f"{file} has no record of how it was made ({provenance.sidecar(file).name}) beside it"
            raise RwkvlabError(what, "encodings with their .yaml", "say it: --precision a16w8 or a16w4")
        return encodings, Recipe(precision=precision)
    if precision not in (None, record.recipe.precision):
        todo = f"leave --precision out, or quantize with {precision}"
        raise RwkvlabError(f"--precision {precision}, but {file} holds {record.recipe.precision}", "the same", todo)
    if record.encodings_sha256 != encodings.sha256:
        typer.echo(f"note: {file} was edited after rwkvlab quantize wrote it")
    return encodings, record.recipe


def _show(manifest: Manifest) -> None:
    rows = [
        [
            g.graph.name,
            f"{g.binary.bytes:,}",
            f"{g.ddr_read_bytes:,}",
            f"{g.ddr_write_bytes:,}",
            f"{sum(g.ops.values()):,}",
        ]
        for g in manifest.graphs
    ]
    table("One execution of each graph", ["graph", "binary bytes", "DDR read", "DDR write", "ops"], rows)
