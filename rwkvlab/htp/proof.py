"""A proof that the compiler and the simulator work here: one layer, compiled, run and compared with numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rwkvlab.htp.compile import Compiled, compile_context
from rwkvlab.htp.session import HtpSession
from rwkvlab.soc import Soc


@dataclass(frozen=True)
class Proof:
    """What became of y = x W.

    Attributes:
        width: W is [width, width].
        weight_bytes: of W in float16.
        expected: y by numpy in float64, [width].
        got: y by the HTP, simulated on a PC.
        compiled: the context binary and its memory traffic.
    """

    width: int
    weight_bytes: int
    expected: np.ndarray
    got: np.ndarray
    compiled: Compiled

    @property
    def ddr_bytes(self) -> int:
        """Read and written in one execution, from the compiler."""
        return self.compiled.traffic.read + self.compiled.traffic.write

    @property
    def error(self) -> float:
        """Largest difference; fp16 gives a few thousandths on outputs around 1."""
        return float(np.abs(self.got - self.expected).max())


def prove(folder: Path, soc: Soc, width: int = 128, seed: int = 0) -> Proof:
    """Compile one layer for `soc` into `folder`, run it, and compute the same with numpy.

    Raises:
        RwkvlabError: the compiler or the runtime does not work here; the message says which part.
    """
    generator = np.random.default_rng(seed)
    weight = (generator.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    x = generator.standard_normal((1, width)).astype(np.float32)
    graph = _write_layer(weight, folder / f"proof{width}_float.onnx")
    compiled = compile_context(graph, folder, f"proof{width}", soc)
    got = HtpSession(compiled.wrapper).run({"x": x})["y"][0]
    expected = (x.astype(np.float64) @ weight)[0]
    return Proof(width, 2 * weight.size, expected, got, compiled)


def _write_layer(weight: np.ndarray, path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = len(weight)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("x", "y")]
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([product], "proof", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path
