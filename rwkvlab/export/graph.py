"""From a (quantized) chunk to ONNX graphs: decode, one token, and prefill, T tokens."""

from __future__ import annotations

import gc
import shutil
import tempfile
from pathlib import Path

import torch

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import disk_error
from rwkvlab.model.rwkv import Chunk
from rwkvlab.quant.sim import dummy_inputs, quiet_aimet

OPSET = 21
"""The first ONNX opset whose Q/DQ operators take 4-bit weights and 16-bit activations."""


def export_graph(chunk: Chunk, tokens: int, path: Path, last_logits_only: bool = False) -> Path:
    """Write `chunk` as an ONNX graph over `tokens` tokens, batch 1, with its weights in `<path>.data`.

    Inputs and outputs carry the chunk's tensor names. Quantized linears become Q/DQ pairs around a weight that is
    stored as integers. Any graph of this chunk, whatever its length, has the same weights and encodings.

    Args:
        chunk: float, or as returned by `quant.sim.simulate`.
        tokens: 1 gives the decode graph.
        path: of the .onnx file; replaced if it exists.
        last_logits_only: in the last chunk, score the last position only.

    Raises:
        RwkvlabError: the files cannot be written.
    """
    chunk.last_logits_only = last_logits_only
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as work:
            _trace(chunk, tokens, Path(work) / "traced.onnx")
            gc.collect()  # a trace holds several times the chunk's size in reference cycles
            _save_with_external_data(Path(work) / "traced.onnx", Path(work) / path.name)
            shutil.move(Path(work) / f"{path.name}.data", f"{path}.data")
            shutil.move(Path(work) / path.name, path)
    except OSError as error:
        raise disk_error(path, error) from error
    except RuntimeError as error:
        if "No space left" in str(error) or "PytorchStreamWriter" in str(error):
            raise RwkvlabError(f"cannot write {path}: {error}", "free disk space", f"df -h {path.parent}") from error
        raise
    return path


@torch.no_grad()
def _trace(chunk: Chunk, tokens: int, path: Path) -> None:
    names = {"input_names": chunk.input_names, "output_names": chunk.output_names}
    options = {"opset_version": OPSET, "dynamo": False, **names}
    inputs = dummy_inputs(chunk, tokens)
    with quiet_aimet():
        if _is_quantized(chunk):
            import aimet_torch.onnx

            aimet_torch.onnx.export(chunk, inputs, str(path), prequantize_constants=True, **options)
        else:
            torch.onnx.export(chunk, inputs, str(path), **options)


def _is_quantized(chunk: Chunk) -> bool:
    from aimet_torch.nn import QuantizationMixin

    return any(isinstance(module, QuantizationMixin) for module in chunk.modules())


def _save_with_external_data(source: Path, target: Path) -> None:
    import onnx

    onnx.save(
        onnx.load(source),
        target,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
        size_threshold=1024,
    )
