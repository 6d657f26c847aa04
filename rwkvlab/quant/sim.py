"""AIMET's QuantSim around a chunk: the quantized model, in torch, before anything is compiled."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rwkvlab.errors import RwkvlabError
from rwkvlab.model.rwkv import Chunk, zero_state
from rwkvlab.quant.encodings import Encoding, Encodings

ARCHS_WITH_CONFIG = (68, 69, 73, 75, 79, 81)


def simulate(chunk: Chunk, encodings: Encodings, htp_arch: int) -> Chunk:
    """Replace the chunk's linears by quantized ones, in place.

    AIMET's QuantSim is built with its configuration for that HTP generation; then every quantizer that the recipe's
    islands leave float is removed, and the others get exactly the encodings' grids.

    Args:
        chunk: a float chunk.
        encodings: of the whole model or of this chunk; empty leaves the chunk float.
        htp_arch: HTP generation, e.g. 75.

    Returns:
        the chunk, its linears simulated.

    Raises:
        RwkvlabError: an encoding is missing, or does not fit the weight it names.
    """
    names = [name for name, module in chunk.named_modules() if isinstance(module, nn.Linear)]
    quantized = [name for name in names if f"{name}.weight" in encodings.params]
    if not quantized:
        return chunk
    _check_complete(chunk, quantized, encodings)
    modules = dict(_quantsim(chunk, htp_arch).named_modules())
    for module in modules.values():
        _remove_quantizers(module)
    for name in quantized:
        _set_quantizers(modules[name], name, encodings)
    return chunk.eval().requires_grad_(False)


def dummy_inputs(chunk: Chunk, tokens: int) -> tuple[Tensor, ...]:
    """Inputs of the right shapes for one execution over `tokens` tokens, batch 1."""
    spec = chunk.spec
    x = torch.zeros(1, tokens, dtype=torch.int32) if chunk.emb is not None else torch.zeros(1, tokens, spec.n_embd)
    v_first = [torch.zeros(1, tokens, spec.n_embd)] if chunk.takes_v_first else []
    return (x, *v_first, *zero_state(spec, 1, "cpu", chunk.first, chunk.last))


def aimet_config(htp_arch: int) -> Path:
    """AIMET's QuantSim configuration for one HTP generation.

    Raises:
        RwkvlabError: AIMET has none for it.
    """
    import aimet_torch

    path = Path(aimet_torch.__file__).parent / "common" / "quantsim_config" / f"htp_quantsim_config_v{htp_arch}.json"
    if not path.is_file():
        raise RwkvlabError(
            f"AIMET has no configuration for HTP v{htp_arch}",
            ", ".join(f"v{a}" for a in ARCHS_WITH_CONFIG),
            "pick another SoC",
        )
    return path


@contextmanager
def quiet_aimet() -> Iterator[None]:
    """Silence AIMET's progress lines and torch's tracer warnings, which users can do nothing about."""
    logger = logging.getLogger("Quant")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import aimet_torch.quantsim  # noqa: F401 - importing sets the logger's level

            logger.setLevel(logging.ERROR)
            yield
        finally:
            logger.setLevel(level)


def _quantsim(chunk: Chunk, htp_arch: int) -> Any:
    with quiet_aimet():
        from aimet_torch.quantsim import QuantizationSimModel

        sim = QuantizationSimModel(
            chunk,
            dummy_input=dummy_inputs(chunk, 1),
            config_file=str(aimet_config(htp_arch)),
            default_output_bw=16,
            default_param_bw=8,
            in_place=True,
        )
    return sim.model


def _remove_quantizers(module: nn.Module) -> None:
    from aimet_torch.nn import QuantizationMixin

    if isinstance(module, QuantizationMixin):
        holders: list[Any] = [module.input_quantizers, module.output_quantizers]
        for holder in holders:
            for index in range(len(holder)):
                holder[index] = None
        weights: Any = module.param_quantizers
        for name in list(weights):
            weights[name] = None


def _set_quantizers(module: Any, name: str, encodings: Encodings) -> None:
    module.param_quantizers["weight"] = _quantizer(encodings.params[f"{name}.weight"], channels=True)
    module.input_quantizers[0] = _quantizer(encodings.activations[f"{name}.input"], channels=False)
    module.output_quantizers[0] = _quantizer(encodings.activations[f"{name}.output"], channels=False)


def _quantizer(encoding: Encoding, channels: bool) -> nn.Module:
    from aimet_torch.quantization.affine import QuantizeDequantize

    shape = (encoding.scale.size, 1) if channels else ()
    low, high = (
        (0, 2**encoding.bits - 1)
        if not encoding.symmetric
        else (-(2 ** (encoding.bits - 1)), 2 ** (encoding.bits - 1) - 1)
    )
    quantizer = QuantizeDequantize(shape, qmin=low, qmax=high, symmetric=encoding.symmetric)
    minimum, maximum = (torch.tensor(v, dtype=torch.float32).reshape(shape) for v in (encoding.low, encoding.high))
    quantizer.set_range(minimum, maximum)
    return quantizer.requires_grad_(False)


def _check_complete(chunk: Chunk, quantized: list[str], encodings: Encodings) -> None:
    weights = dict(chunk.named_parameters())
    for name in quantized:
        rows, scales = weights[f"{name}.weight"].shape[0], encodings.params[f"{name}.weight"].scale.size
        if scales != rows:
            raise RwkvlabError(
                f"encoding of '{name}.weight' has {scales} channels",
                f"{rows}, the weight's rows",
                "use encodings made for this model",
            )
        for end in ("input", "output"):
            _check_activation(f"{name}.{end}", encodings)


def _check_activation(name: str, encodings: Encodings) -> None:
    if name not in encodings.activations:
        raise RwkvlabError(
            f"no encoding of '{name}'", "input and output of every quantized linear", "run rwkvlab quantize again"
        )
    if (scales := encodings.activations[name].scale.size) != 1:
        raise RwkvlabError(f"encoding of '{name}' has {scales} scales", "one", "correct that entry")
