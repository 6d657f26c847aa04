"""Names and shapes of a checkpoint's tensors, version by version, and the spec they imply.

Names are those of BlinkDL's RWKV-LM. Nothing here assumes a head size, a vocabulary or a feed-forward width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from rwkvlab.errors import RwkvlabError
from rwkvlab.spec import LoraRanks, ModelSpec, Version

Shape = tuple[int, ...]

_BLOCK = re.compile(r"^blocks\.(0|[1-9]\d{0,5})\.")
_SHOWN = 5  # how many offending tensors an error spells out before it only counts
_SUPPORTED = "an RWKV-5.1, 5.2, 6 or 7 checkpoint with BlinkDL's tensor names"


def infer_spec(shapes: Mapping[str, Shape]) -> ModelSpec:
    """Read the spec off a checkpoint's tensor names and shapes, and check every one of them against it.

    Raises:
        RwkvlabError: not RWKV, an unsupported version, or missing, misshapen or unknown tensors (named).
    """
    version = _version(shapes)
    vocab_size, n_embd = _matrix(shapes, "emb.weight")
    spec = ModelSpec(
        version=version,
        n_layer=_count_layers(shapes),
        n_embd=n_embd,
        head_size=_head_size(shapes, version, n_embd),
        n_ffn=_matrix(shapes, "blocks.0.ffn.key.weight")[0],
        vocab_size=vocab_size,
        lora=_lora_ranks(shapes, version),
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
            "; ".join(faults),
            f"the tensors of RWKV-{spec.version} with {size}",
            "download or convert the checkpoint again",
        )


def _block_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c, f = spec.n_embd, spec.n_ffn
    common: dict[str, Shape] = {f"{norm}.{part}": (c,) for norm in ("ln1", "ln2") for part in ("weight", "bias")}
    common |= {f"att.{name}.weight": (c, c) for name in ("receptance", "key", "value", "output")}
    common |= {"att.ln_x.weight": (c,), "att.ln_x.bias": (c,)}
    common |= {"ffn.key.weight": (f, c), "ffn.value.weight": (c, f)}
    return common | _SHAPES[spec.version](spec, layer)


def _v5_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c = spec.n_embd
    per_head = (spec.n_head,) if spec.version == "5.1" else (spec.n_head, spec.head_size)
    return {
        **{f"att.time_mix_{letter}": (1, 1, c) for letter in "kvrg"},
        "att.time_decay": per_head,
        "att.time_faaaa": per_head,
        "att.gate.weight": (c, c),
        "ffn.time_mix_k": (1, 1, c),
        "ffn.time_mix_r": (1, 1, c),
        "ffn.receptance.weight": (c, c),
    }


def _v6_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c, lora = spec.n_embd, spec.lora
    return {
        **{f"att.time_maa_{letter}": (1, 1, c) for letter in "xwkvrg"},
        "att.time_maa_w1": (c, 5 * lora.mix),
        "att.time_maa_w2": (5, lora.mix, c),
        "att.time_decay": (1, 1, c),
        "att.time_decay_w1": (c, lora.decay),
        "att.time_decay_w2": (lora.decay, c),
        "att.time_faaaa": (spec.n_head, spec.head_size),
        "att.gate.weight": (c, c),
        "ffn.time_maa_k": (1, 1, c),
        "ffn.time_maa_r": (1, 1, c),
        "ffn.receptance.weight": (c, c),
    }


def _v7_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    c = spec.n_embd
    return {
        **{f"att.x_{letter}": (1, 1, c) for letter in "rwkvag"},
        **_lora_shapes(spec, layer),
        "att.k_k": (1, 1, c),
        "att.k_a": (1, 1, c),
        "att.r_k": (spec.n_head, spec.head_size),
        "ffn.x_k": (1, 1, c),
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
    if all(n == 1 for n in expected[:-1]):  # a vector
        return found[-1:] == expected[-1:] and all(n == 1 for n in found[:-1])
    return tuple(found) == expected


def _version(shapes: Mapping[str, Shape]) -> Version:
    parts = {".".join(name.split(".")[2:]) for name in shapes if _BLOCK.match(name)}
    seen = {piece for part in parts for piece in part.split(".")}
    if not parts or ("emb.weight" not in shapes and "att" not in seen):
        raise RwkvlabError(
            f"not an RWKV checkpoint: its {len(shapes)} tensors are named {_first_few(list(shapes))}",
            _SUPPORTED,
            "download the .pth release, or convert other names (Hugging Face, fla, GGUF) to BlinkDL's",
        )
    if "qkv" in seen:
        raise _unsupported("7b (deep-embedding attention)", "its attention needs per-token tables")
    if {"s_emb", "s_emb_x"} & seen or {"ffn.s0", "ffn.s1", "ffn.s2"} & parts:
        raise _unsupported("7a (deep embedding)", "its feed-forward layers need per-token tables")
    if {"x_r", "x_w", "k_k", "k_a", "r_k"} & seen:
        return "7.0"
    if any(piece.startswith("time_maa") for piece in seen):
        return "6.0"
    if {"ln_x", "time_faaaa"} & seen:
        return _v5_version(shapes, parts)
    if any(piece.startswith("time_") for piece in seen):
        raise _unsupported("4", "its recurrence has no heads and nothing here computes it")
    raise RwkvlabError(f"no RWKV version has blocks with tensors named {_first_few(sorted(parts))}", _SUPPORTED)


def _v5_version(shapes: Mapping[str, Shape], parts: set[str]) -> Version:
    """5.2 has a decay per channel, 5.1 one per head."""
    if "att.gate.weight" not in parts:
        raise _unsupported("5.0", "it has no gate")
    if "att.time_first" in parts:
        raise _unsupported("5.1 (r2)", "its bonus is stored as a logarithm, time_first")
    decay = shapes.get("blocks.0.att.time_decay", ())
    return "5.2" if len(decay) > 1 and decay[-1] > 1 else "5.1"


def _head_size(shapes: Mapping[str, Shape], version: Version, n_embd: int) -> int:
    if version == "5.1":
        name = "blocks.0.att.time_decay"
        heads = shapes[name][0] if shapes.get(name) else 0
        if heads < 1 or n_embd % heads:
            raise RwkvlabError(f"misshapen tensor {name}: {list(shapes.get(name, ()))}", "one decay per head")
        return n_embd // heads
    return _matrix(shapes, f"blocks.0.att.{'r_k' if version == '7.0' else 'time_faaaa'}")[1]


def _lora_ranks(shapes: Mapping[str, Shape], version: Version) -> LoraRanks:
    def inner(name: str) -> int:
        return _matrix(shapes, f"blocks.0.att.{name}")[1]

    if version == "6.0":
        return LoraRanks(mix=inner("time_maa_w1") // 5, decay=inner("time_decay_w1"))
    if version != "7.0":
        return LoraRanks()
    # Layer 0 may lack v1; a model of one layer may have none at all.
    value = _matrix(shapes, "blocks.1.att.v1")[1] if _count_layers(shapes) > 1 else 0
    return LoraRanks(decay=inner("w1"), iclr=inner("a1"), value=value, gate=inner("g1"))


def _unsupported(version: str, reason: str) -> RwkvlabError:
    what = f"RWKV-{version} is not supported: {reason}"
    return RwkvlabError(what, _SUPPORTED, "use a supported model of the same size")


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
        raise RwkvlabError(f"missing tensor {name}", _SUPPORTED, "download or convert the checkpoint again")
    shape = tuple(shapes[name])
    if len(shape) != 2 or min(shape) < 1:
        raise RwkvlabError(f"misshapen tensor {name}: {list(shape)}", "two positive dimensions")
    return shape[0], shape[1]


def _first_few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "") if names else "nothing"


_SHAPES: dict[Version, Callable[[ModelSpec, int], dict[str, Shape]]] = {
    "5.1": _v5_shapes,
    "5.2": _v5_shapes,
    "6.0": _v6_shapes,
    "7.0": _v7_shapes,
}
