"""Reading checkpoints lazily and safely, and writing random ones for tests and benchmarks."""

from __future__ import annotations

import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_path, sha256_file
from rwkvlab.layout import Shape, infer_spec, tensor_shapes
from rwkvlab.range_aids import NO_AIDS, RangeAids
from rwkvlab.spec import ModelSpec

_DTYPES = {torch.float16, torch.bfloat16, torch.float32}
_SAFETENSORS_DTYPES = {"F16", "BF16", "F32"}
_TENSOR_MODULES = {"torch", "collections"}
_DTYPE_NAMES = "float16, bfloat16 or float32"
_AGAIN = "download the file again and compare its size and sha256 with the publisher's"


@dataclass(frozen=True)
class Checkpoint:
    """An RWKV checkpoint whose tensors are read from disk when asked for.

    Attributes:
        path: the .pth or .safetensors file.
        spec: version and dimensions.
        shapes: name of every tensor -> its shape as stored.
        aids: float16 range aids applied when a chunk is loaded.
    """

    path: Path
    spec: ModelSpec
    shapes: Mapping[str, Shape]
    _read: Callable[[str], torch.Tensor] = field(repr=False, compare=False)
    aids: RangeAids = NO_AIDS

    @classmethod
    def open(cls, path: Path | str, group_norm_eps: float | None = None) -> Checkpoint:
        """Open a checkpoint; no weight is read yet, and nothing in the file is executed.

        Args:
            path: .pth or .safetensors.
            group_norm_eps: of the norm over each head's output, where the training code did not use 64e-5 (rwkv.cpp
                takes 1e-5 for RWKV-5).

        Raises:
            RwkvlabError: missing, truncated or damaged file, a pickle that wants to run code (named), something other
                than a dictionary of float tensors, not RWKV, an unsupported version, or wrong tensors (named).
        """
        path = Path(path)
        shapes, read = _opener(path)(path)
        try:
            spec = infer_spec(shapes)
            if group_norm_eps is not None:
                spec = ModelSpec.model_validate(spec.model_dump() | {"group_norm_eps": group_norm_eps})
            return cls(path, spec, shapes, read)
        except RwkvlabError as error:
            raise RwkvlabError(f"{path}: {error.what}", error.allowed, error.todo) from None

    def with_aids(self, aids: RangeAids) -> Checkpoint:
        """The same checkpoint, its chunks loaded with these range aids."""
        return self if aids == self.aids else replace(self, aids=aids)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the file (reads all of it, once)."""
        return sha256_file(self.path)

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A fresh copy of one tensor, with the shape `tensor_shapes` gives it (vectors of the mix as [1, 1, C]).

        Raises:
            RwkvlabError: no such tensor, NaN or infinite weights, or weights too large for `dtype`.
        """
        if name not in self.shapes:
            raise RwkvlabError(f"{self.path} has no tensor {name!r}", f"one of its {len(self.shapes)} tensors")
        stored = self._read(name).detach()
        if not torch.isfinite(stored).all():
            count = int((~torch.isfinite(stored)).sum())
            raise RwkvlabError(f"{self.path}: {name} holds {count} NaN or infinite weights", "finite weights", _AGAIN)
        value = stored.to(dtype, copy=True).reshape(self._canonical.get(name, stored.shape))
        if not torch.isfinite(value).all():
            raise RwkvlabError(f"{self.path}: {name} has weights too large for {dtype}", "a wider dtype")
        return value

    @cached_property
    def _canonical(self) -> dict[str, Shape]:
        return tensor_shapes(self.spec)


def write_random_checkpoint(
    spec: ModelSpec, path: Path | str, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    """Write an untrained checkpoint whose every part is alive: decays over their range, gates open, logits spread.

    The suffix chooses the format. The same arguments give the same weights.

    Raises:
        RwkvlabError: the file exists already, has another suffix, or cannot be written.
    """
    path = Path(path)
    if path.suffix not in _OPENERS:
        raise RwkvlabError(f"cannot write a checkpoint as {path.name}", " or ".join(_OPENERS))
    if path.exists():
        raise RwkvlabError(f"{path} exists already", "a new file", "choose another name or remove it")
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random_tensor(name, shape, generator).to(dtype) for name, shape in tensor_shapes(spec).items()}
    with atomic_path(path) as temporary:
        _save(tensors, temporary)
    return path


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    except (RuntimeError, SafetensorError) as error:  # how the two libraries report a full disk
        raise OSError(str(error).splitlines()[0]) from error


def _random_tensor(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.empty(shape).uniform_(low, high, generator=generator)

    def normal(mean: float, std: float) -> torch.Tensor:
        return torch.empty(shape).normal_(mean, std, generator=generator)

    kind = name.rsplit(".", 1)[-1]
    vectors = {"w0": (-6.0, 1.0), "a0": (-1.0, 1.0), "v0": (-1.0, 1.0), "k_k": (0.7, 1.0), "k_a": (0.9, 1.1)}
    vectors |= {"time_decay": (-6.0, 1.0), "time_faaaa": (-0.5, 0.5)}
    if kind.startswith(("x_", "time_mix_", "time_maa_")) and kind[-2:] not in ("w1", "w2"):
        return uniform(0.0, 1.0)
    if kind in vectors:
        return uniform(*vectors[kind])
    if kind == "r_k":
        return normal(0.0, 0.1)
    if ".ln" in name or name.startswith("ln_"):
        return normal(1.0 if kind == "weight" else 0.0, 0.05)
    if name == "emb.weight":
        return normal(0.0, 0.5)
    # att.w1 and its kin are stored input-first, unlike the Linear weights
    fan_in = shape[-2] if kind[-1] in "12" else shape[1]
    return normal(0.0, fan_in**-0.5)


def _opener(path: Path) -> Callable[[Path], tuple[dict[str, Shape], Callable[[str], torch.Tensor]]]:
    if not path.exists():
        raise RwkvlabError(f"no checkpoint at {path}", "a .pth or .safetensors file", f"ls {path.parent}")
    if not path.is_file():
        raise RwkvlabError(f"{path} is not a file", "a .pth or .safetensors file")
    if path.suffix.lower() not in _OPENERS:
        raise RwkvlabError(f"{path.name} has the suffix {path.suffix!r}", " or ".join(_OPENERS))
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise RwkvlabError(f"cannot read {path}: {error.strerror}", todo=f"ls -l {path}") from error
    if empty:
        raise RwkvlabError(f"{path} is empty", "a .pth or .safetensors file", _AGAIN)
    return _OPENERS[path.suffix.lower()]


def _open_pth(path: Path) -> tuple[dict[str, Shape], Callable[[str], torch.Tensor]]:
    mappable = _is_mappable(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # torch comments on odd files at length; we raise one line
            content = torch.load(path, mmap=mappable, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise _refused_pickle(path, str(error)) from None  # torch's text advises switching its protection off
    except Exception as error:  # a damaged file surfaces as almost any exception
        raise _damaged(path, error) from error
    tensors = _require_tensors(path, content)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__


def _is_mappable(path: Path) -> bool:
    """Whether torch can memory-map the file: a zip archive of uncompressed records (old .pth files are bare pickles).

    Mapping a compressed record would hand out its compressed bytes as weights.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(record.compress_type == zipfile.ZIP_STORED for record in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _damaged(path, error) from error


def _require_tensors(path: Path, content: Any) -> dict[str, torch.Tensor]:
    if not isinstance(content, dict):
        raise RwkvlabError(f"{path} holds a {type(content).__name__}", "a dictionary of named tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise RwkvlabError(
                f"{path}: entry {name!r} is a {type(value).__name__}",
                "a flat dictionary of named tensors",
                "save the model's state_dict alone, without optimizer or settings around it",
            )
        if value.dtype not in _DTYPES or value.layout != torch.strided or value.is_meta:
            raise RwkvlabError(f"{path}: {name} is {value.dtype}, {value.layout}", f"dense {_DTYPE_NAMES}")
    return content


def _refused_pickle(path: Path, message: str) -> RwkvlabError:
    named = re.search(r"GLOBAL ([\w.]+)", message)
    wanted = named[1] if named else next(_foreign_globals(path), "")
    if not wanted:
        return _damaged(path, "not a pickle of tensors")
    return RwkvlabError(
        f"{path} wants to run code when opened ({wanted}); nothing was run",
        "tensors only",
        "do not open it with other tools either; get the model from a source you trust, best as .safetensors",
    )


def _foreign_globals(path: Path) -> Iterator[str]:
    """Names outside torch that a bare pickle would import, found by reading its opcodes, never by running them."""
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            if opcode.name in ("GLOBAL", "INST"):
                strings = str(argument).split(" ")
            elif isinstance(argument, str):
                strings = [*strings[-1:], argument]
            if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL") and strings[0].split(".")[0] not in _TENSOR_MODULES:
                yield ".".join(strings)
    except (ValueError, IndexError):  # not a pickle to the end: what was found before stands
        return


def _damaged(path: Path, reason: object) -> RwkvlabError:
    text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    first_line = text.strip().splitlines()[0][:200]
    return RwkvlabError(f"{path} is truncated, damaged or no checkpoint ({first_line})", "a complete file", _AGAIN)


def _open_safetensors(path: Path) -> tuple[dict[str, Shape], Callable[[str], torch.Tensor]]:
    try:
        file = safe_open(path, framework="pt", device="cpu")
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    for name, piece in slices.items():
        if piece.get_dtype() not in _SAFETENSORS_DTYPES:
            raise RwkvlabError(f"{path}: {name} is {piece.get_dtype()}", _DTYPE_NAMES)
    return {name: tuple(piece.get_shape()) for name, piece in slices.items()}, file.get_tensor


_OPENERS = {".pth": _open_pth, ".safetensors": _open_safetensors}
