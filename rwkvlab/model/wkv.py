"""The WKV-7 recurrence: one step, and an exact segment form made of matrix products.

Notation, per head: N is the head size; rows are time; the state S is [value, key]. With decay w, replacement
key a = -kk and b = kk * (in-context learning rate), RWKV-7 (arXiv 2503.14456, section 4) is

    S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T          y_t = S_t r_t

The segment form rests on S_t = (S_0 + sum_{i<=t} (u_i b_i^T + v_i k_i^T) / E_i) * E_t with E_t the product of
the decays up to t and u_t = S_{t-1} a_t. Written with a~ = a E_{t-1}, r~ = r E_t, b^ = b / E, k^ = k / E, the u_t of
one chunk solve a unit-triangular system U = A U + a~ S_0^T + tril(a~ k^^T, -1) V, A = tril(a~ b^^T, -1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rwkvlab.model.layers import sizes
from rwkvlab.model.segments import SEGMENT, from_segments, masks, to_segments, transposed


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
    segments = [to_segments(x) for x in (r, log_w, k, v, a, b)]
    y, state = _wkv7_segments(state, *segments)
    return from_segments(y, batch, length), state


def _wkv7_segments(
    state: Tensor, r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """As `wkv7`, over tensors [n * B, H, SEGMENT, N] in time-major order of the n segments.

    Everything that does not depend on the state is computed for all segments at once; the loop carries only S.
    """
    constant = masks(r.dtype, r.device)
    total = constant.lower @ log_w
    middle = total[:, :, SEGMENT // 2 - 1 : SEGMENT // 2]
    total = total - middle
    grow, shrink = total.exp(), (-total).exp()
    a_in, r_in = a * (total - log_w).exp(), r * grow
    b_out, k_out = (b * shrink), (k * shrink)

    inverse = _inverse_of_one_minus(_keep(constant.strict, a_in @ transposed(b_out)), constant.levels)
    from_state = inverse @ a_in
    from_values = inverse @ (_keep(constant.strict, a_in @ transposed(k_out)) @ v)
    read_u = _keep(constant.lower, r_in @ transposed(b_out))
    read_v = _keep(constant.lower, r_in @ transposed(k_out))
    query = r_in + read_u @ from_state
    local = read_u @ from_values + read_v @ v
    transition = transposed(from_state) @ b_out
    update = transposed(from_values) @ b_out + transposed(v) @ k_out

    at_middle, states = middle.exp(), []
    pieces = (x.split(sizes(state)[0]) for x in (at_middle, transition, update, grow[:, :, SEGMENT - 1 :]))
    for to_middle, turn, add, to_end in zip(*pieces, strict=True):
        state = state * to_middle
        states.append(state)
        state = (state + state @ turn + add) * to_end
    before = torch.cat(states) if len(states) > 1 else states[0]
    return query @ transposed(before) + local, state


def _keep(mask: Tensor, x: Tensor) -> Tensor:
    """x where the mask is 1, else 0. What is dropped may have overflowed float16, and 0 times infinity is no number."""
    return torch.where(mask.bool(), x, torch.zeros((), dtype=x.dtype, device=x.device))


def _inverse_of_one_minus(lower: Tensor, levels: tuple[Tensor, ...]) -> Tensor:
    """(I - A)^-1 for strictly lower-triangular A [..., SEGMENT, SEGMENT], by block forward substitution.

    Inverting [[P, 0], [-C, Q]] gives [[P^-1, 0], [Q^-1 C P^-1, Q^-1]]: from blocks of size s to 2s, M <- M + M A_s M
    with A_s the part of A that couples the two halves. The product (I+A)(I+A^2)(I+A^4)... needs as many matrix
    products, but its powers of A grow like binomials when a key repeats, and float16 loses the result.
    """
    first, *rest = levels
    inverse = lower * first
    inverse = inverse + torch.eye(SEGMENT, dtype=lower.dtype, device=lower.device)
    for level in rest:
        inverse = inverse + inverse @ (lower * level) @ inverse
    return inverse
