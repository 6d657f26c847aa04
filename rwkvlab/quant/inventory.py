"""What a checkpoint is made of: parameters by group, bytes at each precision, weights that are no numbers."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import get_args

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.layout import tensor_shapes
from rwkvlab.model.rwkv import linear_names
from rwkvlab.quant.recipe import LARGE_LINEARS, Precision, Recipe

FLOAT_BITS = 16
"""What stays float is compiled as fp16."""


def parameters_by_group(checkpoint: Checkpoint) -> Counter[str]:
    """Group of weights -> parameters; layer 0's unused value mixing is left out."""
    linears = _linears(checkpoint)
    counts: Counter[str] = Counter()
    for name, shape in tensor_shapes(checkpoint.spec).items():
        counts[_group(name, linears.get(name))] += prod(shape)
    return counts


def weight_bytes(checkpoint: Checkpoint) -> dict[Precision, int]:
    """Precision -> bytes of all weights, scales not counted; an external embedding moves bytes, it saves none."""
    linears = _linears(checkpoint)
    sizes: dict[Precision, int] = {}
    for precision in get_args(Precision):
        recipe = Recipe(precision=precision)
        bits = {name: recipe.weight_bits(linear) or FLOAT_BITS for name, linear in linears.items()}
        shapes = tensor_shapes(checkpoint.spec)
        sizes[precision] = sum(prod(shape) * bits.get(name, FLOAT_BITS) for name, shape in shapes.items()) // 8
    return sizes


def unusable_tensors(checkpoint: Checkpoint) -> list[str]:
    """Names of the tensors that hold NaN or infinite weights; reads the whole checkpoint, a tensor at a time."""
    names = []
    for name in tensor_shapes(checkpoint.spec):
        try:
            checkpoint.tensor(name)
        except RwkvlabError:
            names.append(name)
    return names


def _linears(checkpoint: Checkpoint) -> dict[str, str]:
    """Name of a tensor in the checkpoint -> the linear whose weight it is; time_maa_w2 -> the first of its five."""
    linears = set(linear_names(checkpoint.spec))
    tensors = tensor_shapes(checkpoint.spec)
    candidates = ((name, linear) for name in tensors for linear in (name.removesuffix(".weight"), f"{name}.0"))
    return {name: linear for name, linear in candidates if linear in linears}


def _group(name: str, linear: str | None) -> str:
    if linear is None:
        return "embedding" if name == "emb.weight" else "vectors and norms"
    if linear == "head":
        return "head"
    part = linear.split(".", 2)[-1]
    if part not in LARGE_LINEARS:
        return "low-rank maps"
    return "time mix" if part.startswith("att.") else "channel mix"
