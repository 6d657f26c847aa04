"""Writing files so that a crash, a full disk or Ctrl-C never leaves half of one; hashing them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rwkvlab.errors import RwkvlabError


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, delete it on any error.

    The temporary name keeps the suffix, because several writers choose a format by it.

    Raises:
        RwkvlabError: the folder cannot be written or the disk is full.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; rename it to `path` (which must not exist) on success.

    Raises:
        RwkvlabError: the parent cannot be written or the disk is full.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(path)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text_atomic(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_bytes_atomic(path, text.encode())


def write_bytes_atomic(path: Path | str, data: bytes) -> None:
    """Write `data`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def sha256_file(path: Path | str) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """Hex digest of UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()


def disk_error(path: Path, error: OSError) -> RwkvlabError:
    """An operating-system refusal to write `path`, as an error with a way out."""
    return RwkvlabError(
        f"cannot write {path}: {error.strerror or error}",
        "a writable folder with enough free space",
        f"free space on that disk or choose another output folder (df -h {path.parent})",
    )


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
