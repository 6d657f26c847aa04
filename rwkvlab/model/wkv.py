"""The WKV-7 recurrence: one step, and an exact chunk-parallel form made of matrix products.

Notation, per head: N is the head size; rows are time; the state S is [value, key]. With decay w, replacement
key a = -kk and b = kk * (in-context learning rate), RWKV-7 (arXiv 2503.14456, section 4) is

    S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T          y_t = S_t r_t

The chunk-parallel form rests on S_t = (S_0 + sum_{i<=t} (u_i b_i^T + v_i k_i^T) / E_i) * E_t with E_t the product of
the decays up to t and u_t = S_{t-1} a_t. Written with a~ = a E_{t-1}, r~ = r E_t, b^ = b / E, k^ = k / E, the u_t of
one chunk solve a unit-triangular system U = A U + a~ S_0^T + tril(a~ k^^T, -1) V, A = tril(a~ b^^T, -1).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from rwkvlab.model.layers import sizes

CHUNK = 16
"""Rows per chunk. RWKV-7's decay is at least exp(-exp(-0.5)) a step, so 16 steps span e^9.7: halved by taking E
relative to mid-chunk, the ratios stay within what float16 holds."""


def wkv7_step(
    state: Tensor, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """One token.

    Args:
        state: S [B, H, N, N], value by key.
        r, log_w, k, v, a, b: [B, H, N]; log_w is the logarithm of the decay, at most 0.

    Returns:
        y [B, H, N] and the next state.
    """
    removed = state @ a.unsqueeze(-1)
    state = state * log_w.exp().unsqueeze(-2) + removed @ b.unsqueeze(-2) + v.unsqueeze(-1) @ k.unsqueeze(-2)
    return (state @ r.unsqueeze(-1)).squeeze(-1), state


def wkv7(state: Tensor, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """T tokens, equal to T steps (exact algebra, no approximation).

    Args:
        state: S [B, H, N, N].
        r, log_w, k, v, a, b: [B, T, H, N].

    Returns:
        y [B, T, H, N] and the state after the last token.
    """
    batch, length = sizes(r)[:2]
    if length == 1:
        y, state = wkv7_step(state, *(x.squeeze(1) for x in (r, log_w, k, v, a, b)))
        return y.unsqueeze(1), state
    chunked = [_to_chunks(x) for x in (r, log_w, k, v, a, b)]
    y, state = _wkv7_chunks(state, *chunked)
    return _from_chunks(y, batch, length), state


def _wkv7_chunks(
    state: Tensor, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """As `wkv7`, over tensors [n * B, H, CHUNK, N] in time-major order of the n chunks.

    Everything that does not depend on the state is computed for all chunks at once; the loop carries only S.
    """
    masks = _masks(r.dtype, r.device)
    total = masks.lower @ log_w
    middle = total[:, :, CHUNK // 2 - 1 : CHUNK // 2]
    total = total - middle
    grow, shrink = total.exp(), (-total).exp()
    a_in, r_in = a * (total - log_w).exp(), r * grow
    b_out, k_out = (b * shrink), (k * shrink)

    inverse = _inverse_of_one_minus((a_in @ _t(b_out)) * masks.strict, masks.levels)
    from_state = inverse @ a_in
    from_values = inverse @ (((a_in @ _t(k_out)) * masks.strict) @ v)
    read_u = (r_in @ _t(b_out)) * masks.lower
    read_v = (r_in @ _t(k_out)) * masks.lower
    query = r_in + read_u @ from_state
    local = read_u @ from_values + read_v @ v
    transition = _t(from_state) @ b_out
    update = _t(from_values) @ b_out + _t(v) @ k_out

    at_middle, states = middle.exp(), []
    pieces = (x.split(sizes(state)[0]) for x in (at_middle, transition, update, grow[:, :, CHUNK - 1 :]))
    for to_middle, turn, add, to_end in zip(*pieces, strict=True):
        state = state * to_middle
        states.append(state)
        state = (state + state @ turn + add) * to_end
    before = torch.cat(states) if len(states) > 1 else states[0]
    return query @ _t(before) + local, state


def _inverse_of_one_minus(lower: Tensor, levels: tuple[Tensor, ...]) -> Tensor:
    """(I - A)^-1 for strictly lower-triangular A [..., CHUNK, CHUNK], by block forward substitution.

    Inverting [[P, 0], [-C, Q]] gives [[P^-1, 0], [Q^-1 C P^-1, Q^-1]]: from blocks of size s to 2s, M <- M + M A_s M
    with A_s the part of A that couples the two halves. The product (I+A)(I+A^2)(I+A^4)... needs as many matrix
    products, but its powers of A grow like binomials when a key repeats, and float16 loses the result.
    """
    first, *rest = levels
    inverse = lower * first
    inverse = inverse + torch.eye(CHUNK, dtype=lower.dtype, device=lower.device)
    for level in rest:
        inverse = inverse + inverse @ (lower * level) @ inverse
    return inverse


def _t(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def _to_chunks(x: Tensor) -> Tensor:
    """[B, T, H, N] -> [n * B, H, CHUNK, N]; T is padded with zeros, which leave the state as it is."""
    batch, length, heads, size = sizes(x)
    pad = -length % CHUNK
    if pad:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
    if batch > 1:
        x = x.reshape(batch, -1, CHUNK, heads * size).transpose(0, 1)
    return x.reshape(-1, CHUNK, heads, size).transpose(1, 2)


def _from_chunks(y: Tensor, batch: int, length: int) -> Tensor:
    """[n * B, H, CHUNK, N] -> [B, T, H, N]."""
    _, heads, _, size = sizes(y)
    y = y.transpose(1, 2)
    if batch > 1:
        y = y.reshape(-1, batch, CHUNK, heads * size).transpose(0, 1)
    y = y.reshape(batch, -1, heads, size)
    return y[:, :length] if length % CHUNK else y


class _Masks:
    """Constant triangles: `lower` with the diagonal, `strict` without; `levels` couple blocks of size 1, 2, 4, 8."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        row, column = torch.arange(CHUNK)[:, None], torch.arange(CHUNK)[None, :]
        self.lower = (row >= column).to(device, dtype)
        self.strict = (row > column).to(device, dtype)
        sizes = [2**i for i in range(CHUNK.bit_length() - 1)]
        self.levels = tuple(
            ((row // (2 * s) == column // (2 * s)) & (row // s % 2 == 1) & (column // s % 2 == 0)).to(device, dtype)
            for s in sizes
        )


@lru_cache
def _masks(dtype: torch.dtype, device: torch.device) -> _Masks:
    return _Masks(dtype, device)
