"""From a checkpoint to encodings: calibrate, quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    say_next,
    show_progress,
)
from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.recipe import CalibrationOptions, Precision, Recipe


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(
        epilog=examples(
            "rwkvlab calibrate x070 -o x070.npz",
            "rwkvlab calibrate model.pth --tokenizer world --text books/ --tokens 32768 --chunks 6 -o model.npz",
        )
    )(calibrate)
    app.command(
        epilog=examples(
            "rwkvlab quantize x070 --calibration x070.npz --precision a16w4",
            "rwkvlab quantize x070 --calibration x070.npz --activation-range percentile --percentile 99.99",
            "rwkvlab quantize x070 --calibration x070.npz --recipe mine.yaml -o quant_encodings/x070/mine.encodings",
        )
    )(quantize)


def calibrate(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.npz", help="File of the statistics.")],
    tokenizer: TokenizerName = DEFAULT_TOKENIZER,
    text: Annotated[
        str,
        typer.Option(metavar="TEXT", help="stories (the bundled training stories), a text file, or a folder of them."),
    ] = "stories",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to read.")] = 8192,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a row; each row starts from the empty state.")] = 128,
    seed: Annotated[int, typer.Option(help="Of the generated stories.")] = 0,
    chunks: Annotated[int, typer.Option(min=1, help="Pieces to load the model in: more need less memory.")] = 1,
    force: Force = False,
) -> None:
    """Record what values enter and leave every linear while the float model reads text."""
    refuse_existing(output, force)
    if output.suffix != ".npz":
        raise RwkvlabError(f"{output} does not end in .npz", "a name like model.npz", "choose another -o")
    checkpoint = open_model(model)
    from rwkvlab.quant import calibrate as station
    from rwkvlab.stages import read_calibration_text

    options = CalibrationOptions(text=text, tokens=tokens, length=length, seed=seed)
    rows = read_calibration_text(options, open_tokenizer(tokenizer, checkpoint.spec.vocab_size))
    made = station.calibrate(checkpoint, rows.batches, text, rows.sha256, chunks, progress=show_progress(), seed=seed)
    made.save(output)
    typer.echo(f"{output}: {len(made.ranges)} tensors over {rows.n_tokens} tokens (ids sha256 {rows.sha256[:12]})")
    say_next("quantize", model, "--calibration", output, "--precision", "a16w8")


def quantize(
    model: Model,
    calibration: Annotated[Path, typer.Option(metavar="FILE.npz", help="Made by rwkvlab calibrate.")],
    recipe: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Instead of the options below.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="a16w8 unless given.")] = None,
    activation_range: Annotated[
        Literal["min-max", "percentile"] | None, typer.Option(help="percentile lets the rarest values clip.")
    ] = None,
    percentile: Annotated[float | None, typer.Option(help="Of the values kept, in percent.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.encodings", help="quant_encodings/<model>/<recipe>.encodings"),
    ] = None,
    force: Force = False,
) -> None:
    """Choose the integer grids of weights and activations; writes them and, beside them, how they were made (.yaml)."""
    options = {"precision": precision, "activation_range": activation_range, "percentile": percentile}
    wanted, name = _recipe(recipe, {key: value for key, value in options.items() if value is not None})
    checkpoint = open_model(model)
    path = output or Path("quant_encodings") / checkpoint.path.stem / f"{name}.encodings"
    from rwkvlab.quant import calibrate as calibrating
    from rwkvlab.quant import provenance
    from rwkvlab.quant import quantize as station

    record = provenance.sidecar(path)
    if recipe is not None and record.resolve() == recipe.resolve():
        what = f"the record of how {path.name} was made would replace your recipe {recipe}"
        raise RwkvlabError(what, "another folder or name", "choose another -o")
    for file in (path, record):
        refuse_existing(file, force)
    statistics = calibrating.Calibration.load(calibration)
    used = provenance.with_calibration(wanted, statistics.source, check=recipe is not None)
    made = station.quantize(checkpoint, statistics, used)
    provenance.save(path, made, provenance.describe(checkpoint, used, statistics.source, made))
    typer.echo(f"{path}: {len(made.params)} weights and {len(made.activations)} activations; how: {record}")
    say_next("export", model, "--encodings", path, "-o", Path("exports") / f"{checkpoint.path.stem}-{path.stem}")


def _recipe(file: Path | None, options: dict) -> tuple[Recipe, str]:
    """The recipe, and what to call it."""
    if file is not None and options:
        given = ", ".join(f"--{key.replace('_', '-')}" for key in options)
        raise RwkvlabError(f"{given} beside --recipe", "one or the other", f"write it into {file}")
    recipe = Recipe.load(file) if file is not None else Recipe.parse(options, "the options")
    if recipe.precision == "fp16":
        raise RwkvlabError("fp16 has no encodings to choose", "a16w8, a16w4", "rwkvlab export without --encodings")
    if file is not None:
        return recipe, file.stem
    return recipe, recipe.precision + (f"-p{recipe.percentile:g}" if recipe.activation_range == "percentile" else "")
