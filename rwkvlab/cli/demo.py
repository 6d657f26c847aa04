"""The whole way on the bundled model: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rwkvlab.cli.common import examples


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog=examples("rwkvlab demo", "rwkvlab demo -o elsewhere/runs"))(demo)


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the run's folder is made.")
    ] = Path("results/runs"),
) -> None:
    """The bundled RWKV-7 through every station at three precisions; leaves a report that opens offline."""
    from rwkvlab.demo import run_demo

    run_demo(output)
