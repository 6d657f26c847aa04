"""What this machine has, what rwkvlab needs, and how to get from one to the other.

Looks only: nothing is installed, compiled, downloaded or written, and nothing heavy is imported, so it also works
where torch, AIMET or onnxruntime are missing or broken.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import Version
from rich.table import Table

Part = Literal["device", "workbench", "dev"]

PARTS: dict[Part, str] = {
    "device": "run context binaries and evaluate them",
    "workbench": "calibrate, quantize, export, compile and simulate, in notebooks or by command",
    "dev": "run the tests and linters",
}
"""The installable extras in order, each needing the ones before it, and what each is for."""

GLIBC = (2, 35)
PYTHON = ((3, 11), (3, 13))
FREE_DISK_GB = 2
FREE_MEMORY_GB = 4
STACK_MIB = 64
GB = 10**9


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what was looked at.
        ok: True or False; None where there is nothing to pass or fail (a notice, or it could not be found out).
        found: what is here.
        needed: what rwkvlab needs.
        fix: what to do if it is not ok.
        part: the first part of rwkvlab (an extra) that needs it.
    """

    name: str
    ok: bool | None
    found: str
    needed: str
    fix: str = ""
    part: Part = "device"


def examine() -> list[Check]:
    """All checks, in the order a reader would put things right."""
    return [
        check_platform(),
        check_compiler_platform(),
        check_glibc(),
        check_python(),
        *check_packages(),
        *check_qnn(),
        check_system_libraries(),
        check_kernel(),
        check_git(),
        check_disk(),
        check_memory(),
        check_stack(),
    ]


def working_parts(checks: list[Check]) -> dict[Part, bool]:
    """For each part, whether nothing it needs has failed, the parts before it included."""
    failed = {check.part for check in checks if check.ok is False}
    parts = list(PARTS)
    return {part: failed.isdisjoint(parts[: index + 1]) for index, part in enumerate(parts)}


def render(checks: list[Check]) -> Table:
    """The checks as a table: one row each, with the fix where something failed."""
    table = Table(title="What works on this machine", title_justify="left")
    for column in ("", "check", "found", "needed", "what to do"):
        table.add_column(column, overflow="fold")
    marks = {True: "[green]ok[/]", False: "[red]no[/]", None: "note"}
    for check in checks:
        todo = "" if check.ok else check.fix
        table.add_row(marks[check.ok], *(_escape(cell) for cell in (check.name, check.found, check.needed, todo)))
    return table


def check_platform(system: str = "", machine: str = "") -> Check:
    """Where onnxruntime-qnn has a wheel; empty arguments mean this machine."""
    here = f"{system or platform.system()} {machine or platform.machine()}"
    known = ("Linux x86_64", "Linux aarch64", "Windows ARM64")
    return Check(
        "platform", here in known, here, " or ".join(known), "use one of those machines, or a container on one"
    )


def check_compiler_platform(system: str = "", machine: str = "") -> Check:
    """Where the HTP compiler and its simulator run; empty arguments mean this machine."""
    here = f"{system or platform.system()} {machine or platform.machine()}"
    fix = "compile on a Linux PC, in WSL2 or a container, and run the contexts here"
    return Check("HTP compiler and simulator", here == "Linux x86_64", here, "Linux x86_64", fix, "workbench")


def check_glibc(version: str | None = None) -> Check:
    """The C library (`version` like "2.36"; None asks this machine)."""
    needed = ".".join(map(str, GLIBC))
    if platform.system() != "Linux":
        return Check("glibc", None, "not Linux", f">= {needed} on Linux")
    version = _glibc_version() if version is None else version
    ok = bool(version) and Version(version) >= Version(needed)
    return Check(
        "glibc", ok, version or "another C library", f">= {needed}", "use Debian 12, Ubuntu 22.04, Fedora 36 or newer"
    )


def check_python(version: tuple[int, int] | None = None) -> Check:
    """The interpreter (`version` like (3, 11); None means the one running)."""
    major, minor = version or sys.version_info[:2]
    first, last = PYTHON
    needed = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return Check(
        "Python",
        first <= (major, minor) <= last,
        f"{major}.{minor}",
        needed,
        "make clean, then make with such a python3 on PATH",
    )


def check_packages(requirements: list[str] | None = None) -> list[Check]:
    """Each direct dependency against the bounds in pyproject.toml.

    Args:
        requirements: as `importlib.metadata.requires` gives them; None reads those of the installed rwkvlab.
    """
    if requirements is None:
        try:
            requirements = metadata.requires("rwkvlab") or []
        except metadata.PackageNotFoundError:
            fix = "make test, or pip install -c constraints.txt -e '.[dev]'"
            return [Check("rwkvlab", False, "not installed (running from its folder)", "installed", fix)]
    parsed = sorted(map(Requirement, requirements), key=lambda requirement: list(PARTS).index(_part(requirement)))
    direct: dict[str, Requirement] = {}
    for requirement in parsed:  # an extra that contains another repeats its packages: the first extra to ask counts
        if requirement.name != "rwkvlab":
            direct.setdefault(requirement.name, requirement)
    return [_check_package(requirement) for requirement in direct.values()]


def check_qnn() -> list[Check]:
    """Qualcomm's libraries in the onnxruntime-qnn wheel, their SDK version, and where their licence is."""
    fix = "pip install -c constraints.txt onnxruntime-qnn"
    try:
        package = import_module("onnxruntime_qnn")
        libraries = [Path(package.get_qnn_htp_path()), Path(package.get_library_path())]
    except (ImportError, AttributeError, OSError) as error:
        return [Check("QNN libraries", False, f"onnxruntime_qnn does not import: {error}", "onnxruntime-qnn 2.5", fix)]
    missing = [path.name for path in libraries if not path.is_file()]
    found = f"missing: {', '.join(missing)}" if missing else str(libraries[0].parent)
    sdk = getattr(getattr(package, "build_and_package_info", None), "qnn_version", "unknown")
    licence = next(iter(sorted(libraries[0].parent.rglob("Qualcomm_LICENSE*"))), None)
    return [
        Check(
            "QNN libraries", not missing, found, ", ".join(path.name for path in libraries), f"{fix} --force-reinstall"
        ),
        Check("QNN SDK", None, sdk, "recorded with every context: an older one does not load a newer one's contexts"),
        Check(
            "Qualcomm's licence", None, str(licence or "not in the wheel"), "accepted by using onnxruntime-qnn: read it"
        ),
    ]


def check_system_libraries(names: tuple[str, ...] = ("libatomic.so.1", "libstdc++.so.6")) -> Check:
    """Libraries of the system that Qualcomm's libraries link to and the wheel does not bring."""
    if platform.system() != "Linux":
        return Check("system libraries", None, "not Linux", f"{', '.join(names)} on Linux")
    missing = [name for name in names if not _loads(name)]
    found = f"missing: {', '.join(missing)}" if missing else "present"
    return Check("system libraries", not missing, found, ", ".join(names), "sudo apt install libatomic1 libstdc++6")


def check_kernel(prefix: Path | None = None) -> Check:
    """The Jupyter kernel the notebooks name, inside this environment (`prefix` replaces `sys.prefix`)."""
    spec = (prefix or Path(sys.prefix)) / "share/jupyter/kernels/python3/kernel.json"
    found = str(spec) if spec.is_file() else "not in this environment"
    fix = f"{sys.executable} -m ipykernel install --sys-prefix"
    return Check("Jupyter kernel", spec.is_file(), found, "python3, of this environment", fix, "workbench")


def check_git() -> Check:
    """git, which tells a run's record which code made it; runs work without."""
    found = shutil.which("git")
    return Check(
        "git",
        True if found else None,
        found or "absent",
        "wanted: records the code version",
        "sudo apt install git",
        "dev",
    )


def check_disk(folder: Path | None = None) -> Check:
    """Free space where results go (`folder`, by default the current one)."""
    free = shutil.disk_usage(folder or Path.cwd()).free / GB
    fix = "delete old folders in results/runs, or choose another disk"
    return Check(
        "free disk", free >= FREE_DISK_GB, f"{free:.1f} GB", f">= {FREE_DISK_GB} GB for runs", fix, "workbench"
    )


def check_memory() -> Check:
    """Memory that could be had now; compiling the bundled model needs about half of what is asked for."""
    needed = f">= {FREE_MEMORY_GB} GB available"
    fields = _meminfo(Path("/proc/meminfo"))
    if "MemAvailable" not in fields:
        return Check("memory", None, "unknown", needed, part="workbench")
    free = fields["MemAvailable"] / GB
    fix = "close other programs; use more chunks for larger models"
    return Check("memory", free >= FREE_MEMORY_GB, f"{free:.1f} GB", needed, fix, "workbench")


def check_stack() -> Check:
    """The hard limit up to which the compiling child process may raise its stack."""
    needed = f">= {STACK_MIB} MiB (hard limit)"
    try:
        import resource
    except ImportError:  # Windows
        return Check("stack limit", None, "unknown", needed, part="workbench")
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    unlimited = hard == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{hard >> 20} MiB"
    return Check(
        "stack limit",
        unlimited or hard >= STACK_MIB << 20,
        found,
        needed,
        "ulimit -Hs unlimited (as root)",
        "workbench",
    )


def _check_package(requirement: Requirement) -> Check:
    needed, part = str(requirement.specifier) or "any version", _part(requirement)
    fix = f"pip install -c constraints.txt -e '.[{part}]'"
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Check(requirement.name, False, "not installed", needed, fix, part)
    return Check(requirement.name, requirement.specifier.contains(found, prereleases=True), found, needed, fix, part)


def _part(requirement: Requirement) -> Part:
    """The first extra that asks for it; what every installation has counts as device."""
    for part in PARTS:
        if requirement.marker is None or requirement.marker.evaluate({"extra": part}):
            return part
    return "dev"


def _glibc_version() -> str:
    """Like "2.36"; empty where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _meminfo(path: Path) -> dict[str, int]:
    """The fields of /proc/meminfo in bytes; empty where there is no such file."""
    if not path.is_file():
        return {}
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3}


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
