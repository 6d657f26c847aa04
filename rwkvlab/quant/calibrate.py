"""Calibration: what values enter and leave every linear while the float model reads text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_path
from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import load_chunk
from rwkvlab.model.stream import stream
from rwkvlab.range_aids import NO_AIDS

PER_OCTAVE, OCTAVES, SMALLEST = 32, 44, 2.0**-22
"""Histogram of magnitudes: logarithmic bins of 2.2 % from 2^-22 to 2^22, separately for each sign. Fixed bins need no
second pass, merge by addition, and resolve outliers and ordinary values alike."""
BINS = PER_OCTAVE * OCTAVES


@dataclass(frozen=True)
class ActivationRange:
    """Statistics of one tensor over the whole calibration text.

    Attributes:
        low, high: extreme values.
        rms: root mean square.
        negative, positive: counts per logarithmic bin of magnitude, [BINS]; zeros are in bin 0.
    """

    low: float
    high: float
    rms: float
    negative: np.ndarray
    positive: np.ndarray

    def limits(self, percentile: float | None) -> tuple[float, float]:
        """Range to be represented: the extremes, or the central `percentile` percent of the values.

        Percentiles are rounded outwards to the edge of their bin, at most 2.2 % too wide.
        """
        if percentile is None:
            return self.low, self.high
        tail = (1 - percentile / 100) / 2 * float(self.negative.sum() + self.positive.sum())
        return max(self.low, -_edge(self.negative, tail)), min(self.high, _edge(self.positive, tail))


@dataclass(frozen=True)
class CalibrationSource:
    """Where the statistics come from: the model, and everything of the calibration options that was used.

    Attributes:
        model_sha256: of the checkpoint file.
        text, seed: what was read; the seed counts for generated stories.
        text_sha256: of the token ids.
        tokens, length: token ids in all, and in each row.
        aids: the range aids the model ran with, as JSON.
    """

    model_sha256: str
    text: str
    text_sha256: str
    tokens: int
    length: int
    seed: int
    aids: str = NO_AIDS.model_dump_json()


@dataclass(frozen=True)
class Calibration:
    """Activation statistics of a whole model: `<linear>.input` and `<linear>.output` by name."""

    source: CalibrationSource
    ranges: dict[str, ActivationRange]

    def save(self, path: Path) -> None:
        """Write one .npz file."""
        names = list(self.ranges)
        extremes = np.array([[r.low, r.high, r.rms] for r in self.ranges.values()])
        histograms = np.stack([np.stack([r.negative, r.positive]) for r in self.ranges.values()])
        with atomic_path(path) as temporary, temporary.open("wb") as file:  # given a name, numpy would append .npz
            np.savez_compressed(
                file, names=names, extremes=extremes, histograms=histograms, source=json.dumps(asdict(self.source))
            )

    @classmethod
    def load(cls, path: Path | str) -> Calibration:
        """Read what `save` wrote.

        Raises:
            RwkvlabError: missing, damaged, or not a calibration file.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                source = CalibrationSource(**json.loads(str(data["source"])))
                rows = zip(data["names"].tolist(), data["extremes"].tolist(), data["histograms"], strict=True)
                return cls(source, {name: ActivationRange(*extremes, *histogram) for name, extremes, histogram in rows})
        except Exception as error:  # a damaged file surfaces as almost any exception
            raise RwkvlabError(
                f"cannot read the calibration {path}: {error}",
                "a file made by rwkvlab calibrate",
                "run rwkvlab calibrate again",
            ) from error


def calibrate(
    checkpoint: Checkpoint,
    rows: np.ndarray,
    text: str,
    text_sha256: str,
    chunks: int = 1,
    batch: int = 8,
    progress: bool = True,
    seed: int = 0,
) -> Calibration:
    """Run the float model over `rows` chunk by chunk and record every linear's input and output.

    Args:
        checkpoint: the model.
        rows: token ids [R, T]; each row starts from the empty state.
        text, text_sha256: what was read, for the record.
        chunks: how many pieces the model is loaded in; the result does not depend on it.
        batch: rows per forward pass.
        progress: show a bar.
        seed: of generated text, for the record.

    Raises:
        RwkvlabError: ids outside the model's vocabulary, or a value that is not finite.
    """
    if rows.size == 0:
        raise RwkvlabError("the calibration text is empty", "at least one row of tokens", "choose another text")
    if rows.min() < 0 or rows.max() >= checkpoint.spec.vocab_size:
        raise RwkvlabError(
            f"the calibration text holds token ids {rows.min()}..{rows.max()}",
            f"0 to {checkpoint.spec.vocab_size - 1}",
            "use the model's own tokenizer (--tokenizer)",
        )
    recorder = _Recorder()
    batches = [torch.from_numpy(rows[i : i + batch]) for i in range(0, len(rows), batch)]
    plan = plan_chunks(checkpoint.spec.n_layer, chunks)

    def load(part):
        chunk = load_chunk(checkpoint, part.first, part.last)
        recorder.attach(chunk)
        return chunk

    for _ in stream(checkpoint.spec, plan, load, batches, "calibrate" if progress else ""):
        pass
    counts = int(rows.size), int(rows.shape[1])
    aids = checkpoint.aids.model_dump_json()
    source = CalibrationSource(checkpoint.sha256, text, text_sha256, *counts, seed, aids)
    return Calibration(source, recorder.ranges())


class _Recorder:
    """Forward hooks that add to one running statistic per tensor."""

    def __init__(self) -> None:
        self._sums: dict[str, _Running] = {}

    def attach(self, chunk: nn.Module) -> None:
        for name, module in chunk.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook(name))

    def ranges(self) -> dict[str, ActivationRange]:
        return {name: running.result() for name, running in self._sums.items()}

    def _hook(self, name: str):
        def record(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            for end, value in (("input", inputs[0]), ("output", output)):
                self._sums.setdefault(f"{name}.{end}", _Running(f"{name}.{end}")).add(value)

        return record


class _Running:
    def __init__(self, name: str) -> None:
        self.name, self.low, self.high, self.squares, self.count = name, np.inf, -np.inf, 0.0, 0
        self.histogram = np.zeros((2, BINS), np.int64)

    def add(self, value: Tensor) -> None:
        low, high = value.aminmax()
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise RwkvlabError(
                f"{self.name} takes a value that is not finite",
                "finite activations",
                "check the checkpoint: rwkvlab info",
            )
        self.low, self.high = min(self.low, low.item()), max(self.high, high.item())
        self.squares += value.square().sum(dtype=torch.float64).item()
        self.count += value.numel()
        magnitude = (value.abs().clamp_min(SMALLEST) / SMALLEST).log2()
        bins = (magnitude * PER_OCTAVE).long().clamp(max=BINS - 1) + BINS * (value >= 0)
        self.histogram += torch.bincount(bins.flatten(), minlength=2 * BINS).cpu().numpy().reshape(2, BINS)

    def result(self) -> ActivationRange:
        return ActivationRange(self.low, self.high, (self.squares / self.count) ** 0.5, *self.histogram)


def _edge(counts: np.ndarray, tail: float) -> float:
    """Upper edge of the bin above which at most `tail` values lie."""
    above = np.cumsum(counts[::-1])[::-1]
    kept = np.flatnonzero(above > tail)
    return SMALLEST * 2.0 ** ((kept[-1] + 1) / PER_OCTAVE) if kept.size else 0.0
