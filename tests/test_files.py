from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_folder, atomic_path, sha256_file, sha256_text, write_bytes_atomic, write_text_atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_whole_with_the_suffix_kept(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "new" / "a.onnx") as temporary:
        assert temporary.suffix == ".onnx" and temporary.parent == tmp_path / "new"
        temporary.write_text("whole")
        assert not (tmp_path / "new" / "a.onnx").exists()
    assert (tmp_path / "new" / "a.onnx").read_text() == "whole"
    assert names(tmp_path / "new") == ["a.onnx"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(error), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise error
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError), atomic_folder(tmp_path / "run") as temporary:
        (temporary / "half").write_text("")
        raise ValueError
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "run") as temporary:
        (temporary / "whole").write_text("")
    assert names(tmp_path) == ["run"] and names(tmp_path / "run") == ["whole"]


def test_a_filled_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    with pytest.raises(RwkvlabError, match="cannot write"), atomic_folder(tmp_path / "run") as temporary:
        (temporary / "theirs").write_text("")
    assert names(tmp_path) == ["run"] and names(tmp_path / "run") == ["mine"]


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RwkvlabError, match="cannot write"):
        write_text_atomic(tmp_path / "file" / "a.txt", "")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk; both reach Python as an OSError from write()."""
    code = """
import resource, sys
from rwkvlab.errors import RwkvlabError
from rwkvlab.files import write_bytes_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_bytes_atomic(sys.argv[1], b"x" * 100_000)
except RwkvlabError as error:
    print(error)
"""
    (tmp_path / "a.bin").write_text("old")
    done = run_python(code, str(tmp_path / "a.bin"))
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stdout and "free space" in done.stdout and done.stdout.count("\n") == 1
    assert (tmp_path / "a.bin").read_text() == "old" and names(tmp_path) == ["a.bin"]


def test_a_full_tmpfs_is_one_error(tmp_path: Path) -> None:
    write = f"write_bytes_atomic('{tmp_path}/a.bin', b'x' * 1_000_000)"
    code = f"from rwkvlab.files import write_bytes_atomic; {write}"
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = f'mount -t tmpfs -o size=64k none "{tmp_path}" || exit 77; exec "{sys.executable}" -c "{code}"'
    try:
        done = subprocess.run([*mount, script], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare to mount a small tmpfs")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("may not mount a small tmpfs here")
    assert "RwkvlabError: cannot write" in done.stderr.replace("rwkvlab.errors.", "")
    assert "No space left" in done.stderr


def test_killed_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from rwkvlab.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "a.txt").write_text("old")
    assert run_python(code, str(tmp_path / "a.txt")).returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_hashes_are_sha256(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    write_bytes_atomic(tmp_path / "a", data)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()
    assert sha256_text("é") == hashlib.sha256("é".encode()).hexdigest()
