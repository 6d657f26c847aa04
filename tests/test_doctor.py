"""The doctor finds what is wrong, names a way out, and never needs what it looks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rwkvlab import doctor
from rwkvlab.doctor import Check


def text_of(checks: list[Check]) -> str:
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(doctor.render(checks))
    return console.export_text()


def test_everything_is_there_where_the_tests_run() -> None:
    """The suite itself needs every part, so here the doctor has to find them all working."""
    checks = doctor.examine()
    failed = [check for check in checks if check.ok is False and check.name not in ("memory", "free disk")]
    assert failed == []
    names = [check.name for check in checks]
    assert {
        "platform",
        "glibc",
        "Python",
        "torch",
        "aimet-torch",
        "onnxruntime-qnn",
        "jupyterlab",
        "Qualcomm's licence",
    } <= set(names)
    assert len(names) == len(set(names))


def test_licence_and_libraries_are_files_that_exist() -> None:
    by_name = {check.name: check for check in doctor.check_qnn()}
    assert Path(by_name["Qualcomm's licence"].found).is_file()
    assert (Path(by_name["QNN libraries"].found) / "libQnnHtp.so").is_file()
    assert by_name["QNN SDK"].found.startswith("2.")


@pytest.mark.parametrize(
    ("check", "ok"),
    [
        (doctor.check_platform("Linux", "x86_64"), True),
        (doctor.check_platform("Linux", "aarch64"), True),
        (doctor.check_platform("Darwin", "arm64"), False),
        (doctor.check_compiler_platform("Linux", "x86_64"), True),
        (doctor.check_compiler_platform("Linux", "aarch64"), False),
        (doctor.check_glibc("2.34"), False),
        (doctor.check_glibc("2.35"), True),
        (doctor.check_glibc("2.100"), True),
        (doctor.check_glibc(""), False),
        (doctor.check_python((3, 10)), False),
        (doctor.check_python((3, 11)), True),
        (doctor.check_python((3, 13)), True),
        (doctor.check_python((3, 14)), False),
        (doctor.check_system_libraries(("libabsent-as-can-be.so.1",)), False),
    ],
    ids=lambda value: f"{value.name}: {value.found}" if isinstance(value, Check) else None,
)
def test_bounds(check: Check, ok: bool) -> None:
    assert check.ok is ok
    assert check.fix


def test_packages_absent_old_and_new() -> None:
    requirements = [
        'pytest<1 ; extra == "dev"',
        'rwkvlab[device] ; extra == "dev"',
        'no-such-package>=1 ; extra == "workbench"',
        'rich>=9999 ; extra == "workbench"',
        "numpy",
    ]
    fine, *failed = doctor.check_packages(requirements)
    assert (fine.name, fine.ok, fine.part) == ("numpy", True, "device")
    assert {(check.name, check.ok, check.part) for check in failed} == {
        ("no-such-package", False, "workbench"),
        ("rich", False, "workbench"),
        ("pytest", False, "dev"),
    }
    assert all(f".[{check.part}]" in check.fix for check in failed)


def test_a_package_that_several_extras_ask_for_belongs_to_the_first() -> None:
    requirements = [f'numpy ; extra == "{extra}"' for extra in ("dev", "workbench", "device")]
    assert [check.part for check in doctor.check_packages(requirements)] == ["device"]


def test_a_part_needs_the_parts_before_it() -> None:
    def broken(part: doctor.Part) -> list[Check]:
        return [Check("fine", True, "", ""), Check("note", None, "", ""), Check("broken", False, "", "", part=part)]

    assert doctor.working_parts(broken("device")) == {"device": False, "workbench": False, "dev": False}
    assert doctor.working_parts(broken("workbench")) == {"device": True, "workbench": False, "dev": False}
    assert doctor.working_parts(broken("dev")) == {"device": True, "workbench": True, "dev": False}


def test_no_kernel(tmp_path: Path) -> None:
    check = doctor.check_kernel(tmp_path)
    assert check.ok is False
    assert "ipykernel install" in check.fix


def test_table_shows_fixes_of_failures_only_and_brackets_as_written() -> None:
    shown = text_of([Check("a", False, "b", "c", "pip install '.[dev]'"), Check("d", True, "e", "f", "not shown")])
    assert "pip install '.[dev]'" in shown
    assert "not shown" not in shown


def test_works_without_torch_aimet_onnxruntime_and_qnn() -> None:
    """Missing packages are failed checks, not tracebacks. A None in sys.modules makes an import fail."""
    script = """
import sys
for name in ("torch", "aimet_torch", "onnxruntime", "onnxruntime_qnn"):
    sys.modules[name] = None
from rwkvlab import doctor
checks = {check.name: check for check in doctor.examine()}
assert checks["QNN libraries"].ok is False and checks["QNN libraries"].fix
assert doctor.working_parts(list(checks.values()))["device"] is False
print("survived")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "survived", done.stderr
