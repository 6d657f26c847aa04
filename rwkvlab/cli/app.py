"""The Typer application, and how it ends: what a user can put right is one line and exit code 2, never a traceback."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rwkvlab import __version__
from rwkvlab.cli import demo, exporting, measuring, overview, quantizing, reference
from rwkvlab.errors import RwkvlabError

BAD_INPUT, INTERRUPTED = 2, 130
_WORKBENCH = {
    "torch",
    "aimet_torch",
    "onnx",
    "safetensors",
    "pandas",
    "matplotlib",
    "papermill",
    "nbformat",
    "nbconvert",
}


class OneLineErrors(TyperGroup):
    """A command group that reports what a user can put right as one line on stderr.

    Everything else keeps its traceback: it is a bug of ours, and the traceback is what a report needs.
    """

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = "rwkvlab", **extra: Any) -> Any:
        """Run a command line; always ends with SystemExit."""
        extra["standalone_mode"] = False
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            code = super().main(args, prog_name, **extra) or 0
        except RwkvlabError as error:
            _stop(str(error))
        except typer.TyperException as error:
            _stop(_usage_error(error))
        except ImportError as error:
            if (error.name or "").split(".")[0] not in _WORKBENCH:
                raise
            what = f"{error.name} is not installed, and this command needs it"
            _stop(str(RwkvlabError(what, todo="pip install 'rwkvlab[workbench]', then rwkvlab doctor")))
        except typer.Abort:
            code = INTERRUPTED
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            _stop("interrupted; the same command starts again", code)
        sys.exit(code)


app = typer.Typer(
    cls=OneLineErrors,
    help="Quantize RWKV language models, compile them for Qualcomm's HTP, run them and measure what it cost.",
    epilog="\b\nThe way through, each command naming the next:\n"
    "  doctor, info, calibrate, quantize, export, make-context-cache, evaluate, fidelity\n"
    "All of it on the bundled model:\n"
    "  rwkvlab demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for station in (overview, quantizing, exporting, measuring, demo, reference):
    station.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rwkvlab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `rwkvlab` itself."""


def main() -> None:
    """Entry point of `rwkvlab` and `python -m rwkvlab`."""
    app()


def _usage_error(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = shlex.split(context.command_path) if context else ["rwkvlab"]
    return str(RwkvlabError(error.format_message().rstrip("."), todo=shlex.join([*command, "--help"])))


def _stop(message: str, code: int = BAD_INPUT) -> None:
    # What a hostile file calls its tensors must not move the cursor.
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in message)
    typer.echo(f"error: {shown}", err=True)
    sys.exit(code)
