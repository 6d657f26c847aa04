"""How encodings were made: the .yaml that lies beside every .encodings file."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rwkvlab import __version__
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_path
from rwkvlab.model.rwkv import linear_names
from rwkvlab.quant.calibrate import CalibrationSource
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.recipe import CalibrationOptions, Recipe

_PACKAGES = ("torch", "aimet-torch", "numpy")


class Provenance(BaseModel):
    """What encodings were made from.

    Attributes:
        model, model_sha256: the checkpoint's file name without suffix, and its digest.
        encodings_sha256: of the encodings when they were made; another digest now means that they were edited.
        calibration_sha256: of the token ids that set the activation ranges.
        calibration_tokens: how many.
        recipe: every option.
        versions: of the packages that decide the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str
    model_sha256: str
    encodings_sha256: str
    calibration_sha256: str
    calibration_tokens: int
    recipe: Recipe
    versions: dict[str, str]


def sidecar(encodings: Path) -> Path:
    """Where the provenance of an encodings file is."""
    return encodings.with_suffix(".yaml")


def describe(checkpoint: Checkpoint, recipe: Recipe, source: CalibrationSource, encodings: Encodings) -> Provenance:
    """The record of a quantization."""
    return Provenance(
        model=checkpoint.path.stem,
        model_sha256=checkpoint.sha256,
        encodings_sha256=encodings.sha256,
        calibration_sha256=source.text_sha256,
        calibration_tokens=source.tokens,
        recipe=recipe,
        versions={"rwkvlab": __version__} | {package: _version(package) for package in _PACKAGES},
    )


def save(path: Path, encodings: Encodings, record: Provenance) -> None:
    """Write encodings and record: both, or neither."""
    if sidecar(path) == path:
        raise RwkvlabError(f"{path} is the name of the record", "a name like a16w8.encodings", "choose another -o")
    text = yaml.safe_dump(record.model_dump(mode="json"), sort_keys=False)
    with atomic_path(path) as first, atomic_path(sidecar(path)) as second:
        first.write_text(encodings.to_json())
        second.write_text(text)


def load(encodings: Path) -> Provenance | None:
    """The record beside an encodings file; None where there is none, as with encodings of other tools.

    Raises:
        RwkvlabError: there is one, but it cannot be read.
    """
    path = sidecar(encodings)
    if not path.is_file():
        return None
    try:
        return Provenance.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        reason = str(error).splitlines()
        raise RwkvlabError(
            f"{path} is not the record of how {encodings.name} was made ({' '.join(reason[:3])})",
            "as rwkvlab quantize wrote it",
            "run rwkvlab quantize --force, or remove the record and give --precision",
        ) from error


def open_encodings(file: Path, checkpoint: Checkpoint) -> tuple[Encodings, Provenance | None]:
    """Encodings of this checkpoint, and the record beside them if there is one.

    Raises:
        RwkvlabError: unreadable, made for another model, or naming tensors that this model lacks.
    """
    encodings, record = Encodings.load(file), load(file)
    if record is not None and record.model_sha256 != checkpoint.sha256:
        raise RwkvlabError(
            f"{file} was made for {record.model} (sha256 {record.model_sha256[:12]})",
            f"encodings of {checkpoint.path.name} (sha256 {checkpoint.sha256[:12]})",
            "run rwkvlab calibrate and rwkvlab quantize on this checkpoint",
        )
    known = {f"{name}.weight" for name in linear_names(checkpoint.spec)}
    foreign = sorted(encodings.params.keys() - known)
    if foreign or not encodings.params:
        found = f"names {', '.join(foreign[:3])}" if foreign else "quantizes nothing"
        raise RwkvlabError(
            f"{file} {found}", f"encodings of the linears of {checkpoint.path.name}", "run rwkvlab quantize on it"
        )
    return encodings, record


def with_calibration(recipe: Recipe, source: CalibrationSource, check: bool) -> Recipe:
    """The recipe with the calibration that was really used.

    Args:
        recipe: as asked for.
        source: of the statistics at hand.
        check: the recipe asks for a certain calibration, so another one is refused.

    Raises:
        RwkvlabError: the statistics come from another text, row length or seed, or from too few tokens.
    """
    used = CalibrationOptions(text=source.text, tokens=source.tokens, length=source.length, seed=source.seed)
    asked = recipe.calibration
    rows = -(-asked.tokens // asked.length)
    if check and used != asked.model_copy(update={"tokens": rows * asked.length}):
        raise RwkvlabError(
            f"the calibration was made with {_options(used)}",
            f"{_options(asked)}, as the recipe says",
            "run rwkvlab calibrate with these options, or change the recipe's calibration",
        )
    return recipe.model_copy(update={"calibration": used})


def _options(options: CalibrationOptions) -> str:
    return " ".join(f"--{key} {value}" for key, value in options.model_dump().items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
