"""What holds for the project as a whole: dependencies, installer, notebooks, sizes of modules, what may import what."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = sorted((ROOT / "rwkvlab").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def requirements(*extras: str) -> list[Requirement]:
    texts = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    parsed = [Requirement(text) for text in (texts or PROJECT["dependencies"])]
    return [requirement for requirement in parsed if requirement.name != "rwkvlab"]


# --- dependencies ---


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "constraints.txt holds exact pins only"
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize(
    "requirement", requirements() + requirements("device", "workbench", "dev"), ids=lambda r: r.name
)
def test_tested_version_lies_within_the_bounds(requirement: Requirement) -> None:
    pinned = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pinned)
    operators = {clause.operator for clause in requirement.specifier}
    assert operators in ({">=", "<"}, {"=="}), "bounded below and above"


def test_device_extra_is_light() -> None:
    names = {requirement.name for requirement in requirements() + requirements("device")}
    assert names.isdisjoint({"torch", "aimet-torch", "onnx", "jupyterlab", "pandas"})


# --- installing ---

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3")


def make_venv(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run the installer where the named programs are one-line shell scripts; without others named, no Python works."""
    stand_ins = {
        "uname": 'test "$1" = -s && echo Linux || echo x86_64',
        "getconf": "echo glibc 2.36",
        "df": "printf 'head\\nfs 9 9 99000000 9 /\\n'",
        **python_that("exit 127"),
        **programs,
    }
    for name, script in stand_ins.items():
        program = folder / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    command = ["sh", str(ROOT / "tools/make-venv.sh"), str(folder / "venv")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def python_that(script: str) -> dict[str, str]:
    return {name.replace(".", "_"): script for name in PYTHONS}


REFUSALS = {
    "aarch64": ({"uname": 'test "$1" = -s && echo Linux || echo aarch64'}, "this is Linux aarch64"),
    "macOS": ({"uname": 'test "$1" = -s && echo Darwin || echo arm64'}, "this is Darwin arm64"),
    "old glibc": ({"getconf": "echo glibc 2.31"}, "the C library is 2.31"),
    "musl": ({"getconf": "exit 1"}, "the C library is not glibc"),
    "small disk": ({"df": "printf 'head\\nfs 9 9 5000000 9 /\\n'"}, "only 5 GB are free"),
    "stand-ins for a Python that is not installed": ({}, "no usable Python found"),
    "Python 3.10": (python_that("echo 3.10"), "no usable Python found"),
    "Python 3.14": (python_that("echo 3.14"), "no usable Python found"),
    "no venv module": (python_that('case "$2" in *venv*) exit 1;; *) echo 3.12;; esac'), "Python 3.12 lacks its venv"),
}


@pytest.mark.parametrize(("programs", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_installer_refuses_before_it_touches_anything(tmp_path: Path, programs: dict[str, str], reason: str) -> None:
    done = make_venv(tmp_path, **programs)
    assert done.returncode == 1
    assert re.fullmatch(rf"rwkvlab: {reason}[^;]*; allowed: [^;]+; try: .+\n", done.stderr)
    assert not (tmp_path / "venv").exists()


def test_installer_states_platform_and_licence_first(tmp_path: Path) -> None:
    announced = make_venv(tmp_path, uname="echo Plan9").stdout
    assert "Linux x86-64, glibc >= 2.35" in announced
    assert "accepting Qualcomm's licence" in announced


def test_installer_takes_the_first_python_that_works(tmp_path: Path) -> None:
    """The first name is a version manager's stand-in that fails, the second lacks venv, the third works."""
    programs = {
        "python3_12": 'case "$2" in *venv*) exit 1;; *) echo 3.12;; esac',
        "python3_13": 'case "$1" in -m) echo "making venv with 3.13"; exit 9;; *) echo 3.13;; esac',
    }
    done = make_venv(tmp_path, **programs)
    assert "making venv with 3.13" in done.stdout
    assert done.returncode == 9


# --- notebooks ---


def test_readme_lists_the_notebooks_that_exist() -> None:
    listed = re.findall(r"^\| `(\d\d_\w+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert listed == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=relative)
def test_notebook_is_clean_and_parameterized(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "strip it: nbstripout"
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1
    kernel = notebook.metadata.kernelspec
    assert (kernel.name, kernel.language) == ("python3", "python")


# --- the code itself ---


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_is_no_longer_than_a_reader_bears(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [node.name for node in functions if body_lines(node) > 50] == []


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its signature and docstring left out."""
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def tracked() -> list[Path]:
    """Committed files; where this is not a checkout, what the folders hold."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [
        path for folder in ("rwkvlab", "notebooks", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]


def test_no_path_of_one_machine_and_no_package_host_in_committed_files() -> None:
    forbidden = re.compile(r"(?<![\w.$}\-])/(?:home|root|tmp|work|Users)/\w|[A-Z]:\\Users|pypi\.org|pythonhosted")
    texts = [path for path in tracked() if path.suffix not in (".pth", ".png", ".bin") and "tests" not in path.parts]
    found = {
        relative(path): match[0] for path in texts if (match := forbidden.search(path.read_text(errors="replace")))
    }
    assert found == {}


def test_no_library_of_qualcomm_is_committed() -> None:
    binaries = re.compile(r"\.(so|dll|dylib|a|lib|dlc|whl)(\.\d+)*$")
    assert [relative(path) for path in tracked() if binaries.search(path.name)] == []


# --- what runs on a device imports without the workbench ---

WITHOUT_WORKBENCH = (
    "rwkvlab",
    "rwkvlab.cli",
    "rwkvlab.device",
    "rwkvlab.doctor",
    "rwkvlab.errors",
    "rwkvlab.evaluate",
    "rwkvlab.files",
    "rwkvlab.htp.session",
    "rwkvlab.soc",
    "rwkvlab.texts.lambada",
    "rwkvlab.tokenizer",
)

IMPORT_ALONE = """
import importlib, pkgutil, sys
for name in "torch aimet_torch onnx pandas pyarrow matplotlib papermill nbformat nbconvert safetensors".split():
    sys.modules[name] = None  # makes importing it fail
module = importlib.import_module(sys.argv[1])
if sys.argv[1] != "rwkvlab":
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), sys.argv[1] + "."):
        importlib.import_module(found.name)
"""


@pytest.mark.parametrize("name", WITHOUT_WORKBENCH)
def test_imports_without_torch_aimet_and_the_rest_of_the_workbench(name: str) -> None:
    """A module, or a package with everything in it, in a process where the workbench's packages do not exist."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALONE, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
