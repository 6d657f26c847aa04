"""Running the project's notebooks by papermill, each in a process of its own, with this very interpreter as kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml

from rwkvlab.errors import RwkvlabError
from rwkvlab.runs import project_root

EXECUTED = "notebook.ipynb"


@dataclass(frozen=True)
class Executed:
    """A notebook that ran: its executed copy, and how long it took."""

    path: Path
    seconds: float


def notebook_path(name: str) -> Path:
    """The project's notebook called `name`, e.g. 60_evaluate.

    Raises:
        RwkvlabError: there is none.
    """
    folder = project_root() / "notebooks"
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        names = ", ".join(sorted(found.stem for found in folder.glob("*.ipynb")))
        raise RwkvlabError(
            f"no notebook {name} in {folder}", names or "a checkout of the project", "run from the project's folder"
        )
    return path


def parameter_names(notebook: Path) -> list[str]:
    """What the notebook's parameters cell assigns."""
    from papermill.inspection import inspect_notebook

    return list(inspect_notebook(str(notebook)))


def run_notebook(name: str, folder: Path, parameters: Mapping[str, Any]) -> Executed:
    """Execute a notebook with `folder` as its run folder; the executed copy is `<folder>/notebook.ipynb`.

    Args:
        name: e.g. 60_evaluate.
        folder: made if absent; passed to the notebook as its parameter `run`.
        parameters: by name. papermill only warns of an unknown one and runs on without it; here it is an error.

    Raises:
        RwkvlabError: no such notebook or parameter; or a cell failed: the error names it, and the copy is kept.
    """
    source = notebook_path(name)
    _check_names(source, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / EXECUTED
    values = yaml.safe_dump({**parameters, "run": str(folder.resolve())})
    command = [sys.executable, "-m", "papermill", str(source), str(copy), "-y", values, "--kernel", "python3"]
    options = ["--cwd", str(source.parent), "--no-progress-bar"]
    started = time.monotonic()
    with _own_kernel() as environment:
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failure(name, copy, done.stderr)
    return Executed(copy, time.monotonic() - started)


def failed_cell(notebook: Path) -> tuple[int, str] | None:
    """The first code cell (counted from 1) whose output is an error, and the error in one line."""
    number = 0
    for cell in nbformat.read(notebook, as_version=4).cells:
        number += cell.cell_type == "code"
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return number, f"{output.ename}: {output.evalue}"
    return None


def _check_names(source: Path, parameters: Mapping[str, Any]) -> None:
    known = parameter_names(source)
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise RwkvlabError(
            f"notebook {source.stem} has no parameter {', '.join(unknown)}",
            ", ".join(known),
            f"papermill --help-notebook notebooks/{source.name}",
        )


@contextmanager
def _own_kernel() -> Iterator[dict[str, str]]:
    """An environment in which the kernel "python3" is this interpreter, whatever kernels a user has installed, and in
    which no start-up script or setting of the user's IPython runs."""
    with tempfile.TemporaryDirectory(prefix="rwkvlab-kernel-") as folder:
        spec = Path(folder) / "kernels" / "python3" / "kernel.json"
        spec.parent.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
        paths = os.pathsep.join([folder, *filter(None, [os.environ.get("JUPYTER_PATH")])])
        yield os.environ | {"JUPYTER_PATH": paths, "IPYTHONDIR": str(Path(folder) / "ipython"), "PYTHONPATH": _path()}


def _path() -> str:
    """The project first, so that its notebooks import it wherever they run."""
    return os.pathsep.join([str(project_root()), *filter(None, [os.environ.get("PYTHONPATH")])])


def _failure(name: str, copy: Path, stderr: str) -> RwkvlabError:
    found = failed_cell(copy) if copy.is_file() else None
    if found is None:
        last = (stderr.strip().splitlines() or ["no message"])[-1]
        return RwkvlabError(f"notebook {name} did not run: {last}", "", "rwkvlab doctor")
    return RwkvlabError(
        f"notebook {name} failed in code cell {found[0]}: {found[1]}", "", f"read the executed copy {copy}"
    )
