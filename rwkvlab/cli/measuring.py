"""What it cost: evaluate, fidelity, locate."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rwkvlab import zoo
from rwkvlab.cli.common import (
    DEFAULT_TOKENIZER,
    Encoded,
    Force,
    Model,
    TokenizerName,
    examples,
    open_model,
    open_tokenizer,
    refuse_existing,
    say_next,
    show_progress,
    tokenizer_words,
)
from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.lambada import LambadaResult, evaluate_lambada
from rwkvlab.evaluate.protocol import LogitSource
from rwkvlab.files import write_text_atomic
from rwkvlab.htp.cache import ContextCache
from rwkvlab.soc import SOCS, find_soc
from rwkvlab.texts.lambada import Item, load_items
from rwkvlab.texts.stories import EVALUATION_SEED, STORIES, generate

if TYPE_CHECKING:
    from rwkvlab.checkpoint import Checkpoint
    from rwkvlab.quant.torch_source import TorchSource

N_STORIES = 1000
"""Of the bundled test set: held-out templates, the stories of the bundled model's own evidence."""
ROW = 128
"""Tokens in a row of a fidelity comparison."""


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(
        epilog=examples(
            "rwkvlab evaluate x070 --text stories",
            "rwkvlab evaluate x070 --encodings quant_encodings/x070/a16w4.encodings --limit 500 -o a16w4.json",
            "rwkvlab evaluate caches/x070-a16w8-SM8650 --limit 8",
            "rwkvlab evaluate model.pth --tokenizer world --text lambada_test.jsonl --no-bos",
        )
    )(evaluate)
    app.command(
        epilog=examples(
            "rwkvlab fidelity caches/x070-a16w8-SM8650 x070 --encodings quant_encodings/x070/a16w8.encodings",
            "rwkvlab fidelity caches/x070-fp16-SM8650 x070 --positions 2000 --text novel.txt",
        )
    )(fidelity)
    app.command(
        epilog=examples(
            "rwkvlab locate x070 --encodings quant_encodings/x070/a16w4.encodings",
            "rwkvlab locate model.pth --tokenizer world --text novel.txt --soc SM8750",
        )
    )(locate)


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_CACHE", help="A checkpoint (torch) or a context cache.")],
    text: Annotated[
        str,
        typer.Option(metavar="TEXT", help="stories, hub (the official LAMBADA test set), or a .jsonl or .txt file."),
    ] = STORIES,
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
    encodings: Encoded = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Measure the first so many items only.")] = None,
    bos: Annotated[bool, typer.Option("--bos/--no-bos", help="Put token 0 before every item.")] = True,
    where: Annotated[
        Literal["torch", "sim"] | None, typer.Option(help="Refuse to run anywhere else; a cache runs on sim.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.json", help="Keep every item's score.")
    ] = None,
    force: Force = False,
) -> None:
    """Last-word perplexity and accuracy by LAMBADA's definition, of a checkpoint in torch or of a context cache."""
    if output:
        refuse_existing(output, force)
    is_cache = Path(model).is_dir()
    if not zoo.find(model).exists() and not Path(model).suffix:
        raise RwkvlabError(f"nothing at {model}", "a checkpoint, a bundled model, or the folder of a context cache")
    if where and (where == "sim") != is_cache:
        kind, other = ("context cache", "sim") if is_cache else ("checkpoint", "torch")
        raise RwkvlabError(
            f"--where {where}, but {model} is a {kind}", f"--where {other}", "give the other, or no --where"
        )
    made_of, source = _cache_source(model, encodings) if is_cache else _torch_source(model, encodings)
    vocabulary = open_tokenizer(tokenizer, made_of["vocab_size"])
    result = evaluate_lambada(
        source,
        _items(text),
        vocabulary,
        bos,
        limit,
        task=text if text == STORIES else "lambada",
        progress=show_progress(),
    )
    typer.echo(result)
    if output:
        write_text_atomic(output, _as_json(result, made_of))
        typer.echo(f"{output}: {result.n} items")
    if is_cache:
        name, precision = made_of["model"], made_of["precision"]
        given = [] if precision == "fp16" else ["--encodings", f"quant_encodings/{name}/{precision}.encodings"]
        say_next("fidelity", model, name if name in zoo.names() else f"{name}.pth", *given, *tokenizer_words(tokenizer))
    else:
        given = ["--encodings", encodings] if encodings else []
        say_next("export", model, *given, "-o", Path("exports") / zoo.find(model).stem)


def fidelity(
    cache: Annotated[Path, typer.Argument(metavar="CACHE_FOLDER", help="Made by rwkvlab make-context-cache.")],
    model: Model,
    encodings: Encoded = None,
    positions: Annotated[int, typer.Option(min=1, help="At least so many, in rows of 128 tokens.")] = 1000,
    text: Annotated[str, typer.Option(metavar="TEXT", help="stories (held out), or a text file or folder.")] = STORIES,
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
) -> None:
    """How closely a context cache follows the same model in torch: QuantSim with the same encodings, or float32."""
    opened = ContextCache.open(cache)
    checkpoint = open_model(model)
    _require_model(opened, checkpoint)
    from rwkvlab.device.local import LocalTarget
    from rwkvlab.evaluate.fidelity import compare

    reference = _same_encodings(opened, checkpoint, encodings)
    rows = _rows(text, positions, tokenizer, checkpoint.spec.vocab_size)
    typer.echo(compare(reference, LocalTarget(opened), rows))
    say_next("evaluate", cache, *tokenizer_words(tokenizer), "--text", "stories", "--limit", "8")


def locate(
    model: Model,
    encodings: Encoded = None,
    soc: Annotated[str, typer.Option(help=f"The chip: {', '.join(sorted(SOCS))}.")] = "SM8650",
    text: Annotated[str, typer.Option(help=f"{STORIES}, or a text file.")] = STORIES,
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
    tokens: Annotated[int, typer.Option(help="Tokens compared: 32, 48, 64, ...")] = 32,
) -> None:
    """Find the first tensor where float, QuantSim, the Q/DQ graph on the CPU and the HTP part ways."""
    chip, checkpoint = find_soc(soc), open_model(model)
    from rwkvlab.htp.locate import locate as compare_tensors
    from rwkvlab.quant import provenance
    from rwkvlab.quant.encodings import Encodings

    loaded, record = provenance.open_encodings(encodings, checkpoint) if encodings else (Encodings(), None)
    aided = checkpoint.with_aids(record.recipe.aids) if record else checkpoint
    row = _rows(text, tokens, tokenizer, checkpoint.spec.vocab_size)[0][:tokens]
    with tempfile.TemporaryDirectory(prefix="rwkvlab-locate-") as folder:
        typer.echo(compare_tensors(aided, loaded, row, chip, Path(folder)).render())
    say_next("fidelity", "--help")


def _items(text: str) -> list[Item]:
    if text != STORIES:
        return load_items(text)
    return [Item(story.context, story.target) for story in generate(N_STORIES, EVALUATION_SEED, "test")]


def _cache_source(folder: str, encodings: Path | None) -> tuple[dict, LogitSource]:
    if encodings:
        raise RwkvlabError(
            "--encodings with a context cache", "a cache alone: its encodings are compiled in", "leave --encodings out"
        )
    from rwkvlab.device.local import LocalTarget

    cache = ContextCache.open(folder)
    made_of = cache.manifest.source
    facts = {
        "model": made_of.model,
        "model_sha256": made_of.model_sha256,
        "encodings_sha256": made_of.encodings_sha256,
        "precision": made_of.recipe.precision,
        "soc": cache.manifest.soc,
        "vocab_size": made_of.spec.vocab_size,
    }
    return facts, LocalTarget(cache)


def _torch_source(model: str, file: Path | None) -> tuple[dict, LogitSource]:
    checkpoint = open_model(model)
    from rwkvlab.quant import provenance
    from rwkvlab.quant.torch_source import TorchSource

    encodings, record = provenance.open_encodings(file, checkpoint) if file else (None, None)
    checkpoint = checkpoint.with_aids(record.recipe.aids) if record else checkpoint
    facts = {
        "model": checkpoint.path.stem,
        "model_sha256": checkpoint.sha256,
        "encodings_sha256": encodings.sha256 if encodings else None,
        "vocab_size": checkpoint.spec.vocab_size,
    }
    return facts, TorchSource(checkpoint, encodings)


def _as_json(result: LambadaResult, made_of: dict) -> str:
    scores = zip(result.log_probs.tolist(), result.correct.tolist(), strict=True)
    content = {
        "model": made_of,
        "protocol": result.protocol.model_dump(),
        "n": result.n,
        "k": result.k,
        "acc": result.acc,
        "ppl": result.ppl,
        "items": [{"log_prob": log_prob, "correct": correct} for log_prob, correct in scores],
    }
    return json.dumps(content, indent=1)


def _require_model(cache: ContextCache, checkpoint: Checkpoint) -> None:
    made_of = cache.manifest.source
    if checkpoint.sha256 != made_of.model_sha256:
        raise RwkvlabError(
            f"{cache.folder} was compiled from {made_of.model} (sha256 {made_of.model_sha256[:12]})",
            f"that checkpoint; {checkpoint.path.name} has sha256 {checkpoint.sha256[:12]}",
            "give the checkpoint the cache was made from",
        )


def _same_encodings(cache: ContextCache, checkpoint: Checkpoint, file: Path | None) -> TorchSource:
    from rwkvlab.quant.encodings import Encodings
    from rwkvlab.quant.torch_source import TorchSource

    wanted = cache.manifest.source.encodings_sha256
    encodings = Encodings.load(file) if file else None
    found = encodings.sha256 if encodings else None
    if found != wanted:
        here = f"{file} (sha256 {found[:12]})" if found else "no encodings"
        raise RwkvlabError(
            f"{cache.folder} was not compiled from {here}",
            f"--encodings FILE with sha256 {wanted[:12]}" if wanted else "an fp16 cache without --encodings",
            "give the encodings that were exported",
        )
    made_of = cache.manifest.source
    return TorchSource(
        replace(checkpoint, spec=made_of.spec, aids=made_of.recipe.aids), encodings, cache.manifest.htp_arch
    )


def _rows(text: str, positions: int, tokenizer: str, vocab_size: int) -> list[list[int]]:
    """Rows of 128 tokens, at least `positions` in all."""
    from rwkvlab.texts.corpus import Source, cut_rows, read_sources

    if text == STORIES:
        stories = generate(positions // 40 + 5, EVALUATION_SEED, "test")
        sources = [Source(f"story {number}", story.text + ".") for number, story in enumerate(stories)]
    else:
        sources = read_sources(text)
    return cut_rows(sources, open_tokenizer(tokenizer, vocab_size), positions, ROW).batches.tolist()
