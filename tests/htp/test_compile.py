from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.compile import Traffic, compile_context, parse_traffic, provider_options
from rwkvlab.htp.session import HtpSession
from rwkvlab.soc import SOCS, find_soc

SM8650 = find_soc("SM8650")


def save_graph(path: Path, nodes, outputs: dict[str, tuple[int, ...]], constants: dict[str, np.ndarray]) -> Path:
    """A graph from `x` [1, 4, 8]."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, weight):
    folder = tmp_path_factory.mktemp("compiled")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return compile_context(
        save_graph(folder / "m.onnx", [node], {"y": (1, 4, 16)}, {"w": weight}), folder / "c", "m", SM8650
    )


def test_a_compiled_graph_runs(compiled, weight):
    session = HtpSession(compiled.wrapper)
    assert session.inputs == {"x": (1, 4, 8)} and session.outputs == ["y"]
    x = np.random.default_rng(1).standard_normal((1, 4, 8)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], x @ weight, atol=0.02)


def test_files_carry_the_given_name(compiled):
    assert sorted(path.name for path in compiled.binary.parent.iterdir()) == ["m.bin", "m.log", "m.onnx"]
    assert (compiled.binary.name, compiled.wrapper.name, compiled.log.name) == ("m.bin", "m.onnx", "m.log")


def test_compiler_reports_traffic_operations_and_build(compiled):
    assert compiled.traffic.read > 8 * 16 and compiled.traffic.write > 0
    assert sum(compiled.ops.values()) >= 1 and compiled.sdk_build.startswith("v2.")


def test_session_refuses_what_it_was_not_compiled_for(compiled):
    session, x = HtpSession(compiled.wrapper), np.zeros((1, 4, 8), np.float32)
    with pytest.raises(RwkvlabError, match=r"m: inputs \['x'\]"):
        session.run({})
    with pytest.raises(RwkvlabError, match=r"inputs \['state9_in'\]"):
        session.run({"x": x, "state9_in": x})
    with pytest.raises(RwkvlabError, match=r"input x has shape \(1, 5, 8\).*\(1, 4, 8\)"):
        session.run({"x": np.zeros((1, 5, 8), np.float32)})


def test_refused_nodes_are_named_and_nothing_is_left(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="fine"),
        helper.make_node("Det", ["r2"], ["d"], name="odd_one"),
        helper.make_node("Slice", ["r", "s0", "s1", "s2"], ["r2"], name="cut"),
    ]
    nodes = [nodes[0], nodes[2], nodes[1]]
    constants = {"s0": np.array([0]), "s1": np.array([4]), "s2": np.array([2])}
    path = save_graph(tmp_path / "bad.onnx", nodes, {"d": (1,)}, constants)
    with pytest.raises(RwkvlabError) as caught:
        compile_context(path, tmp_path / "c", "bad", SM8650)
    message = str(caught.value)
    assert "odd_one (Det)" in message and "fine" not in message and "SM8650" in message and "\n" not in message
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["bad.log"], "the full log is kept, nothing else"
    assert "odd_one" in (tmp_path / "c" / "bad.log").read_text(errors="replace")


@pytest.mark.parametrize("content", [b"", b"not onnx at all", None], ids=["empty", "text", "absent"])
def test_files_that_are_no_graph_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(RwkvlabError, match=r"g\.onnx"):
        compile_context(tmp_path / "g.onnx", tmp_path / "c", "g", SM8650)
    assert not list((tmp_path / "c").glob("*.bin"))


SUMMARY = """
DDR bandwidth summary:
spill_bytes=10
fill_bytes=20
write_total_bytes=300
read_total_bytes=4000
"""


def test_traffic_is_read_from_the_summary(tmp_path):
    assert parse_traffic(f"read_total_bytes=1\nnoise\n{SUMMARY}tail\n", tmp_path) == Traffic(4000, 300, 10, 20)


def test_a_graph_cut_in_two_is_not_counted_by_its_last_part(tmp_path):
    with pytest.raises(RwkvlabError, match="several graphs of one"):
        parse_traffic(f"{SUMMARY}{SUMMARY}", tmp_path)


@pytest.mark.parametrize("missing", ["", "DDR bandwidth summary", "spill_", "fill_", "write_", "read_"])
def test_absent_traffic_is_an_error_never_a_guess(tmp_path, missing):
    log = "\n".join(line for line in SUMMARY.splitlines() if not missing or missing not in line) if missing else ""
    with pytest.raises(RwkvlabError, match=r"no complete DDR bandwidth summary.*x\.log"):
        parse_traffic(log, tmp_path / "x.log")


def test_silent_compiler_leaves_no_binary(tmp_path, weight, monkeypatch):
    """A later onnxruntime-qnn prints no summary: no context may come out of it as if all were well."""
    import rwkvlab.htp.compile as module

    def run(work, onnx_file, soc, log, severity):
        (work / "context.onnx").write_bytes(b"x")
        log.write_text("all went well\n")
        return 0

    monkeypatch.setattr(module, "_run_compiler", run)
    with pytest.raises(RwkvlabError, match="no complete DDR"):
        compile_context(tmp_path / "m.onnx", tmp_path / "c", "m", SM8650)
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["m.log"]


def test_crash_is_one_error(tmp_path, monkeypatch):
    import rwkvlab.htp.compile as module

    monkeypatch.setattr(module, "_run_compiler", lambda work, onnx_file, soc, log, severity: log.write_text("") - 11)
    with pytest.raises(RwkvlabError, match=r"signal 11.*--chunks"):
        compile_context(tmp_path / "m.onnx", tmp_path / "c", "m", SM8650)


@pytest.mark.parametrize("soc", SOCS.values(), ids=SOCS)
def test_options_name_the_chip(soc):
    options = provider_options(soc)
    assert (options["soc_model"], options["htp_arch"]) == (str(soc.qnn_id), str(soc.htp_arch))
    assert options["enable_htp_fp16_precision"] == "1" and ("vtcm_mb" in options) == (soc.vtcm_mb is not None)
