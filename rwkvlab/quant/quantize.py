"""From a checkpoint, its calibration and a recipe to encodings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import load_chunk
from rwkvlab.quant.calibrate import ActivationRange, Calibration
from rwkvlab.quant.encodings import Encoding, Encodings
from rwkvlab.quant.grid import affine_range, channel_scales
from rwkvlab.quant.recipe import Recipe

ACTIVATION_BITS = 16


def quantize(checkpoint: Checkpoint, calibration: Calibration | None, recipe: Recipe) -> Encodings:
    """Choose a grid for every weight the recipe quantizes and for what enters and leaves its linear.

    One layer's weights are in memory at a time.

    Args:
        checkpoint: the model.
        calibration: activation statistics of the same model; not needed for fp16.
        recipe: what to do.

    Raises:
        RwkvlabError: the calibration is missing, of another model, or lacks a tensor.
    """
    if not recipe.quantizes:
        return Encodings()
    if calibration is None:
        raise RwkvlabError(
            f"{recipe.precision} needs a calibration", "a file made by rwkvlab calibrate", "run rwkvlab calibrate first"
        )
    if calibration.source.model_sha256 != checkpoint.sha256:
        raise RwkvlabError(
            f"the calibration is of another model ({calibration.source.model_sha256[:12]})",
            f"one of {checkpoint.path.name} ({checkpoint.sha256[:12]})",
            "run rwkvlab calibrate on this checkpoint",
        )
    if calibration.source.aids != recipe.aids.model_dump_json():
        raise RwkvlabError(
            f"the calibration ran with range aids {calibration.source.aids}",
            f"the recipe's: {recipe.aids.model_dump_json()}",
            "run rwkvlab calibrate again with this recipe",
        )
    checkpoint = checkpoint.with_aids(recipe.aids)
    percentile = recipe.percentile if recipe.activation_range == "percentile" else None
    params: dict[str, Encoding] = {}
    activations: dict[str, Encoding] = {}
    for name, weight in linear_weights(checkpoint):
        bits = recipe.weight_bits(name)
        if bits is None:
            continue
        params[f"{name}.weight"] = weight_encoding(weight, bits)
        for end in ("input", "output"):
            activations[f"{name}.{end}"] = activation_encoding(_range_of(calibration, f"{name}.{end}"), percentile)
    return Encodings(params, activations)


def linear_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """(name, weight [out, in]) of every linear, layer by layer, the head last."""
    for part in plan_chunks(checkpoint.spec.n_layer, checkpoint.spec.n_layer):
        chunk = load_chunk(checkpoint, part.first, part.last, embedding=False)
        for name, module in chunk.named_modules():
            if isinstance(module, nn.Linear):
                yield name, module.weight


def weight_encoding(weight: Tensor, bits: int) -> Encoding:
    """Round-to-nearest grid of a weight [out, in]: symmetric, one scale per output row."""
    scales = channel_scales(weight, bits).numpy().astype(np.float64)
    return Encoding(bits, True, scales, np.full(scales.shape, -(2 ** (bits - 1))))


def activation_encoding(values: ActivationRange, percentile: float | None) -> Encoding:
    """16-bit grid of an activation: unsigned with an offset, one scale for the tensor."""
    scale, offset = affine_range(*values.limits(percentile), ACTIVATION_BITS)
    return Encoding(ACTIVATION_BITS, False, np.array([scale]), np.array([offset]))


def _range_of(calibration: Calibration, name: str) -> ActivationRange:
    if name not in calibration.ranges:
        raise RwkvlabError(
            f"the calibration lacks '{name}'", "every linear's input and output", "run rwkvlab calibrate again"
        )
    return calibration.ranges[name]
