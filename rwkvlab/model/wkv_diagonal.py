"""The WKV recurrence of RWKV-5 and RWKV-6: one step, and an exact form over segments made of matrix products.

Notation, per head: N is the head size; the state S is [key, value]. With decay w_t and bonus u (arXiv 2404.05892)

    y_t = r_t^T (S_{t-1} + diag(u) k_t v_t^T)          S_t = diag(w_t) S_{t-1} + k_t v_t^T

RWKV-5's w is a constant, RWKV-6's depends on the token and can be as good as 0: decays cannot be divided by one
another, not even in float32. Every exponent below is a sum of log-decays over some rows, never a difference of two
sums, so none is positive, and float16 rounds each relative to itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rwkvlab.model.layers import sizes
from rwkvlab.model.segments import SEGMENT, from_segments, masks, to_segments, transposed


@dataclass(frozen=True)
class SegmentDecays:
    """What decays do within segments; the leading dimensions are [segments * B, H], or [1, H] where they are constant.

    Attributes:
        between: [.., SEGMENT^2, N], for pair (t, s) from just after row s to just before row t; meaningful for s < t.
        before: [.., SEGMENT, N], from the segment's start to just before each row.
        after: [.., SEGMENT, N], from just after each row to the segment's end.
        whole: [.., 1, N], over the whole segment.
    """

    between: Tensor
    before: Tensor
    after: Tensor
    whole: Tensor


def segment_decays(log_w: Tensor) -> SegmentDecays:
    """Decays of segments from their log-decays [.., SEGMENT, N]."""
    constant = masks(log_w.dtype, log_w.device)
    later = transposed(constant.strict)
    return SegmentDecays(
        between=(constant.between @ log_w).exp(),
        before=(constant.strict @ log_w).exp(),
        after=(later @ log_w).exp(),
        whole=log_w.sum(-2, keepdim=True).exp(),
    )


def wkv_step(state: Tensor, r: Tensor, w: Tensor, k: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """One token.

    Args:
        state: S [B, H, N, N], key by value.
        r, k, v: [B, H, N].
        w: decay, [B, H, N] or [H, N].
        u: bonus, [H, N].

    Returns:
        y [B, H, N] and the next state.
    """
    outer = k.unsqueeze(-1) @ v.unsqueeze(-2)
    y = (r.unsqueeze(-2) @ (state + u.unsqueeze(-1) * outer)).squeeze(-2)
    return y, state * w.unsqueeze(-1) + outer


def wkv_segments(
    state: Tensor, r: Tensor, k: Tensor, v: Tensor, u: Tensor, decays: SegmentDecays
) -> tuple[Tensor, Tensor]:
    """T tokens, equal to T steps.

    A padded row has k = 0; where decays depend on the token its log-decay is 0. Constant decays need T to be a multiple
    of SEGMENT.

    Args:
        state: S [B, H, N, N].
        r, k, v: [B, T, H, N].
        u: bonus, [H, N].
        decays: of these rows.

    Returns:
        y [B, T, H, N] and the state after the last token.
    """
    batch, length = sizes(r)[:2]
    # In this layout, not in segments: ONNX Runtime moves the transposes of r and k past their product and then asks the
    # HTP to transpose raw integers, which it refuses.
    now = (r * k * u).sum(-1, keepdim=True) * v
    r, k, v = (to_segments(x) for x in (r, k, v))
    scores = _scores(r, k, decays.between) * masks(r.dtype, r.device).strict
    update = transposed(k * decays.after) @ v

    fade = transposed(decays.whole)
    fades = fade.split(batch) if sizes(fade)[0] > 1 else [fade] * (sizes(update)[0] // batch)
    states = []
    for each_fade, add in zip(fades, update.split(batch), strict=True):
        states.append(state)
        state = state * each_fade + add
    past = torch.cat(states) if len(states) > 1 else states[0]
    y = (r * decays.before) @ past + scores @ v
    return from_segments(y, batch, length) + now, state


def _scores(r: Tensor, k: Tensor, between: Tensor) -> Tensor:
    """sum_i r[t, i] k[s, i] between[t, s, i] -> [n * B, H, SEGMENT, SEGMENT].

    Rows are spread over the pairs (t, s) by products with constants: the HTP refuses most ways of merely moving a
    quantized tensor into more dimensions.
    """
    constant = masks(r.dtype, r.device)
    pairs = ((constant.of_row @ r) * (constant.of_column @ k) * between).sum(-1)
    return pairs.reshape(*sizes(pairs)[:-1], SEGMENT, SEGMENT)
