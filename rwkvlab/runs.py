"""Run folders: what was asked, with which code and inputs, and what came out.

    results/runs/<UTC>-<name>-<hash8>/
        params.yaml        resolved parameters
        provenance.json    code, packages, machine, inputs' digests, start and end
        figures/           every figure as .svg and .png, with its data as .csv
        metrics.json       written last and atomically: its presence means done

The hash is of the parameters, the code version, the packages and the inputs' digests, so equal hashes mean equal work,
unless the checkout was dirty: of uncommitted changes the record says only that there were some.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import disk_error, sha256_text, write_text_atomic

PARAMS, PROVENANCE, METRICS = "params.yaml", "provenance.json", "metrics.json"

PACKAGES = (
    "rwkvlab",
    "torch",
    "aimet-torch",
    "onnx",
    "onnxruntime",
    "onnxruntime-qnn",
    "numpy",
    "pandas",
    "rwkv",
    "papermill",
)
"""Distributions whose versions can change a number or a figure."""


class Code(BaseModel):
    """Which version of this project ran.

    Attributes:
        git_sha: of the checkout; None where it is none, or git is absent.
        dirty: whether tracked files differed from that commit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    git_sha: str | None
    dirty: bool | None


class Provenance(BaseModel):
    """Where a run's numbers come from.

    Attributes:
        name: what ran, e.g. 60_evaluate.
        code: the project's version.
        packages: version by distribution; None where not installed.
        qnn_sdk: release of Qualcomm's SDK inside onnxruntime-qnn, e.g. 2.49.40; None without it.
        python, platform: the interpreter's and the machine's kind; neither names a user or a host.
        inputs: sha256 of every input by what it is, e.g. model.
        started, ended: UTC, ISO 8601; `ended` is None while it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    code: Code
    packages: dict[str, str | None]
    qnn_sdk: str | None
    python: str
    platform: str
    inputs: dict[str, str]
    started: str
    ended: str | None = None


@dataclass(frozen=True)
class Run:
    """A run folder being filled, or finished."""

    folder: Path
    provenance: Provenance

    @property
    def figures(self) -> Path:
        """Folder of the run's figures."""
        return self.folder / "figures"

    @property
    def done(self) -> bool:
        """Whether the run finished."""
        return (self.folder / METRICS).is_file()

    @property
    def metrics(self) -> dict[str, Any]:
        """Content of metrics.json."""
        return json.loads((self.folder / METRICS).read_text())

    @property
    def params(self) -> dict[str, Any]:
        """Content of params.yaml."""
        return yaml.safe_load((self.folder / PARAMS).read_text())


def project_root() -> Path:
    """The checkout this code runs from, or the current folder where rwkvlab was installed without one."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def results_root(results: Path | str = "") -> Path:
    """Folder of all results, made if absent: `results`, or results/ in the project.

    Raises:
        RwkvlabError: it cannot be made.
    """
    root = Path(results).expanduser().resolve() if str(results) else project_root() / "results"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(root, error) from error
    return root


def start_run(
    name: str,
    params: Mapping[str, Any],
    inputs: Mapping[str, str] | None = None,
    results: Path | str = "",
    folder: Path | str = "",
) -> Run:
    """Make a run folder and record what is about to happen.

    Args:
        name: what runs, e.g. 60_evaluate.
        params: resolved parameters, plain values.
        inputs: sha256 by what it is.
        results: folder of all results; empty is the project's.
        folder: the run folder to use; empty names a new one in `<results>/runs`.

    Raises:
        RwkvlabError: `folder` already holds a finished run, or cannot be written.
    """
    provenance = _provenance(name, dict(inputs or {}))
    path = (
        Path(folder).expanduser().resolve() if str(folder) else _new_folder(results_root(results), provenance, params)
    )
    run = Run(path, provenance)
    if run.done:
        raise RwkvlabError(
            f"{path} already holds a finished run", "a new or unfinished run folder", "leave `run` empty for a new one"
        )
    write_text_atomic(path / PARAMS, yaml.safe_dump(dict(params), sort_keys=False))
    write_text_atomic(path / PROVENANCE, provenance.model_dump_json(indent=1))
    return run


def finish_run(run: Run, metrics: Mapping[str, Any]) -> Run:
    """Record the end and, last, the metrics.

    Raises:
        RwkvlabError: a metric is not finite, or a file cannot be written.
    """
    try:
        text = json.dumps(metrics, indent=1, allow_nan=False)
    except ValueError as error:
        raise RwkvlabError(f"a metric of {run.provenance.name} is not finite", "finite numbers or null") from error
    finished = Run(run.folder, run.provenance.model_copy(update={"ended": _now()}))
    write_text_atomic(run.folder / PROVENANCE, finished.provenance.model_dump_json(indent=1))
    write_text_atomic(run.folder / METRICS, text)
    return finished


def open_run(folder: Path | str) -> Run:
    """Read a run folder.

    Raises:
        RwkvlabError: it is none.
    """
    path = Path(folder)
    try:
        return Run(path, Provenance.model_validate_json((path / PROVENANCE).read_text()))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise RwkvlabError(
            f"{path} is no run folder ({str(error).splitlines()[0]})",
            f"a folder with {PROVENANCE}",
            "list results/runs for those there are",
        ) from error


def finished_runs(root: Path, name: str) -> Iterator[Run]:
    """All finished runs called `name` anywhere below `root`, oldest first."""
    runs = [open_run(path.parent) for path in root.rglob(METRICS) if (path.parent / PROVENANCE).is_file()]
    yield from sorted((run for run in runs if run.provenance.name == name), key=lambda run: run.provenance.started)


def versions() -> dict[str, str | None]:
    """Version of each of `PACKAGES`; None where it is not installed."""
    return {name: _version(name) for name in PACKAGES}


def short(path: Path) -> str:
    """`path` for a reader: relative to the project where it lies in it."""
    root = project_root()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _new_folder(root: Path, provenance: Provenance, params: Mapping[str, Any]) -> Path:
    content = [dict(params), provenance.code.model_dump(), provenance.packages, provenance.qnn_sdk, provenance.inputs]
    digest = sha256_text(json.dumps(content, sort_keys=True))[:8]
    stamp = provenance.started.replace("-", "").replace(":", "").split(".")[0]
    path = root / "runs" / f"{stamp}Z-{provenance.name}-{digest}"
    number = 1
    while path.exists():  # started twice within a second
        number += 1
        path = path.with_name(f"{stamp}Z-{provenance.name}-{digest}-{number}")
    return path


def _provenance(name: str, inputs: dict[str, str]) -> Provenance:
    return Provenance(
        name=name,
        code=_code(project_root()),
        packages=versions(),
        qnn_sdk=_qnn_sdk(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        inputs=inputs,
        started=_now(),
    )


def _code(root: Path) -> Code:
    try:
        top, sha = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if not Path(top).samefile(root):  # an installation inside somebody else's repository
            return Code(git_sha=None, dirty=None)
        return Code(git_sha=sha, dirty=bool(_git(root, "status", "--porcelain", "--untracked-files=no")))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return Code(git_sha=None, dirty=None)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _qnn_sdk() -> str | None:
    from rwkvlab.htp.backend import sdk_version

    try:
        return sdk_version()
    except RwkvlabError:
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
