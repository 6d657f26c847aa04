"""Running rwkvlab's command line in tests, on a model small enough to go the whole way in seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from rwkvlab.checkpoint import write_random_checkpoint
from rwkvlab.cli import app
from rwkvlab.spec import LoraRanks, ModelSpec

TINY = ModelSpec(
    n_layer=2,
    n_embd=32,
    head_size=16,
    n_ffn=64,
    vocab_size=257,
    lora=LoraRanks(decay=8, iclr=6, value=4, gate=10),
)
"""Fits the tokenizer `bytes`."""


def write_tiny(path: Path, seed: int = 1) -> Path:
    """A random checkpoint of `TINY`."""
    return write_random_checkpoint(TINY, path, seed)


def run(*words: object) -> Result:
    """`rwkvlab words...` in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: object) -> str:
    """What a command that must succeed prints on stdout."""
    result = run(*words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def fail(*words: object) -> str:
    """The one line with which a command must refuse; exit code 2, with a way out."""
    result = run(*words)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    return check_refusal(result.exit_code, result.stderr)


def check_refusal(code: int, stderr: str) -> str:
    """Assert that `stderr` is one line `error: what; allowed: ...; try: ...` (at least one of the two), the code 2."""
    assert code == 2, stderr
    assert stderr.count("\n") == 1, stderr
    assert re.fullmatch(r"error: .+; (allowed|try): .+\n", stderr), stderr
    return stderr


def process(*words: object, **options) -> subprocess.CompletedProcess[str]:
    """`python -m rwkvlab words...` in a process of its own."""
    command = [sys.executable, "-m", "rwkvlab", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def files_in(folder: Path) -> set[str]:
    """Everything below a folder, as relative names."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
