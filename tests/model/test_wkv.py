"""The chunk-parallel WKV-7 equals the step form, and both equal the paper's formula."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkvlab.model.wkv import wkv7, wkv7_step

SLOWEST_DECAY, FASTEST_DECAY = 0.0, -math.exp(-0.5)  # log w: from 1 down to 0.545
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def inputs(seed: int, length: int, decay: str, keys: str, batch: int = 2, heads: int = 2, size: int = 8):
    """State and (r, log_w, k, v, a, b) of a head as the model makes them: unit keys, rates within 0 to 1."""
    rng = np.random.default_rng(seed)
    shape = (batch, length, heads, size)
    ranges = {"slow": (0.0, 1e-6), "fast": (1 - 1e-6, 1.0), "mixed": (0.0, 1.0)}
    log_w = FASTEST_DECAY * rng.uniform(*ranges[decay], shape)
    kk = rng.standard_normal(shape)
    rate = rng.uniform(0, 1, shape)
    if keys == "repeated":  # the longest powers of A, the hardest case for its inverse
        kk[:], rate[:] = kk[:, :1], 1.0
    kk /= np.linalg.norm(kk, axis=-1, keepdims=True)
    r, k, v = (rng.standard_normal(shape) for _ in range(3))
    if keys == "repeated":
        k = kk
    return rng.standard_normal((batch, heads, size, size)), (r, log_w, k, v, -kk, kk * rate)


def formula(state: np.ndarray, r, log_w, k, v, a, b) -> tuple[np.ndarray, np.ndarray]:
    """RWKV-7, element by element: S_t = S_{t-1} (diag(w) + a b^T) + v k^T; y = S r. No matrix library."""
    batch, length, heads, _ = r.shape
    y, s = np.zeros(r.shape), state.copy()
    for n, t, h in np.ndindex(batch, length, heads):
        turn = np.diag(np.exp(log_w[n, t, h])) + np.outer(a[n, t, h], b[n, t, h])
        s[n, h] = s[n, h] @ turn + np.outer(v[n, t, h], k[n, t, h])
        y[n, t, h] = s[n, h] @ r[n, t, h]
    return y, s


def steps(state, tensors):
    rows = []
    for t in range(tensors[0].shape[1]):
        y, state = wkv7_step(state, *(x[:, t] for x in tensors))
        rows.append(y)
    return torch.stack(rows, 1), state


def relative_error(got, want) -> float:
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.abs(got - want).max() / np.abs(want).max())


cases = {
    "seed": st.integers(0, 2**32 - 1),
    "length": st.integers(1, 70),
    "decay": st.sampled_from(["slow", "fast", "mixed"]),
    "keys": st.sampled_from(["random", "repeated"]),
}


@given(**cases)
@settings(max_examples=30)
def test_steps_follow_the_formula(seed, length, decay, keys):
    state, tensors = inputs(seed, min(length, 12), decay, keys)
    want_y, want_s = formula(state, *tensors)
    y, s = steps(torch.from_numpy(state), [torch.from_numpy(x) for x in tensors])
    assert relative_error(y, want_y) < 1e-12 and relative_error(s, want_s) < 1e-12


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@given(**cases, cuts=st.lists(st.integers(0, 70), max_size=4))
@settings(max_examples=120)
def test_any_length_in_any_pieces_equals_steps(dtype, seed, length, decay, keys, cuts):
    state, tensors = inputs(seed, length, decay, keys)
    want_y, want_s = steps(torch.from_numpy(state), [torch.from_numpy(x) for x in tensors])
    s, given_ = torch.from_numpy(state).to(dtype), [torch.from_numpy(x).to(dtype) for x in tensors]
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    pieces = []
    for start, end in pairwise(edges):
        y, s = wkv7(s, *(x[:, start:end] for x in given_))
        pieces.append(y)
    assert relative_error(torch.cat(pieces, 1), want_y) < TOLERANCE[dtype]
    assert relative_error(s, want_s) < TOLERANCE[dtype]


def test_chunked_form_follows_the_formula():
    state, tensors = inputs(5, 37, "mixed", "random")
    want_y, want_s = formula(state, *tensors)
    y, s = wkv7(torch.from_numpy(state), *(torch.from_numpy(x) for x in tensors))
    assert relative_error(y, want_y) < 1e-9 and relative_error(s, want_s) < 1e-9


@pytest.mark.parametrize(("decay", "keys"), [("mixed", "random"), ("slow", "repeated"), ("fast", "repeated")])
def test_half_precision_suffices(decay, keys):
    """What the HTP computes in: the ratios of decays do not overflow, the inverse does not lose its digits."""
    state, tensors = inputs(6, 32, decay, keys, size=16)
    want_y, _ = steps(torch.from_numpy(state), [torch.from_numpy(x) for x in tensors])
    y, s = wkv7(torch.from_numpy(state).half(), *(torch.from_numpy(x).half() for x in tensors))
    assert torch.isfinite(s).all() and relative_error(y.float(), want_y) < 2e-2


def test_half_precision_survives_overflow_above_the_diagonal():
    """Every decay the fastest and long keys: what the masks drop is infinite in float16, and must not become NaN."""
    state, (r, _, k, v, a, b) = inputs(6, 32, "fast", "random", size=16)
    log_w = np.full(r.shape, FASTEST_DECAY)
    tensors = [torch.from_numpy(x) for x in (4 * r, log_w, 4 * k, v, a, b)]
    want_y, _ = steps(torch.from_numpy(state), tensors)
    y, s = wkv7(torch.from_numpy(state).half(), *(x.half() for x in tensors))
    assert torch.isfinite(s).all() and relative_error(y.float(), want_y) < 2e-2


def test_inputs_stay_as_they_were():
    state, tensors = inputs(7, 20, "mixed", "random")
    given_ = [torch.from_numpy(x.copy()) for x in (state, *tensors)]
    wkv7(*given_)
    assert all(np.array_equal(x, y) for x, y in zip(given_, (state, *tensors), strict=True))
