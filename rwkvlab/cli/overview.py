"""Looking before doing: this machine (doctor), a checkpoint (info)."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from rwkvlab import doctor, zoo
from rwkvlab.cli.common import (
    Model,
    examples,
    fitting_tokenizer,
    open_model,
    say_next,
    table,
    tokenizer_words,
)
from rwkvlab.errors import RwkvlabError


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("doctor", epilog=examples("rwkvlab doctor"))(examine)
    app.command("info", epilog=examples("rwkvlab info x070", "rwkvlab info RWKV-x070-0.1B.pth"))(info)


def examine() -> None:
    """What works on this machine, and how to put right what does not."""
    checks = doctor.examine()
    Console(file=sys.stdout).print(doctor.render(checks))
    working = doctor.working_parts(checks)
    for part, purpose in doctor.PARTS.items():
        typer.echo(f"{part}: {'ready' if working[part] else 'NOT ready'} to {purpose}")
    if not working["device"]:
        raise RwkvlabError(
            "this machine lacks what every part of rwkvlab needs", todo="follow the table, top to bottom"
        )
    say_next("demo") if working["workbench"] else say_next("evaluate", "--help")


def info(model: Model) -> None:
    """What a checkpoint is: dimensions, parameters, bytes at each precision, and whether all weights are numbers."""
    checkpoint = open_model(model)
    from rwkvlab.quant.inventory import parameters_by_group, unusable_tensors, weight_bytes

    spec = checkpoint.spec
    widths = ", ".join(f"{width} ({part})" for part, width in spec.lora if width) or "none"
    typer.echo(f"{checkpoint.path}: RWKV-{spec.version}, sha256 {checkpoint.sha256}")
    typer.echo(
        f"{spec.n_layer} layers, n_embd {spec.n_embd}, {spec.n_head} heads of {spec.head_size}, n_ffn {spec.n_ffn}, "
        f"vocabulary {spec.vocab_size}, low-rank widths {widths}"
    )
    groups = parameters_by_group(checkpoint)
    total = groups.total()
    rows = [[group, f"{count:,}", f"{count / total:.1%}"] for group, count in groups.most_common()]
    table("Parameters", ["group", "parameters", "share"], [*rows, ["all", f"{total:,}", "100.0%"]])
    sizes = weight_bytes(checkpoint)
    table("Weights", ["precision", "bytes"], [[precision, f"{size:,}"] for precision, size in sizes.items()])
    if broken := unusable_tensors(checkpoint):
        shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
        todo = "download the file again and compare its sha256 with the publisher's"
        raise RwkvlabError(f"{checkpoint.path}: NaN or infinite weights in {shown}", "finite weights", todo)
    typer.echo("all weights are finite")
    words = tokenizer_words(fitting_tokenizer(spec.vocab_size))
    say_next("calibrate", model, *words, "-o", f"{zoo.find(model).stem}.npz")
