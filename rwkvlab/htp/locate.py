"""Finding where four implementations of the same chunk part ways: torch float, QuantSim, the Q/DQ graph on ONNX
Runtime's CPU, and the HTP.

Each is run on the same tokens with the output of every norm, linear and block laid bare. Two neighbours agree up to
some tensor; the first one past the threshold is where to look. Laying tensors bare changes what the HTP compiler may
fuse, so a fault that only fusion shows can hide here: the comparison of the logits is without probes' help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.graph import export_graph
from rwkvlab.htp.compile import compile_context
from rwkvlab.htp.session import HtpSession
from rwkvlab.model.load import load_chunk
from rwkvlab.model.rwkv import Chunk, zero_state
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.sim import simulate
from rwkvlab.soc import Soc
from rwkvlab.tokenizer import check_sequences

FLOAT, SIM, CPU, HTP = "torch-fp32", "torch-sim", "qdq-cpu", "htp-sim"
PAIRS = ((FLOAT, SIM), (SIM, CPU), (CPU, HTP))
THRESHOLDS = {(FLOAT, SIM): 0.1, (SIM, CPU): 1e-3, (CPU, HTP): 2e-2}
"""Relative RMS errors that are no longer rounding. 4-bit weights alone cost several percent, so 0.1 between float and
QuantSim; QuantSim and the Q/DQ graph share their grids and differ by a code of 16 bits here and there, 1e-3; the HTP
computes in float16 (2^-11 an operation, a hundred of them in a row) between the linears, 2e-2."""


@dataclass(frozen=True)
class Difference:
    """Relative RMS error of one tensor for each pair of implementations: rms(other - reference) / rms(reference)."""

    tensor: str
    errors: dict[tuple[str, str], float]


@dataclass(frozen=True)
class Located:
    """Differences of all probed tensors in forward order."""

    differences: list[Difference]

    def first(self, pair: tuple[str, str], threshold: float | None = None) -> str | None:
        """The first tensor at which `pair` differs by more than its threshold; None where it never does."""
        limit = THRESHOLDS[pair] if threshold is None else threshold
        return next((d.tensor for d in self.differences if not d.errors[pair] <= limit), None)

    def render(self) -> str:
        """A table for the terminal, and the first parting of each pair."""
        width = max(len(d.tensor) for d in self.differences)
        titles = [f"{a} | {b}" for a, b in PAIRS]
        lines = [f"{'':{width}}  " + "  ".join(f"{title:>22}" for title in titles)]
        for d in self.differences:
            marks = (f"{d.errors[p]:.2e}{'*' if d.errors[p] > THRESHOLDS[p] else ' '}" for p in PAIRS)
            lines.append(f"{d.tensor:{width}}  " + "  ".join(f"{mark:>22}" for mark in marks))
        for pair, title in zip(PAIRS, titles, strict=True):
            lines.append(f"{title}: {self.first(pair) or 'agree'} (threshold {THRESHOLDS[pair]:g})")
        return "\n".join(lines)


def locate(
    checkpoint: Checkpoint,
    encodings: Encodings,
    tokens: Sequence[int],
    soc: Soc,
    folder: Path,
) -> Located:
    """Run one block of tokens through all four implementations and compare them tensor by tensor.

    Args:
        checkpoint: the model.
        encodings: its encodings; empty for fp16.
        tokens: one prefill block, a multiple of 16 from 32 on.
        soc: what to compile for.
        folder: receives the probed graph and its context.

    Raises:
        RwkvlabError: an unsuitable number of tokens, ids that are not the model's, or a refused graph.
    """
    check_sequences([tokens], checkpoint.spec.vocab_size)
    if len(tokens) < 32 or len(tokens) % 16:
        raise RwkvlabError(f"{len(tokens)} tokens to compare", "32, 48, 64, ...", "cut or lengthen the text")
    last = checkpoint.spec.n_layer
    plain = Probed(load_chunk(checkpoint, 0, last))
    simulated = Probed(simulate(load_chunk(checkpoint, 0, last), encodings, soc.htp_arch))
    graph = export_graph(simulated, len(tokens), folder / "probed.onnx")  # type: ignore[arg-type]
    compiled = compile_context(graph, folder, "probed_context", soc)
    feeds = _feeds(simulated, tokens)
    results = {
        FLOAT: _run_torch(plain, tokens),
        SIM: _run_torch(simulated, tokens),
        CPU: _run_cpu(graph, feeds),
        HTP: HtpSession(compiled.wrapper).run(feeds),
    }
    probes = zip(simulated.probed, simulated.probe_names, strict=True)
    return Located([Difference(name, _errors(results, probe)) for name, probe in probes])


class Probed(nn.Module):
    """A chunk that also returns the outputs of its norms, linears and blocks.

    Behaves as a chunk for exporting: same attributes, with the probes' names added to `output_names`.
    """

    def __init__(self, chunk: Chunk) -> None:
        super().__init__()
        self.chunk, self.spec, self.first, self.emb = chunk, chunk.spec, chunk.first, chunk.emb
        self.last, self.last_logits_only, self.takes_v_first = chunk.last, False, chunk.takes_v_first
        self._seen: dict[str, Tensor] = {}
        for name, module in chunk.named_modules():
            if _is_probed(name, module):
                module.register_forward_hook(self._keep(name))

    @property
    def input_names(self) -> list[str]:
        """The chunk's."""
        return self.chunk.input_names

    @property
    def output_names(self) -> list[str]:
        """The chunk's and the probes'."""
        return self.chunk.output_names + self.probe_names

    @property
    def probed(self) -> list[str]:
        """Names of the probed modules, in the order they run."""
        if not self._seen:
            with torch.no_grad():
                self.chunk(torch.zeros(1, 1, dtype=torch.long), *zero_state(self.spec, 1, "cpu", self.first, self.last))
        return list(self._seen)

    @property
    def probe_names(self) -> list[str]:
        """Their outputs' names in the graph, in the same order."""
        return [f"probe_{name.replace('.', '_')}" for name in self.probed]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The chunk's results, then the probes'."""
        self._seen.clear()
        results = self.chunk(*inputs)
        return (*results, *self._seen.values())

    def _keep(self, name: str):
        def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            first = output if isinstance(output, Tensor) else output[0]
            self._seen[name] = first + 0  # a tensor of its own: one graph output cannot be another's

        return hook


def _is_probed(name: str, module: nn.Module) -> bool:
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("a1", "v1"):  # a linear that leads straight into another: the HTP wants no third party between them
        return False
    return isinstance(module, nn.Linear) or leaf in ("ln1", "ln2", "ln_out", "ln_x", "att", "ffn")


def _feeds(probed: Probed, tokens: Sequence[int]) -> dict[str, np.ndarray]:
    states = zero_state(probed.spec, 1, "cpu", probed.first, probed.last)
    values = [np.array([tokens], np.int32), *(state.numpy() for state in states)]
    return dict(zip(probed.input_names, values, strict=True))


@torch.no_grad()
def _run_torch(probed: Probed, tokens: Sequence[int]) -> dict[str, np.ndarray]:
    names = probed.output_names
    states = zero_state(probed.spec, 1, "cpu", probed.first, probed.last)
    return {n: v.numpy() for n, v in zip(names, probed(torch.tensor([list(tokens)]), *states), strict=True)}


def _run_cpu(graph: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(graph), options, ["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]
    return {name: np.asarray(value) for name, value in zip(names, session.run(names, feeds), strict=True)}


def _errors(results: dict[str, dict[str, np.ndarray]], name: str) -> dict[tuple[str, str], float]:
    return {(a, b): _relative(results[a][name], results[b][name]) for a, b in PAIRS}


def _relative(reference: np.ndarray, other: np.ndarray) -> float:
    scale = float(np.sqrt(np.square(reference, dtype=np.float64).mean()))
    return float(np.sqrt(np.square(other.astype(np.float64) - reference).mean())) / max(scale, 1e-12)
