"""Calibration samples as rwkv-qualcomm writes them, for Qualcomm's own converter.

Every step of every text is one sample. For chunk c and step t, `samples_chunk{c}/{t}/input_0.bin` is what enters the
chunk (a token id, or the vector it receives), and `input_1.bin` onwards are its other inputs in the order of the graph:
v_first where the chunk takes it, then the states before the step. All are raw float32, ids included.
`input_list_chunk{c}.txt` has one line per step, its files separated by spaces. With one chunk the names have no
`_chunk{c}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_folder
from rwkvlab.model.chunks import ChunkRange, plan_chunks
from rwkvlab.model.load import folded_embedding, load_chunk
from rwkvlab.model.rwkv import run_chunk, state_shapes, zero_state
from rwkvlab.spec import ModelSpec

_MAKE = "make them with rwkvlab make-calibration-samples"
Step = tuple[Tensor, Tensor | None]
"""What enters a chunk at one step: ids [1, 1] or a vector [1, 1, C]; and v_first."""


def write_samples(
    checkpoint: Checkpoint,
    rows: np.ndarray,
    folder: Path,
    chunks: int,
    external_embedding: bool = False,
    progress: bool = True,
) -> int:
    """Run the float model token by token over `rows` and write every step's inputs, one chunk in memory at a time.

    Args:
        checkpoint: the model.
        rows: token ids [R, T]; each row starts from the empty state.
        folder: made by this call; it appears when everything is in it.
        chunks: as the model will be cut.
        external_embedding: give the first chunk embedded vectors.
        progress: show a bar.

    Returns:
        samples per chunk.

    Raises:
        RwkvlabError: the folder exists or has a space in its name, ids are not the model's, or the disk is full.
    """
    if folder.exists():
        raise RwkvlabError(f"{folder} exists already", "a new folder", "choose another name or remove it")
    if len(str(folder).split()) != 1:
        todo = "choose another name"
        raise RwkvlabError(f"{folder} has a space in it", "none: the lists of files are separated by spaces", todo)
    if rows.size == 0 or rows.min() < 0 or rows.max() >= checkpoint.spec.vocab_size:
        raise RwkvlabError("the text's token ids are not the model's", f"0 to {checkpoint.spec.vocab_size - 1}")
    steps = _first_inputs(checkpoint, rows, external_embedding)
    plan = plan_chunks(checkpoint.spec.n_layer, chunks)
    with atomic_folder(folder) as work, tqdm(total=len(plan) * rows.size, disable=not progress) as bar:
        for part in plan:
            bar.set_description(f"samples of chunk {part.index} of {part.count}")
            steps = _write_chunk(checkpoint, part, steps, rows.shape[1], work, folder, external_embedding, bar)
    return rows.size


def read_rows(folder: Path, spec: ModelSpec, chunks: int) -> np.ndarray:
    """The token ids [R, T] of samples: what entered the first chunk; a row begins where its states are empty.

    Args:
        folder: made by `write_samples`.
        spec: the model they were made of.
        chunks: as the model will be cut.

    Raises:
        RwkvlabError: no samples, or damaged ones; another chunk count, another model's states, embedded vectors instead
            of ids, or rows of unequal length or of one token.
    """
    first, *_ = plan = plan_chunks(spec.n_layer, chunks)
    _check_chunks(folder, plan)
    name, list_name = sample_names(first)
    sizes = [prod(shape) for _ in range(first.first, first.last) for shape in state_shapes(spec, 1)]
    ids, starts = [], []
    for step in range((folder / list_name).read_bytes().count(b"\n")):
        place = folder / name / str(step)
        ids.append(_read_id(place / "input_0.bin", spec))
        if _starts_row(place, sizes):
            starts.append(step)
    lengths = set(np.diff([*starts, len(ids)]).tolist())
    if starts[:1] != [0] or len(lengths) != 1 or lengths == {1}:
        found = f"{len(ids)} samples in rows of {' or '.join(map(str, sorted(lengths))) or 'no'} tokens"
        raise RwkvlabError(f"{folder} holds {found}", "rows of one length, which begin with the empty state", _MAKE)
    return np.array(ids, np.int64).reshape(len(starts), -1)


def sample_names(part: ChunkRange) -> tuple[str, str]:
    """Folder and list file of one chunk's samples."""
    suffix = "" if part.count == 1 else f"_chunk{part.index}"
    return f"samples{suffix}", f"input_list{suffix}.txt"


def _first_inputs(checkpoint: Checkpoint, rows: np.ndarray, external_embedding: bool) -> list[Step]:
    ids = torch.from_numpy(rows).reshape(-1, 1, 1)
    if not external_embedding:
        return [(token, None) for token in ids]
    table = folded_embedding(checkpoint)
    return [(table[token], None) for token in ids]


@torch.no_grad()
def _write_chunk(
    checkpoint: Checkpoint,
    part: ChunkRange,
    steps: Sequence[Step],
    row_length: int,
    work: Path,
    final: Path,
    external_embedding: bool,
    bar: tqdm,
) -> list[Step]:
    chunk = load_chunk(checkpoint, part.first, part.last, embedding=not external_embedding)
    folder, list_name = sample_names(part)
    lines, after = [], []
    state: list[Tensor] = []
    for number, (x, v_first) in enumerate(steps):
        if number % row_length == 0:
            state = zero_state(checkpoint.spec, 1, "cpu", part.first, part.last)
        inputs = [x, *([v_first] if v_first is not None and chunk.takes_v_first else []), *state]
        place = work / folder / str(number)
        place.mkdir(parents=True)
        names = list(_write_inputs(inputs, place))
        lines.append(" ".join(str(final / folder / str(number) / name) for name in names))
        x, v_first, state = run_chunk(chunk, x, v_first if chunk.takes_v_first else None, state)
        after.append((x, v_first if v_first is not None else steps[number][1]))
        bar.update()
    (work / list_name).write_text("\n".join(lines) + "\n")
    return after


def _write_inputs(inputs: Sequence[Tensor], place: Path) -> Iterator[str]:
    for index, value in enumerate(inputs):
        name = f"input_{index}.bin"
        (place / name).write_bytes(value.float().numpy().astype("<f4").tobytes())
        yield name


def _check_chunks(folder: Path, plan: Sequence[ChunkRange]) -> None:
    found = {path.name for path in folder.glob("input_list*.txt")}
    if not found:
        raise RwkvlabError(f"{folder} holds no calibration samples", "a folder with input_list*.txt", _MAKE)
    if found != {sample_names(part)[1] for part in plan}:
        raise RwkvlabError(
            f"{folder} holds samples of {len(found)} chunks, and {len(plan)} are asked for",
            "samples of as many chunks as the model is cut into",
            f"keep the chunks parameter the same: --chunks {len(found)}, or make the samples again",
        )


def _read_id(file: Path, spec: ModelSpec) -> int:
    value = _read_floats(file)
    if value.size == spec.n_embd > 1:
        raise RwkvlabError(
            f"{file} is an embedded vector: the samples were made with --ext-embedding, and no token ids are in them",
            "samples made without it, which serve models with and without an external embedding",
            "make them again without --ext-embedding",
        )
    if value.size != 1 or not value[0].is_integer():
        raise RwkvlabError(f"{file} is no token id", "one whole number as float32", _MAKE)
    return int(value[0])


def _starts_row(place: Path, sizes: Sequence[int]) -> bool:
    """Whether the states before this step are the empty ones; after a token, the first one no longer is."""
    for index, size in enumerate(sizes, start=1):
        values = _read_floats(file := place / f"input_{index}.bin")
        if values.size != size:
            raise RwkvlabError(f"{file} has {values.size} numbers", f"{size}, as this model's state has", _MAKE)
        if values.any():
            return False
    return True


def _read_floats(file: Path) -> np.ndarray:
    try:
        return np.frombuffer(file.read_bytes(), "<f4")
    except (OSError, ValueError) as error:
        raise RwkvlabError(f"cannot read the sample {file}: {error}", "raw float32 numbers", _MAKE) from error
