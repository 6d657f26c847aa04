"""From a checkpoint to encodings, graphs and context caches, as several test files need them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.export.export import export_model
from rwkvlab.htp.build import build_cache
from rwkvlab.htp.cache import ContextCache
from rwkvlab.quant.calibrate import Calibration, calibrate
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.quantize import quantize
from rwkvlab.quant.recipe import GraphOptions, Recipe
from rwkvlab.soc import find_soc


def token_rows(checkpoint: Checkpoint, rows: int = 8, length: int = 48, seed: int = 0) -> np.ndarray:
    """Random ids [rows, length], token 0 first."""
    ids = np.random.default_rng(seed).integers(0, checkpoint.spec.vocab_size, (rows, length))
    ids[:, 0] = 0
    return ids


def calibration_of(checkpoint: Checkpoint, rows: np.ndarray | None = None) -> Calibration:
    rows = token_rows(checkpoint) if rows is None else rows
    return calibrate(checkpoint, rows, "random ids", "0" * 64, progress=False)


def encodings_of(checkpoint: Checkpoint, precision: str, rows: np.ndarray | None = None) -> Encodings:
    recipe = Recipe.model_validate({"precision": precision})
    return Encodings() if precision == "fp16" else quantize(checkpoint, calibration_of(checkpoint, rows), recipe)


def recipe_for(precision: str, chunks: int = 1, **graph) -> Recipe:
    return Recipe.model_validate({"precision": precision, "graph": GraphOptions(chunks=chunks, **graph).model_dump()})


def export_to(folder: Path, checkpoint: Checkpoint, encodings: Encodings, recipe: Recipe) -> Path:
    export_model(checkpoint, encodings, recipe, folder, progress=False)
    return folder


def build_to(
    folder: Path, checkpoint: Checkpoint, encodings: Encodings, recipe: Recipe, soc: str = "SM8650"
) -> ContextCache:
    """Graphs under `folder/graphs`, the cache under `folder/cache-<soc>`."""
    graphs = export_to(folder / "graphs", checkpoint, encodings, recipe)
    return build_cache(graphs, folder / f"cache-{soc}", find_soc(soc), progress=False)
