"""The whole way on the bundled model: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rwkvlab.cli.common import examples, say_next


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog=examples("rwkvlab demo", "rwkvlab demo --stories 1000 --results elsewhere"))(demo)


def demo(
    results: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where runs/ is made; results/ of the project unless given.")
    ] = None,
    stories: Annotated[int, typer.Option(min=1, help="Unseen stories to measure on, in torch.")] = 500,
    sim_stories: Annotated[int, typer.Option(min=1, help="Of these, how many the HTP simulator reads too.")] = 13,
) -> None:
    """The bundled RWKV-7 through every station at every precision; leaves a report that opens offline."""
    from rwkvlab.demo import run_demo

    run_demo(results, stories, sim_stories)
    say_next("info", "YOUR_MODEL.pth")
