"""Chunks of a model, and the model as their chain.

A chunk is a run of whole blocks; the first may hold the embedding, the last holds the final norm and the head. A whole
model is a chain of one chunk. Everything that passes between chunks and between tokens is a named tensor:

    in                        token ids [B, T], or hidden vectors [B, T, C]
    v_first_in / v_first_out  layer 0's value [B, T, C] (RWKV-7 only)
    state{3L}                 layer L's time-mix token shift [B, C]
    state{3L+1}               its WKV state [B, H, N, N]
    state{3L+2}               its channel-mix token shift [B, C]
    out / logits              hidden vectors [B, T, C] / scores [B, T, V]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rwkvlab.model.block import Block
from rwkvlab.model.layers import linear
from rwkvlab.spec import ModelSpec


class Chunk(nn.Module):
    """Blocks first..last-1 of a model.

    Args:
        spec: the model.
        first, last: block range.
        embedding: whether the first chunk looks token ids up itself; without, it takes the embedded vectors.
    """

    def __init__(self, spec: ModelSpec, first: int, last: int, embedding: bool = True) -> None:
        super().__init__()
        self.spec, self.first, self.last = spec, first, last
        self.emb = nn.Embedding(spec.vocab_size, spec.n_embd) if embedding and first == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block(spec, i) for i in range(first, last)})
        self.is_last = last == spec.n_layer
        self.takes_v_first = spec.hands_on_v_first and first > 0
        self.gives_v_first = spec.hands_on_v_first and first == 0 and not self.is_last
        if self.is_last:
            self.ln_out = nn.LayerNorm(spec.n_embd)
            self.head = linear(spec.n_embd, spec.vocab_size)
        self.last_logits_only = False

    @property
    def input_names(self) -> list[str]:
        """Names of `forward`'s arguments, in order."""
        hand_over = ["v_first_in"] if self.takes_v_first else []
        return ["in", *hand_over, *(f"state{i}_in" for i in range(3 * self.first, 3 * self.last))]

    @property
    def output_names(self) -> list[str]:
        """Names of `forward`'s results, in order."""
        hand_over = ["v_first_out"] if self.gives_v_first else []
        states = (f"state{i}_out" for i in range(3 * self.first, 3 * self.last))
        return ["logits" if self.is_last else "out", *hand_over, *states]

    def forward(self, x: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Run the chunk; arguments and results are named by `input_names` and `output_names`."""
        v_first, states = (carried[0], carried[1:]) if self.takes_v_first else (None, carried)
        if self.emb is not None:
            x = self.emb(x)
        after: list[Tensor] = []
        for index, block in enumerate(self.blocks.values()):
            x, state, v_first = block(x, states[3 * index : 3 * index + 3], v_first)
            after.extend(state)
        hand_over = [v_first] if self.gives_v_first and v_first is not None else []
        if self.is_last:
            x = self.head(self.ln_out(x[:, -1:] if self.last_logits_only else x))
        return (x, *hand_over, *after)


class Model(nn.Module):
    """A chain of chunks with a whole-model interface."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        super().__init__()
        self.spec = chunks[0].spec
        self.chunks = nn.ModuleList(chunks)
        self._ranges = [slice(3 * chunk.first, 3 * chunk.last) for chunk in chunks]

    def forward(self, tokens: Tensor, state: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Logits for every position.

        Args:
            tokens: [B, T] ids.
            state: 3 tensors per layer as named above; None is the empty state.

        Returns:
            logits [B, T, V] and the next state.
        """
        state = zero_state(self.spec, tokens.shape[0], tokens.device) if state is None else state
        x, v_first, after = tokens, None, []
        for chunk, its_states in zip(self.chunks, self._ranges, strict=True):
            x, v_first, new = run_chunk(chunk, x, v_first, state[its_states])
            after.extend(new)
        return x, after


def run_chunk(
    chunk: nn.Module, x: Tensor, v_first: Tensor | None, states: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Call a chunk with its hand-over tensors kept apart: (x, v_first, states) -> (x, v_first, next states)."""
    carried = states if v_first is None else [v_first, *states]
    x, *rest = chunk(x, *carried)
    if len(rest) > len(states):
        v_first, *rest = rest
    return x, v_first, rest


def zero_state(
    spec: ModelSpec, batch: int, device: torch.device | str = "cpu", first: int = 0, last: int | None = None
) -> list[Tensor]:
    """The empty state of blocks first..last-1 (all of them by default)."""
    layers = range(first, spec.n_layer if last is None else last)
    return [torch.zeros(shape, device=device) for _ in layers for shape in state_shapes(spec, batch)]


def state_shapes(spec: ModelSpec, batch: int) -> list[tuple[int, ...]]:
    """Shapes of one layer's three state tensors."""
    return [(batch, spec.n_embd), (batch, spec.n_head, spec.head_size, spec.head_size), (batch, spec.n_embd)]


def linear_names(spec: ModelSpec) -> list[str]:
    """Every linear of the model in forward order of the blocks, the head last."""
    with torch.device("meta"):
        chunk = Chunk(spec, 0, spec.n_layer)
    return [name for name, module in chunk.named_modules() if isinstance(module, nn.Linear)]
