from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rwkvlab.quant.encodings import Encoding
from rwkvlab.quant.grid import affine_range, channel_scales, round_to_grid, round_to_nearest, symmetric_limits

bits = st.sampled_from([2, 4, 8, 16])
weights = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.floats(-1e4, 1e4, width=32)
)


@given(weights, bits)
def test_rounding_moves_no_weight_by_more_than_half_a_step(array, width):
    weight = torch.from_numpy(array)
    scales = channel_scales(weight, width)
    assert scales.shape == (len(array),) and bool((scales > 0).all())
    error = (round_to_nearest(weight, width) - weight).abs()
    # nothing is clipped: the bound holds for the extreme weights too (1e-6: float32's own rounding)
    assert bool((error <= scales[:, None] * 0.5 * (1 + 1e-6) + weight.abs() * 1e-6).all())


@given(weights, bits)
def test_rounded_weights_lie_on_the_grid(array, width):
    weight = torch.from_numpy(array)
    scales = channel_scales(weight, width)
    once = round_to_grid(weight, scales, width)
    codes = (once / scales[:, None]).round()
    low, high = symmetric_limits(width)
    assert bool((codes >= low).all() and (codes <= high).all())
    assert torch.equal(round_to_grid(once, scales, width), once)


@given(weights, bits)
def test_no_finer_scale_would_do(array, width):
    weight = torch.from_numpy(array)
    low, high = symmetric_limits(width)
    scales = channel_scales(weight, width)
    used = torch.maximum(weight.amax(1) / scales / high, weight.amin(1) / scales / low)
    alive = weight.abs().amax(1) > 1e-20
    assert torch.allclose(used[alive], torch.ones_like(used[alive]))


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5), st.sampled_from([8, 16]), st.floats(0, 1))
def test_affine_grid_covers_its_range_and_holds_zero(one, other, width, share):
    low, high = min(one, other), max(one, other)
    scale, offset = affine_range(low, high, width)
    assert -(2**width - 1) <= offset <= 0  # so that 0 is the code -offset, exactly
    value = low + share * (high - low)
    code = np.clip(np.round(value / scale) - offset, 0, 2**width - 1)
    assert abs((code + offset) * scale - value) <= scale * (0.5 + 1e-6)


def test_known_grids():
    assert symmetric_limits(4) == (-8, 7)
    assert affine_range(-1.0, 1.0, 8) == (2 / 255, -128)
    assert affine_range(0.5, 2.0, 8) == (2 / 255, 0)
    torch.testing.assert_close(channel_scales(torch.tensor([[7.0, -4.0], [3.5, -8.0]]), 4), torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(
        round_to_nearest(torch.tensor([[7.0, -3.4, 0.6, 0.2]]), 4), torch.tensor([[7.0, -3.0, 1.0, 0.0]])
    )


def numpy_quantize(x: np.ndarray, encoding: Encoding) -> np.ndarray:
    """The formula in the encoding's docstring, in float64."""
    shape = (-1, 1) if encoding.scale.size > 1 else ()
    scale, offset = encoding.scale.reshape(shape), encoding.offset.reshape(shape)
    code = np.clip(np.round(x / scale) - offset, 0, 2**encoding.bits - 1)
    return (code + offset) * scale


@pytest.mark.parametrize(("width", "symmetric"), [(4, True), (8, True), (16, False)])
def test_aimet_quantizer_computes_the_encodings_formula(width, symmetric):
    from rwkvlab.quant.quantize import weight_encoding
    from rwkvlab.quant.sim import _quantizer

    rng = np.random.default_rng(width)
    x = (rng.standard_normal((6, 500)) * np.exp(rng.uniform(-3, 3, (6, 1)))).astype(np.float32)
    if symmetric:
        encoding = weight_encoding(torch.from_numpy(x), width)
    else:
        scale, offset = affine_range(float(x.min()) / 2, float(x.max()) / 2, width)  # half the values clip
        encoding = Encoding(width, False, np.array([scale]), np.array([offset]))
    got = _quantizer(encoding, channels=symmetric)(torch.from_numpy(x)).numpy()
    want = numpy_quantize(x.astype(np.float64), encoding)
    step = encoding.scale.reshape(-1, 1)
    # float32 against float64: values within 1e-6, but for the few that lie on the border between two codes
    off = np.abs(got - want) > np.maximum(np.abs(want) * 1e-6, step * 1e-2)
    assert off.mean() < 0.005 and bool((np.abs(got - want) <= step * 1.01).all())
