"""What QuantSim computes in torch is what the exported Q/DQ graph computes on ONNX Runtime's CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from rwkvlab.export.graph import export_graph
from rwkvlab.model.load import load_chunk
from rwkvlab.model.rwkv import linear_names, run_chunk, zero_state
from rwkvlab.quant.sim import simulate
from tests.pipeline import encodings_of

PRECISIONS = ["fp16", "a16w8", "a16w4"]
LENGTHS = [1, 16, 32, 48]


@pytest.fixture(scope="module")
def encodings(tiny_checkpoint):
    return {precision: encodings_of(tiny_checkpoint, precision) for precision in PRECISIONS}


@pytest.fixture(scope="module")
def chunks(tiny_checkpoint, encodings):
    return {p: simulate(load_chunk(tiny_checkpoint, 0, 3), encodings[p], 75) for p in PRECISIONS}


@pytest.fixture(scope="module")
def graphs(chunks, tmp_path_factory) -> dict[tuple[str, int], Path]:
    folder = tmp_path_factory.mktemp("graphs")
    wanted = [(p, t) for p in PRECISIONS for t in LENGTHS if p != "fp16" or t <= 32]
    return {(p, t): export_graph(chunks[p], t, folder / f"{p}_{t}.onnx") for p, t in wanted}


def cpu_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def run_graph(path: Path, tokens: list[int], state: list[torch.Tensor]) -> list[np.ndarray]:
    session = cpu_session(path)
    names = [node.name for node in session.get_inputs()]
    values = [np.array([tokens], np.int32), *(tensor.numpy() for tensor in state)]
    return session.run(None, dict(zip(names, values, strict=True)))


def some_state(chunk, tokens: list[int]) -> list[torch.Tensor]:
    """A state such as text leaves behind."""
    return run_chunk(chunk, torch.tensor([tokens]), None, zero_state(chunk.spec, 1))[2]


CASES = [(p, t) for p in ("a16w8", "a16w4") for t in LENGTHS] + [("fp16", t) for t in (1, 16, 32)]


@pytest.mark.parametrize(("precision", "length"), CASES)
@torch.no_grad()
def test_graph_computes_what_torch_computes(chunks, graphs, encodings, precision, length):
    chunk, state = chunks[precision], some_state(chunks[precision], [0, 5, 9, 70])
    tokens = np.random.default_rng(length).integers(0, 80, length).tolist()
    want_logits, _, want_state = run_chunk(chunk, torch.tensor([tokens]), None, state)
    logits, *after = run_graph(graphs[precision, length], tokens, state)
    assert logits.shape == (1, length, 80)
    if precision == "fp16":  # the same float operations in another order
        np.testing.assert_allclose(logits, want_logits.numpy(), atol=1e-5)
    else:
        # Two float32 sums in another order differ in the last bits; where one lies on the border between two codes, the
        # result moves by one step of the 16-bit output. Such a step, upstream, moves others below it by a few.
        step = encodings[precision].activations["head.output"].scale.item()
        steps_off = np.abs(logits - want_logits.numpy()) / step
        assert steps_off.max() < 12 and np.quantile(steps_off, 0.99) < 6
        assert (logits.argmax(-1) == want_logits.numpy().argmax(-1)).all()
    for got, want in zip(after, want_state, strict=True):
        np.testing.assert_allclose(got, want.numpy(), atol=2e-3 * float(want.abs().max()) + 1e-6)


Grids = dict[str, tuple[np.ndarray, ...]]


def linear_grids(path: Path) -> Grids:
    """Of every linear: weight codes, scales, zero points; scale and zero point of its input; the same of its output."""
    model = onnx.load(path)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    quantize = {node.input[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    found = {}
    for node in model.graph.node:
        weight = made_by.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and weight.input[0] in values:
            before, after = made_by[node.input[0]], quantize[node.output[0]]
            names = [*weight.input, *before.input[1:], *after.input[1:]]
            found[node.name.removesuffix("/MatMul")[1:].replace("/", ".")] = tuple(values[name] for name in names)
    return found


@pytest.mark.parametrize("precision", ["a16w8", "a16w4"])
@pytest.mark.parametrize("length", [16, 32, 48])
def test_decode_and_prefill_share_weights_and_encodings(graphs, tiny_spec, precision, length):
    decode, prefill = linear_grids(graphs[precision, 1]), linear_grids(graphs[precision, length])
    assert decode.keys() == prefill.keys() == set(linear_names(tiny_spec))
    for name, arrays in decode.items():
        for one, other in zip(arrays, prefill[name], strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other), name


@pytest.mark.parametrize("precision", ["a16w8", "a16w4"])
def test_graph_holds_the_encodings_and_the_rounded_weights(graphs, encodings, tiny_checkpoint, precision):
    weights = dict(load_chunk(tiny_checkpoint, 0, 3).named_parameters())
    for name, grids in linear_grids(graphs[precision, 1]).items():
        codes, scales, _, *ends = grids
        encoding = encodings[precision].params[f"{name}.weight"]
        np.testing.assert_allclose(scales, encoding.scale, rtol=1e-6)
        weight = weights[f"{name}.weight"].numpy().astype(np.float64)
        want = np.clip(np.round(weight / encoding.scale[:, None]), encoding.offset[0], -encoding.offset[0] - 1).T
        got = codes.astype(np.float64)
        assert np.abs(got - want).max() <= 1 and (got != want).mean() < 1e-3, name  # ties fall either way
        for end, (scale, zero) in zip(("input", "output"), (ends[:2], ends[2:]), strict=True):
            activation = encodings[precision].activations[f"{name}.{end}"]
            np.testing.assert_allclose(scale, activation.scale.item(), rtol=1e-6)
            assert zero.dtype == np.uint16 and int(zero) == -activation.offset.item()


def test_four_bit_weights_take_four_bits(graphs):
    tensors = onnx.load(graphs["a16w4", 1], load_external_data=False).graph.initializer
    small = [t for t in tensors if t.data_type == onnx.TensorProto.INT4 and len(t.dims) == 2]
    assert len(small) == 3 * 6  # 4 projections and 2 feed-forward matrices a layer


@pytest.mark.parametrize(("precision", "length"), CASES)
def test_tensors_are_named_by_the_contract(graphs, precision, length):
    model = onnx.load(graphs[precision, length], load_external_data=False)
    states = [f"state{i}" for i in range(9)]
    assert [node.name for node in model.graph.input] == ["in", *(f"{name}_in" for name in states)]
    assert [node.name for node in model.graph.output] == ["logits", *(f"{name}_out" for name in states)]


def test_hand_over_is_named_by_the_contract(tiny_checkpoint, tmp_path):
    for first, wanted_in, wanted_out in (
        (0, ["in"], ["out", "v_first_out"]),
        (1, ["in", "v_first_in"], ["out"]),
        (2, ["in", "v_first_in"], ["logits"]),
    ):
        path = export_graph(
            load_chunk(tiny_checkpoint, first, first + 1, embedding=False), 1, tmp_path / f"{first}.onnx"
        )
        model = onnx.load(path, load_external_data=False)
        states = [f"state{i}" for i in range(3 * first, 3 * first + 3)]
        assert [node.name for node in model.graph.input] == [*wanted_in, *(f"{s}_in" for s in states)]
        assert [node.name for node in model.graph.output] == [*wanted_out, *(f"{s}_out" for s in states)]


def test_weights_lie_outside_the_protobuf(graphs):
    for path in graphs.values():
        data = Path(f"{path}.data")
        assert data.is_file() and data.stat().st_size > 20_000
        model = onnx.load(path, load_external_data=False)
        large = [t for t in model.graph.initializer if len(t.raw_data) >= 1024]
        assert not large, "a 7B model's protobuf would pass 2 GB"


def test_last_logits_only(tiny_checkpoint, tmp_path):
    chunk = load_chunk(tiny_checkpoint, 0, 3)
    whole = run_graph(export_graph(chunk, 16, tmp_path / "all.onnx"), list(range(16)), zero_state(chunk.spec, 1))
    last = run_graph(export_graph(chunk, 16, tmp_path / "last.onnx", True), list(range(16)), zero_state(chunk.spec, 1))
    assert last[0].shape == (1, 1, 80)
    np.testing.assert_allclose(last[0][0, 0], whole[0][0, -1], atol=1e-6)


def test_shapes_are_constants(graphs):
    """Shape arithmetic in the graph is what the HTP compiler cannot fold."""
    for path in graphs.values():
        kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        assert kinds.isdisjoint({"Shape", "Loop", "Scan", "If", "Range", "NonZero", "ConstantOfShape"}), path.name
