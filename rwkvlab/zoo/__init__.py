"""Small trained models that come with the package, and their vocabulary."""

from __future__ import annotations

from pathlib import Path

from rwkvlab.errors import RwkvlabError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the bundled models."""
    return sorted(path.stem for path in _FOLDER.glob("*.pth"))


def path(name: str) -> Path:
    """Checkpoint of the bundled model `name`.

    Raises:
        RwkvlabError: there is no such model.
    """
    if name not in names():
        raise RwkvlabError(
            f"bundled model {name!r}",
            ", ".join(names()) or "none in this installation",
            "a name from the list or a path",
        )
    return _FOLDER / f"{name}.pth"


def find(model: str | Path) -> Path:
    """Path of a checkpoint given as users give it: a path, or the name of a bundled model.

    A file of that name comes first. Whether the path holds a checkpoint is for `Checkpoint.open` to say.
    """
    return path(str(model)) if model in names() and not Path(model).exists() else Path(model)


def vocab_path() -> Path:
    """The bundled models' vocabulary, a World-format text file."""
    return _FOLDER / "vocab.txt"
