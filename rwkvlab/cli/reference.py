"""rwkv-qualcomm's names: make-calibration-samples, convert-model, convert-vocab; options in its spelling too."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rwkvlab.cli.common import (
    DEFAULT_TOKENIZER,
    Force,
    Model,
    TokenizerName,
    examples,
    open_model,
    open_tokenizer,
    refuse_existing,
    refuse_unwritable,
    say_next,
    show_progress,
    tokenizer_words,
)
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.manifest import EXPORT_MANIFEST, ExportManifest
from rwkvlab.files import write_text_atomic
from rwkvlab.quant.recipe import CalibrationOptions, GraphOptions, Precision, Recipe
from rwkvlab.texts.stories import STORIES
from rwkvlab.tokenizer import WorldTokenizer, byte_form, load_tokenizer, vocabulary_file

if TYPE_CHECKING:
    from rwkvlab.checkpoint import Checkpoint
    from rwkvlab.quant.encodings import Encodings
    from rwkvlab.quant.provenance import Provenance
    from rwkvlab.texts.corpus import CalibrationText

QUANTIZED: tuple[Precision, ...] = ("a16w8", "a16w4", "att-a16w8+ffn-a16w4")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(
        epilog=examples(
            "rwkvlab make-calibration-samples x070 samples_x070 2",
            "rwkvlab make-calibration-samples model.pth samples 4 --tokenizer world --text books/ --tokens 2048",
        )
    )(make_calibration_samples)
    app.command(
        epilog=examples(
            "rwkvlab convert-model x070 --chunks 2",
            "rwkvlab convert-model x070 --chunks 2 --use_qnn_quant --calib_data_path samples_x070",
            "rwkvlab convert-model x070 --use_qnn_quant --linear_param_encodings quant_encodings/x070/a16w4.encodings",
        )
    )(convert_model)
    app.command(
        epilog=examples("rwkvlab convert-vocab world .", "rwkvlab convert-vocab vocab.txt b_vocab.txt"),
    )(convert_vocab)


def make_calibration_samples(
    model: Model,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the samples; must not exist.")],
    chunks: Annotated[int, typer.Argument(metavar="CHUNKS", min=1, help="As the model will be cut.")],
    ext_embedding: Annotated[
        bool, typer.Option("--ext-embedding", "--ext_embedding", help="Give the first chunk embedded vectors, not ids.")
    ] = False,
    text: Annotated[str, typer.Option(metavar="TEXT", help="stories, a text file, or a folder of them.")] = STORIES,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to read; each is a sample with all states.")] = 1024,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a row; each row starts from the empty state.")] = 128,
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
) -> None:
    """Write what enters every chunk at every token as raw float32 files, for Qualcomm's converter or convert-model."""
    refuse_unwritable(output.parent)
    checkpoint = open_model(model)
    from rwkvlab.export.samples import write_samples
    from rwkvlab.stages import read_calibration_text

    options = CalibrationOptions(text=text, tokens=tokens, length=length)
    rows = read_calibration_text(options, open_tokenizer(tokenizer, checkpoint.spec.vocab_size))
    count = write_samples(checkpoint, rows.batches, output, chunks, ext_embedding, show_progress())
    typer.echo(f"{output}: {count} samples for each of {chunks} chunks (ids sha256 {rows.sha256[:12]})")
    quantize = ["convert-model", model, "--chunks", str(chunks), "--use-qnn-quant"]
    if ext_embedding:  # no token ids are in these samples
        say_next(*quantize, "--ext-embedding", "--text", text, *tokenizer_words(tokenizer))
    else:
        say_next(*quantize, "--calib-data-path", output)


def convert_model(
    model: Model,
    chunks: Annotated[int, typer.Option(min=1, help="Pieces to cut the model into.")] = 2,
    use_qnn_quant: Annotated[
        bool, typer.Option("--use-qnn-quant", "--use_qnn_quant", help="Quantize; without it the graphs are fp16.")
    ] = False,
    act_bitwidth: Annotated[
        int | None, typer.Option("--act-bitwidth", "--act_bitwidth", help="Of activations: 16.")
    ] = None,
    weights_bitwidth: Annotated[
        int | None,
        typer.Option("--weights-bitwidth", "--weights_bitwidth", help="8 (a16w8) unless given, or 4 (a16w4)."),
    ] = None,
    ext_embedding: Annotated[
        bool, typer.Option("--ext-embedding", "--ext_embedding", help="Leave the embedding out; write <model>.emb.")
    ] = False,
    calib_data_path: Annotated[
        Path | None,
        typer.Option("--calib-data-path", "--calib_data_path", metavar="FOLDER", help="Of make-calibration-samples."),
    ] = None,
    linear_param_encodings: Annotated[
        Path | None,
        typer.Option(
            "--linear-param-encodings",
            "--linear_param_encodings",
            metavar="FILE",
            help="Weight grids, AIMET 1.0.0; what it lacks is chosen here.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Calibrate on it where no samples are given; stories.")
    ] = None,
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Folder of the graphs.")] = Path("onnx"),
    force: Force = False,
) -> None:
    """From a checkpoint to ONNX graphs at once: calibrate, quantize, export. New encodings lie beside the graphs."""
    refuse_unwritable(output)
    widths = {"act_bitwidth": act_bitwidth, "weights_bitwidth": weights_bitwidth}
    inputs = {"calib_data_path": calib_data_path, "linear_param_encodings": linear_param_encodings, "text": text}
    _check_options(use_qnn_quant, widths, inputs)
    checkpoint = open_model(model)
    graph = GraphOptions(chunks=chunks, external_embedding=ext_embedding)
    given, recipe = _weights(checkpoint, graph, use_qnn_quant, weights_bitwidth or 8, linear_param_encodings)
    _check_before_work(checkpoint, recipe, output, force)
    from rwkvlab.export.export import export_model

    file = linear_param_encodings
    if recipe.quantizes and (calib_data_path or text or not _is_complete(given, checkpoint, recipe)):
        rows, source = _rows(checkpoint, calib_data_path, text or STORIES, tokenizer, chunks)
        file = output / f"{checkpoint.path.stem}.encodings"
        given, recipe = _quantize(checkpoint, rows, source, recipe, given, file, force)
    made = export_model(checkpoint, given, recipe, output, force, show_progress())
    typer.echo(f"{output}: {len(made.graphs)} graphs, {recipe.precision}, {chunks} chunks")
    if file:
        typer.echo(f"encodings: {file}")
    cache = Path("caches") / f"{checkpoint.path.stem}-{recipe.precision}-SM8650"
    say_next("make-context-cache", output / f"{made.graphs[0].name}.onnx", cache, "SM8650")


def convert_vocab(
    vocabulary: Annotated[str, typer.Argument(metavar="IN", help="A World-format vocabulary file, world, or zoo.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A file, or a folder, where it becomes b_<name>.")],
    force: Force = False,
) -> None:
    r"""Write a vocabulary with every token as b'\xNN...', the form that rwkv-qualcomm's programs read."""
    tokenizer = load_tokenizer(vocabulary)
    if not isinstance(tokenizer, WorldTokenizer):
        raise RwkvlabError(f"{vocabulary} has no vocabulary file", "world, zoo, or a World-format vocabulary file")
    path = output / f"b_{vocabulary_file(vocabulary).name}" if output.is_dir() else output
    refuse_unwritable(path.parent)
    if path.exists() and not force:
        raise RwkvlabError(f"{path} exists already", "a new file", "choose another OUT, or add --force to replace it")
    write_text_atomic(path, byte_form(tokenizer.tokens))
    typer.echo(f"{path}: {len(tokenizer.tokens)} tokens (sha256 of the vocabulary {tokenizer.hash[:12]})")
    say_next("evaluate", "MODEL.pth", "--tokenizer", path)


def _check_options(quantizes: bool, widths: dict[str, int | None], inputs: dict[str, Path | str | None]) -> None:
    for (name, width), allowed in zip(widths.items(), ((16,), (8, 4)), strict=True):
        if width not in (None, *allowed):
            raise RwkvlabError(f"{_option(name)} {width}", " or ".join(map(str, allowed)), "choose one of them")
    useless = [_option(name) for name, value in (widths | inputs).items() if value is not None]
    if useless and not quantizes:
        what = f"{', '.join(useless)} without --use-qnn-quant, which makes fp16 graphs"
        raise RwkvlabError(what, todo="add --use-qnn-quant, or leave the rest out")
    if inputs["calib_data_path"] and inputs["text"]:
        raise RwkvlabError("--text beside --calib-data-path", "one of them", "leave one out")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _weights(
    checkpoint: Checkpoint, graph: GraphOptions, quantizes: bool, bits: int, file: Path | None
) -> tuple[Encodings, Recipe]:
    """The encodings in `file`, and a recipe that agrees with them: as recorded beside it, else by their widths."""
    from rwkvlab.model.rwkv import linear_names
    from rwkvlab.quant import provenance
    from rwkvlab.quant.encodings import Encodings

    if file is None:
        precision = {"precision": f"a16w{bits}" if quantizes else "fp16"}
        return Encodings(), Recipe.parse(precision | {"graph": graph.model_dump()})
    encodings, record = provenance.open_encodings(file, checkpoint)
    if record:
        as_recorded = record.recipe.graph.model_copy(update=graph.model_dump(exclude_unset=True))
        return encodings, record.recipe.model_copy(update={"graph": as_recorded})
    found = {name.removesuffix(".weight"): encoding.bits for name, encoding in encodings.params.items()}
    widths = {name: found.get(name, bits) for name in linear_names(checkpoint.spec)}
    recipes = [_recipe_of(widths, precision, graph, file) for precision in QUANTIZED]
    return encodings, min(recipes, key=lambda recipe: len(recipe.exceptions))


def _recipe_of(widths: dict[str, int], precision: Precision, graph: GraphOptions, file: Path) -> Recipe:
    """The precision, with a rule for every linear whose width differs from what it says."""
    plain = Recipe(precision=precision)
    rules = []
    for name, bits in widths.items():
        if bits != plain.weight_bits(name):
            where = {} if name == "head" else {"layers": (int(name.split(".")[1]),)}
            rules.append({"linears": name.split(".", 2)[-1], "bits": bits} | where)
    return Recipe.parse({"precision": precision, "exceptions": rules, "graph": graph.model_dump()}, str(file))


def _check_before_work(checkpoint: Checkpoint, recipe: Recipe, output: Path, force: bool) -> None:
    """Refuse before the work what exporting would refuse: too large chunks, a folder that holds another export."""
    from rwkvlab.export.export import check_sizes
    from rwkvlab.model.chunks import plan_chunks

    check_sizes(checkpoint.spec, recipe, plan_chunks(checkpoint.spec.n_layer, recipe.graph.chunks))
    if force or not (output / EXPORT_MANIFEST).is_file():
        return
    there = ExportManifest.load(output).source
    wanted = recipe.model_copy(update={"calibration": there.recipe.calibration})
    if (there.model_sha256, there.recipe) != (checkpoint.sha256, wanted):
        found = f"{there.model}, {there.recipe.precision}, {there.recipe.graph.chunks} chunks"
        todo = "choose another -o or add --force"
        raise RwkvlabError(f"{output} holds another export ({found})", "an empty folder or the same export", todo)


def _is_complete(encodings: Encodings, checkpoint: Checkpoint, recipe: Recipe) -> bool:
    """Whether nothing is left to calibrate."""
    from rwkvlab.model.rwkv import linear_names

    quantized = [name for name in linear_names(checkpoint.spec) if recipe.weight_bits(name)]
    return {f"{name}.weight" for name in quantized} <= encodings.params.keys() and {
        f"{name}.{end}" for name in quantized for end in ("input", "output")
    } <= encodings.activations.keys()


def _rows(
    checkpoint: Checkpoint, samples: Path | None, text: str, tokenizer: str, chunks: int
) -> tuple[CalibrationText, str]:
    """The rows to calibrate on, and what they come from."""
    if samples:
        from rwkvlab.export.samples import read_rows
        from rwkvlab.texts.corpus import CalibrationText

        rows = read_rows(samples, checkpoint.spec, chunks)
        digest = sha256(rows.astype("<i8").tobytes()).hexdigest()
        return CalibrationText(rows, digest, (str(samples),)), str(samples)
    from rwkvlab.stages import read_calibration_text

    vocabulary = open_tokenizer(tokenizer, checkpoint.spec.vocab_size)
    return read_calibration_text(CalibrationOptions(text=text), vocabulary), text


def _quantize(
    checkpoint: Checkpoint,
    rows: CalibrationText,
    source: str,
    recipe: Recipe,
    given: Encodings,
    file: Path,
    force: bool,
) -> tuple[Encodings, Recipe]:
    """Calibrate, choose grids for everything but the weights already given, and write them to `file`."""
    from rwkvlab.quant import calibrate, provenance, quantize
    from rwkvlab.quant.encodings import Encodings

    aided, chunks = checkpoint.with_aids(recipe.aids), recipe.graph.chunks
    statistics = calibrate.calibrate(aided, rows.batches, source, rows.sha256, chunks, progress=show_progress())
    recipe = provenance.with_calibration(recipe, statistics.source, check=False)
    chosen = quantize.quantize(checkpoint, statistics, recipe)
    made = Encodings(chosen.params | given.params, chosen.activations)
    record = provenance.describe(checkpoint, recipe, statistics.source, made) if made == chosen else None
    if record is None and recipe.aids.on:
        raise RwkvlabError(
            "range aids together with weights of another tool: no record could tell later commands of the aids",
            "range aids with weights that rwkvlab quantized",
            "leave the aids out of the recipe, or let rwkvlab quantize the weights",
        )
    _save(file, made, record, force)
    typer.echo(f"calibrated on {rows.n_tokens} tokens of {source} (ids sha256 {rows.sha256[:12]})")
    return made, recipe


def _save(file: Path, encodings: Encodings, record: Provenance | None, force: bool) -> None:
    """Write encodings, and how they were made unless their weights are another tool's; equal ones stay as they are."""
    from rwkvlab.quant import provenance

    if file.is_file() and file.read_bytes() == encodings.to_json().encode():
        return
    for path in (file, provenance.sidecar(file)):
        refuse_existing(path, force)
    if record:
        provenance.save(file, encodings, record)
    else:
        encodings.save(file)
        provenance.sidecar(file).unlink(missing_ok=True)
