"""Calibration samples: their names, that they are what the chunks take, and the ids read back from them."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.samples import read_rows, write_samples
from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import folded_embedding, load_chunk, load_model
from rwkvlab.spec import LoraRanks, ModelSpec
from tests.command_line import files_in

ROWS = np.array([[0, 7, 79], [0, 0, 3]])
SIZES = {"n_layer": 3, "n_embd": 48, "head_size": 16, "n_ffn": 80, "vocab_size": 80}
OLDER = {
    "5.2": ModelSpec(version="5.2", **SIZES),
    "6.0": ModelSpec(version="6.0", lora=LoraRanks(mix=4, decay=6), **SIZES),
}


@pytest.fixture(scope="module", params=["7.0", *OLDER])
def checkpoint(request, tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    if request.param == "7.0":
        return tiny_checkpoint
    path = tmp_path_factory.mktemp("older") / f"tiny-{request.param}.pth"
    return Checkpoint.open(write_random_checkpoint(OLDER[request.param], path, seed=1))


@pytest.fixture
def samples(tiny_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """Of `ROWS`, in two chunks."""
    write_samples(tiny_checkpoint, ROWS, tmp_path / "samples", 2, progress=False)
    return tmp_path / "samples"


def floats(file: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(file, "<f4"))


def inputs_of(chunk, place: Path, ids: bool) -> list[torch.Tensor]:
    """A sample's files in the shapes and types of the chunk's inputs, by the names of these."""
    spec, shapes = chunk.spec, {"in": (1, 1, -1), "v_first_in": (1, 1, -1)}
    values = []
    for index, name in enumerate(chunk.input_names):
        is_wkv = name.startswith("state") and int(name[5:-3]) % 3 == 1
        shape = (1, spec.n_head, spec.head_size, spec.head_size) if is_wkv else shapes.get(name, (1, -1))
        values.append(floats(place / f"input_{index}.bin").reshape(shape))
    return [values[0].long().reshape(1, 1), *values[1:]] if ids else values


def chunks_of(checkpoint: Checkpoint, count: int, embedding: bool = True):
    plan = plan_chunks(checkpoint.spec.n_layer, count)
    return [load_chunk(checkpoint, part.first, part.last, embedding) for part in plan]


@pytest.mark.parametrize("count", [1, 2])
def test_names_are_the_references(checkpoint: Checkpoint, tmp_path: Path, count: int) -> None:
    folder = tmp_path / "samples"
    assert write_samples(checkpoint, ROWS, folder, count, progress=False) == ROWS.size
    wanted = set()
    for index, chunk in enumerate(chunks_of(checkpoint, count), start=1):
        suffix = f"_chunk{index}" if count > 1 else ""
        n_inputs = 1 + 3 * len(chunk.blocks) + (checkpoint.spec.version == "7.0" and index > 1)
        listed = (folder / f"input_list{suffix}.txt").read_text().splitlines()
        assert listed == [
            " ".join(f"{folder}/samples{suffix}/{step}/input_{i}.bin" for i in range(n_inputs))
            for step in range(ROWS.size)
        ]
        files = [Path(file).relative_to(folder) for line in listed for file in line.split()]
        wanted |= {f"input_list{suffix}.txt"} | {str(path) for f in files for path in (f, f.parent, f.parent.parent)}
    assert files_in(folder) == wanted


@pytest.mark.parametrize(("count", "embedding"), [(1, True), (2, True), (2, False)])
@torch.no_grad()
def test_samples_fed_into_the_chunks_give_the_models_logits(
    checkpoint: Checkpoint, tmp_path: Path, count: int, embedding: bool
) -> None:
    """Each chunk run alone on its own samples; the whole model reads whole rows at once."""
    write_samples(checkpoint, ROWS, tmp_path / "s", count, external_embedding=not embedding, progress=False)
    whole, _ = load_model(checkpoint)(torch.from_numpy(ROWS))
    chunks = chunks_of(checkpoint, count, embedding)
    table = folded_embedding(checkpoint)
    for step in range(ROWS.size):
        row, column = divmod(step, ROWS.shape[1])
        entering = torch.tensor([float(ROWS[row, column])]) if embedding else table[ROWS[row, column]]
        for index, chunk in enumerate(chunks, start=1):
            place = tmp_path / "s" / (f"samples_chunk{index}" if count > 1 else "samples") / str(step)
            torch.testing.assert_close(floats(place / "input_0.bin"), entering)
            inputs = inputs_of(chunk, place, ids=embedding and index == 1)
            states = inputs[-3 * len(chunk.blocks) :]
            if column == 0:
                assert not any(state.any() for state in states)
            entering = chunk(*inputs)[0].flatten()
            assert column == 0 or all(state.any() for state in states)
        torch.testing.assert_close(entering, whole[row, column], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_v_first_is_layer_0s_value_of_the_same_token(tiny_checkpoint: Checkpoint, samples: Path) -> None:
    first, second = chunks_of(tiny_checkpoint, 2)
    assert second.input_names[1] == "v_first_in" and first.output_names[1] == "v_first_out"
    for step in range(ROWS.size):
        given = first(*inputs_of(first, samples / "samples_chunk1" / str(step), ids=True))[1]
        torch.testing.assert_close(floats(samples / "samples_chunk2" / str(step) / "input_1.bin"), given.flatten())


# --- what is refused ---


def test_an_existing_folder_is_refused(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(RwkvlabError, match="mine exists already"):
        write_samples(tiny_checkpoint, ROWS, tmp_path / "mine", 1, progress=False)
    assert files_in(tmp_path) == {"mine"}


def test_a_folder_with_a_space_in_its_name_is_refused(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match="has a space in it"):
        write_samples(tiny_checkpoint, ROWS, tmp_path / "my samples", 1, progress=False)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("rows", [[[0, 80]], [[-1, 3]], [[]]])
def test_ids_that_are_not_the_models_are_refused(tiny_checkpoint: Checkpoint, tmp_path: Path, rows: list) -> None:
    with pytest.raises(RwkvlabError, match="0 to 79"):
        write_samples(tiny_checkpoint, np.array(rows, np.int64), tmp_path / "s", 1, progress=False)
    assert files_in(tmp_path) == set()


def test_more_chunks_than_layers_are_refused(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RwkvlabError, match="4 chunks; allowed: 1 to 3"):
        write_samples(tiny_checkpoint, ROWS, tmp_path / "s", 4, progress=False)
    assert files_in(tmp_path) == set()


def test_a_full_disk_leaves_nothing(
    tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = Path.write_bytes, iter(range(30))

    def write_until_full(path: Path, data: bytes) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_until_full)
    with pytest.raises(RwkvlabError, match=r"cannot write .*/s: No space left"):
        write_samples(tiny_checkpoint, ROWS, tmp_path / "s", 2, progress=False)
    assert next(left, None) is None and files_in(tmp_path) == set()


# --- reading ids back ---


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ids_come_back(checkpoint: Checkpoint, tmp_path: Path, count: int) -> None:
    rows = np.random.default_rng(count).integers(0, 80, (3, 4))
    write_samples(checkpoint, rows, tmp_path / "s", count, progress=False)
    (tmp_path / "s").rename(tmp_path / "moved")
    read = read_rows(tmp_path / "moved", checkpoint.spec, count)
    assert read.dtype == np.int64 and np.array_equal(read, rows)


def test_samples_of_another_chunk_count_are_refused(tiny_checkpoint: Checkpoint, samples: Path, tmp_path: Path) -> None:
    for count in (1, 3):
        with pytest.raises(RwkvlabError, match=r"samples of 2 chunks, and . are .* parameter the same: --chunks 2"):
            read_rows(samples, tiny_checkpoint.spec, count)
    write_samples(tiny_checkpoint, ROWS, tmp_path / "one", 1, progress=False)
    with pytest.raises(RwkvlabError, match="--chunks 1"):
        read_rows(tmp_path / "one", tiny_checkpoint.spec, 2)
    for nothing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RwkvlabError, match="holds no calibration samples"):
            read_rows(nothing, tiny_checkpoint.spec, 2)


def test_embedded_vectors_hold_no_ids(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_samples(tiny_checkpoint, ROWS, tmp_path / "s", 1, external_embedding=True, progress=False)
    with pytest.raises(RwkvlabError, match="made with --ext-embedding, and no token ids"):
        read_rows(tmp_path / "s", tiny_checkpoint.spec, 1)


def test_samples_of_another_model_are_refused(tiny_spec: ModelSpec, samples: Path) -> None:
    with pytest.raises(RwkvlabError, match=r"input_1.bin has 64 numbers; allowed: 48"):
        read_rows(samples, ModelSpec(**tiny_spec.model_dump() | {"n_embd": 48}), 2)


def write_floats(file: Path, *values: float) -> None:
    file.write_bytes(np.array(values, "<f4").tobytes())


DAMAGE = {
    "a missing file": (lambda step: (step / "input_0.bin").unlink(), "cannot read the sample"),
    "a missing state": (lambda step: (step / "input_1.bin").unlink(), "cannot read the sample"),
    "half a number": (lambda step: (step / "input_0.bin").write_bytes(b"\0\0"), "cannot read the sample"),
    "no number": (lambda step: write_floats(step / "input_0.bin"), "is no token id"),
    "a fraction": (lambda step: write_floats(step / "input_0.bin", 1.5), "is no token id"),
    "not a number": (lambda step: write_floats(step / "input_0.bin", float("nan")), "is no token id"),
    "two numbers": (lambda step: write_floats(step / "input_0.bin", 1, 2), "is no token id"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_samples_are_refused(tiny_spec: ModelSpec, samples: Path, damage, message: str) -> None:
    damage(samples / "samples_chunk1" / "1")
    with pytest.raises(RwkvlabError, match=message):
        read_rows(samples, tiny_spec, 2)


def test_rows_of_unequal_length_are_refused(tiny_spec: ModelSpec, samples: Path) -> None:
    """A list that stops within the second row, and one without any step."""
    listed = samples / "input_list_chunk1.txt"
    lines = listed.read_text().splitlines(keepends=True)
    for kept, what in (
        (4, "4 samples in rows of 1 or 3 tokens"),
        (0, "0 samples in rows of no tokens"),
        (1, "1 tokens"),
    ):
        listed.write_text("".join(lines[:kept]))
        with pytest.raises(RwkvlabError, match=what):
            read_rows(samples, tiny_spec, 2)
