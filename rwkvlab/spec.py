"""What a checkpoint is: its version and dimensions, read from the names and shapes of its tensors.

Names are those of BlinkDL's RWKV-LM. Nothing here assumes a head size, a vocabulary or a feed-forward width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rwkvlab.errors import RwkvlabError

Shape = tuple[int, ...]

_BLOCK = re.compile(r"^blocks\.(0|[1-9]\d{0,5})\.")
_SHOWN = 5  # how many offending tensors an error spells out before it only counts
_USE_V7 = "an RWKV-7 (x070) checkpoint with BlinkDL's tensor names"


class LoraRanks(BaseModel):
    """Inner widths of the low-rank maps of RWKV-7's time mix.

    `decay` is w1/w2's, `iclr` (in-context learning rate) a1/a2's, `value` (mixing in the first layer's values) v1/v2's,
    `gate` g1/g2's. `value` is 0 only where a single-layer model has no such map.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decay: int = Field(ge=1)
    iclr: int = Field(ge=1)
    value: int = Field(ge=0)
    gate: int = Field(ge=1)


class ModelSpec(BaseModel):
    """Version and dimensions of one RWKV model.

    Raises:
        RwkvlabError: `n_embd` is not a multiple of `head_size`, or a model of several layers has no `lora.value`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal["7.0"] = "7.0"
    n_layer: int = Field(ge=1)
    n_embd: int = Field(ge=1)
    head_size: int = Field(ge=1)
    n_ffn: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    lora: LoraRanks
    group_norm_eps: float = Field(default=64e-5, gt=0)
    """Epsilon of the norm over each head's output; a property of the training code that no tensor records."""

    @property
    def n_head(self) -> int:
        """Heads of the time mix."""
        return self.n_embd // self.head_size

    @model_validator(mode="after")
    def _dimensions_fit(self) -> ModelSpec:
        if self.n_embd % self.head_size:
            raise RwkvlabError(
                f"n_embd {self.n_embd} is not a multiple of head_size {self.head_size}", "n_embd = n_head * head_size"
            )
        if self.n_layer > 1 and not self.lora.value:
            raise RwkvlabError(f"lora.value is 0 in a model of {self.n_layer} layers", "at least 1")
        return self


def infer_spec(shapes: Mapping[str, Shape]) -> ModelSpec:
    """Read the spec off a checkpoint's tensor names and shapes, and check every one of them against it.

    Raises:
        RwkvlabError: not RWKV, a version this release cannot run, or missing, misshapen or unknown tensors (named).
    """
    _require_v7(shapes)
    vocab_size, n_embd = _matrix(shapes, "emb.weight")
    n_layer = _count_layers(shapes)
    # Layer 0 may lack v1; a model of one layer may have none at all.
    value_rank = 0 if n_layer == 1 else _matrix(shapes, "blocks.1.att.v1")[1]
    spec = ModelSpec(
        n_layer=n_layer,
        n_embd=n_embd,
        head_size=_matrix(shapes, "blocks.0.att.r_k")[1],
        n_ffn=_matrix(shapes, "blocks.0.ffn.key.weight")[0],
        vocab_size=vocab_size,
        lora=LoraRanks(
            decay=_matrix(shapes, "blocks.0.att.w1")[1],
            iclr=_matrix(shapes, "blocks.0.att.a1")[1],
            value=value_rank,
            gate=_matrix(shapes, "blocks.0.att.g1")[1],
        ),
    )
    check_shapes(spec, shapes)
    return spec


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor of a checkpoint with this spec and its shape, in BlinkDL's names and order.

    Layer 0's v0, v1 and v2 are left out: the first layer has no earlier values to mix in, and nothing reads them.
    """
    c, v = spec.n_embd, spec.vocab_size
    shapes: dict[str, Shape] = {"emb.weight": (v, c), "blocks.0.ln0.weight": (c,), "blocks.0.ln0.bias": (c,)}
    for layer in range(spec.n_layer):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in _block_shapes(spec, layer).items()}
    return shapes | {"ln_out.weight": (c,), "ln_out.bias": (c,), "head.weight": (v, c)}


def check_shapes(spec: ModelSpec, shapes: Mapping[str, Shape]) -> None:
    """Compare a checkpoint's tensors with those `spec` calls for.

    A vector may be stored as [C] or [1, 1, C]; layer 0's unused v0, v1, v2 may be there or not, in any shape.

    Raises:
        RwkvlabError: naming the first few missing, misshapen or unknown tensors and counting the rest.
    """
    expected = tensor_shapes(spec)
    missing = [name for name in expected if name not in shapes]
    misshapen = [
        f"{name} is {list(shapes[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and not _fits(shapes[name], shape)
    ]
    unknown = [name for name in shapes if name not in expected and not _is_unused(name)]
    kinds = {"missing tensors": missing, "misshapen tensors": misshapen, "unknown tensors": unknown}
    faults = [f"{len(names)} {kind}: {_first_few(names)}" for kind, names in kinds.items() if names]
    if faults:
        size = f"{spec.n_layer} layers, n_embd {spec.n_embd}, head size {spec.head_size}, n_ffn {spec.n_ffn}"
        raise RwkvlabError(
            "; ".join(faults), f"the tensors of RWKV-7 with {size}", "download or convert the checkpoint again"
        )


def _block_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c, f = spec.n_embd, spec.n_ffn
    norms: dict[str, Shape] = {f"{norm}.{part}": (c,) for norm in ("ln1", "ln2") for part in ("weight", "bias")}
    mixes: dict[str, Shape] = {f"att.x_{letter}": (1, 1, c) for letter in "rwkvag"}
    projections: dict[str, Shape] = {f"att.{name}.weight": (c, c) for name in ("receptance", "key", "value", "output")}
    return {
        **norms,
        **mixes,
        **_lora_shapes(spec, layer),
        "att.k_k": (1, 1, c),
        "att.k_a": (1, 1, c),
        "att.r_k": (spec.n_head, spec.head_size),
        **projections,
        "att.ln_x.weight": (c,),
        "att.ln_x.bias": (c,),
        "ffn.x_k": (1, 1, c),
        "ffn.key.weight": (f, c),
        "ffn.value.weight": (c, f),
    }


def _lora_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c, lora = spec.n_embd, spec.lora
    ranks = {"w": lora.decay, "a": lora.iclr, "v": lora.value, "g": lora.gate}
    if layer == 0:
        del ranks["v"]
    shapes: dict[str, Shape] = {}
    for letter, rank in ranks.items():
        if letter != "g":  # the gate alone has no bias
            shapes[f"att.{letter}0"] = (1, 1, c)
        shapes[f"att.{letter}1"] = (c, rank)
        shapes[f"att.{letter}2"] = (rank, c)
    return shapes


def _is_unused(name: str) -> bool:
    return name in {"blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"}


def _fits(found: Shape, expected: Shape) -> bool:
    if len(expected) != 2:  # a vector
        return len(found) in (1, 3) and found[-1] == expected[-1] and all(n == 1 for n in found[:-1])
    return tuple(found) == expected


def _require_v7(shapes: Mapping[str, Shape]) -> None:
    parts = {".".join(name.split(".")[2:]) for name in shapes if _BLOCK.match(name)}
    seen = {piece for part in parts for piece in part.split(".")}
    if not parts or ("emb.weight" not in shapes and "att" not in seen):
        raise RwkvlabError(
            f"not an RWKV checkpoint: its {len(shapes)} tensors are named {_first_few(list(shapes))}",
            _USE_V7,
            "download the .pth release, or convert other names (Hugging Face, fla, GGUF) to BlinkDL's",
        )
    if "qkv" in seen:
        raise _unsupported("7b (deep-embedding attention)", "its attention needs per-token tables")
    if {"s_emb", "s_emb_x"} & seen or {"ffn.s0", "ffn.s1", "ffn.s2"} & parts:
        raise _unsupported("7a (deep embedding)", "its feed-forward layers need per-token tables")
    if {"x_r", "x_w", "k_k", "k_a", "r_k"} & seen:
        return
    if any(piece.startswith("time_maa") for piece in seen):
        raise _unsupported("6")
    if {"ln_x", "time_faaaa"} & seen:
        raise _unsupported("5")
    if any(piece.startswith("time_") for piece in seen):
        raise _unsupported("4", "its recurrence has no heads and nothing here computes it")
    raise RwkvlabError(f"no RWKV version has blocks with tensors named {_first_few(sorted(parts))}", _USE_V7)


def _unsupported(version: str, reason: str = "") -> RwkvlabError:
    what = f"RWKV-{version} is not supported by this version of rwkvlab" + (f": {reason}" if reason else "")
    return RwkvlabError(what, _USE_V7, "download the RWKV-7 (x070) model of the same size")


def _count_layers(shapes: Mapping[str, Shape]) -> int:
    layers = {int(match[1]) for name in shapes if (match := _BLOCK.match(name))}
    absent = sorted(set(range(len(layers))) - layers)
    if absent:
        raise RwkvlabError(
            f"no tensors for block {absent[0]}, though block {max(layers)} is there",
            "blocks numbered from 0 without gaps",
            "use the whole checkpoint, not a part of it",
        )
    return len(layers)


def _matrix(shapes: Mapping[str, Shape], name: str) -> tuple[int, int]:
    """The two dimensions of a tensor the spec is read from, both positive."""
    if name not in shapes:
        raise RwkvlabError(f"missing tensor {name}", _USE_V7, "download or convert the checkpoint again")
    shape = tuple(shapes[name])
    if len(shape) != 2 or min(shape) < 1:
        raise RwkvlabError(f"misshapen tensor {name}: {list(shape)}", "two positive dimensions")
    return shape[0], shape[1]


def _first_few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "") if names else "nothing"
