from __future__ import annotations

import numpy as np
import pytest
import torch

from rwkvlab.errors import RwkvlabError
from rwkvlab.model.load import load_chunk
from rwkvlab.model.rwkv import Model
from rwkvlab.quant.encodings import Encoding, Encodings
from rwkvlab.quant.grid import round_to_nearest
from rwkvlab.quant.sim import aimet_config, simulate
from rwkvlab.quant.torch_source import TorchSource
from tests.pipeline import encodings_of, token_rows


@pytest.fixture(scope="module", params=["a16w8", "a16w4"])
def precision(request):
    return request.param


@pytest.fixture(scope="module")
def encodings(tiny_checkpoint, precision) -> Encodings:
    return encodings_of(tiny_checkpoint, precision)


@pytest.fixture(scope="module")
def tokens(tiny_checkpoint) -> torch.Tensor:
    """Text that calibration saw, so that nothing clips."""
    return torch.from_numpy(token_rows(tiny_checkpoint)[:2])


def logits(chunk, tokens) -> torch.Tensor:
    return Model([chunk])(tokens)[0]


def test_weights_on_the_grid_and_little_else(tiny_checkpoint, encodings, tokens):
    """16-bit activations cost next to nothing: QuantSim is close to a float model whose weights are rounded."""
    rounded = load_chunk(tiny_checkpoint, 0, 3)
    for name, parameter in rounded.named_parameters():
        if name in encodings.params:
            parameter.copy_(round_to_nearest(parameter, encodings.params[name].bits))
    got = logits(simulate(load_chunk(tiny_checkpoint, 0, 3), encodings, 75), tokens)
    rounding = (logits(rounded, tokens) - logits(load_chunk(tiny_checkpoint, 0, 3), tokens)).abs().max()
    assert (got - logits(rounded, tokens)).abs().max() < 0.25 * rounding


def test_every_quantized_linear_is_simulated_and_nothing_else(tiny_checkpoint, encodings, precision):
    from aimet_torch.nn import QuantizationMixin

    chunk = simulate(load_chunk(tiny_checkpoint, 0, 3), encodings, 75)
    quantizers = {
        name: [*module.input_quantizers, *module.param_quantizers.values(), *module.output_quantizers]
        for name, module in chunk.named_modules()
        if isinstance(module, QuantizationMixin)
    }
    active = {name for name, found in quantizers.items() if any(found)}
    assert all(all(quantizers[name]) for name in active), "input, weight and output of each"
    assert {f"{name}.weight" for name in active} == encodings.params.keys()


def test_no_encodings_leave_the_chunk_float(tiny_checkpoint, tokens):
    chunk = simulate(load_chunk(tiny_checkpoint, 0, 3), Encodings(), 75)
    torch.testing.assert_close(logits(chunk, tokens), logits(load_chunk(tiny_checkpoint, 0, 3), tokens))


def test_nothing_is_left_to_train(tiny_checkpoint, encodings, tokens):
    """Else every forward pass outside no_grad would keep all its intermediate results."""
    chunk = simulate(load_chunk(tiny_checkpoint, 0, 3), encodings, 75)
    assert not logits(chunk, tokens).requires_grad


def test_chunks_are_simulated_alike(tiny_checkpoint, encodings, tokens):
    ids = [*tokens.tolist(), [0, 7]]
    one = dict(TorchSource(tiny_checkpoint, encodings).logits(ids))
    three = dict(TorchSource(tiny_checkpoint, encodings, chunks=3).logits(ids))
    for index, scores in one.items():
        assert np.array_equal(scores, three[index])


def test_missing_and_misfitting_encodings_are_named(tiny_checkpoint, encodings):
    name = "blocks.1.ffn.key"
    partial = Encodings(encodings.params, {k: e for k, e in encodings.activations.items() if k != f"{name}.output"})
    with pytest.raises(RwkvlabError, match=rf"no encoding of '{name}\.output'"):
        simulate(load_chunk(tiny_checkpoint, 0, 3), partial, 75)
    e = encodings.params[f"{name}.weight"]
    cut = Encoding(e.bits, True, e.scale[:9], e.offset[:9])
    short = Encodings(encodings.params | {f"{name}.weight": cut}, encodings.activations)
    with pytest.raises(RwkvlabError, match=rf"{name}\.weight.*9 channels.*96"):
        simulate(load_chunk(tiny_checkpoint, 0, 3), short, 75)
    several = Encodings(encodings.params, encodings.activations | {f"{name}.input": e})
    with pytest.raises(RwkvlabError, match=rf"{name}\.input.*96"):
        simulate(load_chunk(tiny_checkpoint, 0, 3), several, 75)


@pytest.mark.parametrize("arch", [73, 75, 79])
def test_aimet_knows_every_arch_we_offer(arch):
    assert aimet_config(arch).is_file()


def test_unknown_arch_is_refused():
    with pytest.raises(RwkvlabError, match=r"v12.*v75"):
        aimet_config(12)


def test_nothing_to_run_is_nothing(tiny_checkpoint):
    assert list(TorchSource(tiny_checkpoint).logits([])) == []


def test_ids_outside_the_vocabulary_are_refused(tiny_checkpoint):
    with pytest.raises(RwkvlabError, match="0 to 79"):
        list(TorchSource(tiny_checkpoint).logits([[0, 80]]))
