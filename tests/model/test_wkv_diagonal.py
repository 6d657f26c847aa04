"""The WKV of RWKV-5 and 6 in segments equals its steps, and both equal the paper's formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkvlab.model.segments import SEGMENT, to_segments
from rwkvlab.model.wkv_diagonal import segment_decays, wkv_segments, wkv_step

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
FASTEST = {"slow": 1e-6, "ordinary": 1.0, "fast": 9.7, "instant": 200.0}  # RWKV-6's log-decay goes below -9.7 a step


def inputs(seed: int, length: int, decay: str, batch: int = 2, heads: int = 2, size: int = 8):
    rng = np.random.default_rng(seed)
    shape = (batch, length, heads, size)
    r, k, v = (rng.standard_normal(shape) for _ in range(3))
    log_w = -FASTEST[decay] * rng.uniform(0, 1, shape)
    return rng.standard_normal((batch, heads, size, size)), r, log_w, k, v, rng.standard_normal((heads, size))


def formula(state, r, log_w, k, v, u):
    """arXiv 2404.05892, element by element: y_t = r_t (S + diag(u) k v^T); S' = diag(w) S + k v^T."""
    y, s = np.zeros(r.shape), state.copy()
    for n, t, h in np.ndindex(*r.shape[:3]):
        outer = np.outer(k[n, t, h], v[n, t, h])
        y[n, t, h] = r[n, t, h] @ (s[n, h] + u[h][:, None] * outer)
        s[n, h] = np.exp(log_w[n, t, h])[:, None] * s[n, h] + outer
    return y, s


def error(got, want) -> float:
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=25)
@given(
    length=st.integers(1, 70), split=st.integers(0, 70), decay=st.sampled_from(sorted(FASTEST)), seed=st.integers(0, 99)
)
def test_segments_in_any_split_equal_the_formula(dtype, length, split, decay, seed):
    state, r, log_w, k, v, u = inputs(seed, length, decay)
    want_y, want_s = formula(state, r, log_w, k, v, u)
    tensors = [torch.tensor(x, dtype=dtype) for x in (r, log_w, k, v)]
    s, bonus, rows = torch.tensor(state, dtype=dtype), torch.tensor(u, dtype=dtype), []
    for part in (slice(0, min(split, length)), slice(min(split, length), length)):
        if tensors[0][:, part].shape[1]:
            pr, pw, pk, pv = (x[:, part] for x in tensors)
            y, s = wkv_segments(s, pr, pk, pv, bonus, segment_decays(to_segments(pw)))
            rows.append(y)
    assert error(torch.cat(rows, 1), want_y) < TOLERANCE[dtype]
    assert error(s, want_s) < TOLERANCE[dtype]


def test_steps_equal_the_formula():
    state, r, log_w, k, v, u = inputs(3, 20, "ordinary")
    want_y, want_s = formula(state, r, log_w, k, v, u)
    tensors = [torch.tensor(x) for x in (r, np.exp(log_w), k, v)]
    s, rows = torch.tensor(state), []
    for t in range(20):
        y, s = wkv_step(s, *(x[:, t] for x in tensors), torch.tensor(u))
        rows.append(y)
    assert error(torch.stack(rows, 1), want_y) < 1e-12
    assert error(s, want_s) < 1e-12


def test_constant_decays_computed_once_equal_those_of_every_row():
    """RWKV-5 keeps its decays as constants of one segment."""
    state, r, _, k, v, u = inputs(5, 3 * SEGMENT, "ordinary")
    log_w = -np.random.default_rng(1).uniform(0, 2, u.shape)
    want_y, want_s = formula(state, r, np.broadcast_to(log_w, r.shape), k, v, u)
    constant = segment_decays(torch.tensor(log_w)[None, :, None].expand(1, -1, SEGMENT, -1))
    y, s = wkv_segments(*(torch.tensor(x) for x in (state, r, k, v, u)), constant)
    assert error(y, want_y) < 1e-12
    assert error(s, want_s) < 1e-12


def test_no_exponent_is_positive_so_float16_holds_every_decay():
    _, _, log_w, _, _, _ = inputs(7, 64, "fast")
    decays = segment_decays(to_segments(torch.tensor(log_w, dtype=torch.float16)))
    for part in (decays.between, decays.before, decays.after, decays.whole):
        assert torch.isfinite(part).all()
        assert part.max() <= 1
