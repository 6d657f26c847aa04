from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.layout import check_shapes, infer_spec, tensor_shapes
from rwkvlab.spec import LoraRanks, ModelSpec

sizes = st.integers(1, 200)


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    head_size = draw(st.integers(1, 80))
    lora = LoraRanks(decay=draw(sizes), iclr=draw(sizes), value=draw(sizes), gate=draw(sizes))
    return ModelSpec(
        n_layer=draw(st.integers(2, 12)),
        n_embd=head_size * draw(st.integers(1, 20)),
        head_size=head_size,
        n_ffn=draw(sizes),
        vocab_size=draw(sizes),
        lora=lora,
    )


@given(specs())
def test_any_dimensions_are_read_back_from_the_shapes(spec: ModelSpec) -> None:
    assert infer_spec(tensor_shapes(spec)) == spec


@given(specs())
def test_vectors_may_be_stored_flat(spec: ModelSpec) -> None:
    flat = {name: shape[2:] if len(shape) == 3 else shape for name, shape in tensor_shapes(spec).items()}
    assert infer_spec(flat) == spec


@given(specs(), st.data())
def test_any_missing_or_misshapen_tensor_is_named(spec: ModelSpec, data: st.DataObject) -> None:
    shapes = tensor_shapes(spec)
    name = data.draw(st.sampled_from(list(shapes)))
    with pytest.raises(RwkvlabError) as missing:
        check_shapes(spec, {other: shape for other, shape in shapes.items() if other != name})
    assert f"1 missing tensors: {name};" in str(missing.value)
    wrong = (*shapes[name][:-1], shapes[name][-1] + 1)
    with pytest.raises(RwkvlabError) as misshapen:
        check_shapes(spec, shapes | {name: wrong})
    assert f"1 misshapen tensors: {name} is {list(wrong)}, not {list(shapes[name])}" in str(misshapen.value)


def test_the_tensors_are_those_of_a_published_model(tiny_spec: ModelSpec) -> None:
    """The names and orientations of x070 as BlinkDL publishes it, written out by hand for one block."""
    shapes = tensor_shapes(tiny_spec)
    block = {name.removeprefix("blocks.1."): shape for name, shape in shapes.items() if name.startswith("blocks.1.")}
    vector, square = (1, 1, 64), (64, 64)
    assert block == {
        "ln1.weight": (64,), "ln1.bias": (64,), "ln2.weight": (64,), "ln2.bias": (64,),
        "att.x_r": vector, "att.x_w": vector, "att.x_k": vector, "att.x_v": vector, "att.x_a": vector,
        "att.x_g": vector, "att.w0": vector, "att.w1": (64, 8), "att.w2": (8, 64), "att.a0": vector,
        "att.a1": (64, 10), "att.a2": (10, 64), "att.v0": vector, "att.v1": (64, 6), "att.v2": (6, 64),
        "att.g1": (64, 12), "att.g2": (12, 64), "att.k_k": vector, "att.k_a": vector, "att.r_k": (4, 16),
        "att.receptance.weight": square, "att.key.weight": square, "att.value.weight": square,
        "att.output.weight": square, "att.ln_x.weight": (64,), "att.ln_x.bias": (64,),
        "ffn.x_k": vector, "ffn.key.weight": (96, 64), "ffn.value.weight": (64, 96),
    }  # fmt: skip
    outside = {name for name in shapes if not name.startswith("blocks.")}
    assert outside == {"emb.weight", "ln_out.weight", "ln_out.bias", "head.weight"}
    extra = {name.removeprefix("blocks.0.") for name in shapes if name.startswith("blocks.0.")} ^ set(block)
    assert extra == {"ln0.weight", "ln0.bias", "att.v0", "att.v1", "att.v2"}


def test_layer_0_may_hold_unused_value_mixing(tiny_spec: ModelSpec) -> None:
    unused = {"blocks.0.att.v0": (1, 1, 64), "blocks.0.att.v1": (64, 9), "blocks.0.att.v2": (9, 64)}
    assert infer_spec(tensor_shapes(tiny_spec) | unused) == tiny_spec


def test_one_layer_needs_no_value_mixing(tiny_spec: ModelSpec) -> None:
    lora = tiny_spec.lora.model_copy(update={"value": 0})
    spec = tiny_spec.model_copy(update={"n_layer": 1, "lora": lora})
    assert infer_spec(tensor_shapes(spec)) == spec


def test_many_faults_are_counted_and_a_few_named(tiny_spec: ModelSpec) -> None:
    shapes = {name: shape for name, shape in tensor_shapes(tiny_spec).items() if ".att.x_" not in name}
    with pytest.raises(RwkvlabError, match=r"18 missing tensors: blocks.0.att.x_r, .* and 13 more"):
        infer_spec(shapes)


def test_a_tensor_nothing_would_use_is_refused(tiny_spec: ModelSpec) -> None:
    with pytest.raises(RwkvlabError, match=r"1 unknown tensors: blocks.1.att.extra"):
        infer_spec(tensor_shapes(tiny_spec) | {"blocks.1.att.extra": (64,)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("emb.weight", None),
        ("blocks.0.att.r_k", None),
        ("blocks.0.att.r_k", (64,)),
        ("blocks.0.att.w1", (64, 0)),
        ("blocks.1.att.v1", None),
        ("blocks.0.ffn.key.weight", ()),
    ],
)
def test_a_tensor_the_spec_is_read_from_is_named(tiny_spec: ModelSpec, name: str, shape: tuple[int, ...]) -> None:
    shapes = tensor_shapes(tiny_spec)
    del shapes[name]
    if shape is not None:
        shapes[name] = shape
    with pytest.raises(RwkvlabError, match=name):
        infer_spec(shapes)


def test_a_head_size_that_does_not_divide_the_width_is_refused(tiny_spec: ModelSpec) -> None:
    with pytest.raises(RwkvlabError, match="n_embd 64 is not a multiple of head_size 15"):
        infer_spec(tensor_shapes(tiny_spec) | {"blocks.0.att.r_k": (4, 15)})


def test_a_missing_block_is_named(tiny_spec: ModelSpec) -> None:
    shapes = {name: shape for name, shape in tensor_shapes(tiny_spec).items() if not name.startswith("blocks.1.")}
    with pytest.raises(RwkvlabError, match="no tensors for block 1, though block 2 is there"):
        infer_spec(shapes)


OTHERS = {
    "5.1": LoraRanks(),
    "5.2": LoraRanks(),
    "6.0": LoraRanks(mix=7, decay=9),
}


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("head_size", [8, 16])
def test_older_versions_are_recognised_by_their_tensors(version: str, head_size: int) -> None:
    spec = ModelSpec.model_validate(
        {"version": version, "n_layer": 2, "n_embd": 48, "n_ffn": 100, "vocab_size": 77}
        | {"head_size": head_size, "lora": OTHERS[version]}
    )
    shapes = tensor_shapes(spec)
    assert infer_spec(shapes) == spec
    for name in shapes:
        with pytest.raises(RwkvlabError, match=None if name == "blocks.0.att.time_decay" else re.escape(name)):
            infer_spec({other: shape for other, shape in shapes.items() if other != name})


def test_low_rank_widths_belong_to_their_version() -> None:
    sizes = {"n_layer": 2, "n_embd": 32, "head_size": 16, "n_ffn": 64, "vocab_size": 8}
    with pytest.raises(RwkvlabError, match=r"low-rank widths \[\] in RWKV-6"):
        ModelSpec.model_validate({"version": "6.0", **sizes})
    with pytest.raises(RwkvlabError, match=r"low-rank widths \['mix'\] in RWKV-5"):
        ModelSpec.model_validate({"version": "5.2", "lora": LoraRanks(mix=4), **sizes})


V4 = ["att.time_decay", "att.time_first", "att.time_mix_k", "att.key.weight", "ffn.time_mix_k"]
V5_0 = ["att.time_decay", "att.time_first", "att.time_mix_k", "att.ln_x.weight", "ffn.time_mix_k"]


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("RWKV-4 ", V4),
        ("RWKV-5.0 ", V5_0),
        ("RWKV-7a ", ["att.r_k", "att.ln_x.weight", "ffn.s_emb.weight", "ffn.s_emb_x.weight"]),
        ("RWKV-7a ", ["att.r_k", "ffn.s0", "ffn.s1", "ffn.s2"]),
        ("RWKV-7b ", ["att.r_k", "ffn.s_emb.weight", "qkv.qq.weight"]),
    ],
)
def test_other_versions_are_refused_by_name(version: str, names: list[str]) -> None:
    shapes = {"emb.weight": (80, 64), "head.weight": (80, 64)} | {f"blocks.0.{name}": (64, 64) for name in names}
    with pytest.raises(RwkvlabError, match=version + ".*is not supported"):
        infer_spec(shapes)


def test_other_models_are_refused_with_their_names() -> None:
    names = [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(9)]
    with pytest.raises(
        RwkvlabError, match=r"not an RWKV checkpoint: its 9 tensors are named model.layers.0.* and 4 more"
    ):
        infer_spec(dict.fromkeys(names, (8, 8)))
    with pytest.raises(RwkvlabError, match="its 0 tensors are named nothing"):
        infer_spec({})
    with pytest.raises(RwkvlabError, match="no RWKV version"):
        infer_spec({"emb.weight": (8, 8), "blocks.0.attn.q.weight": (8, 8)})


def test_needs_no_torch() -> None:
    code = "import sys, rwkvlab.spec, rwkvlab.tokenizer, rwkvlab.texts.lambada; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
