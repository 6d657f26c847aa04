"""Cutting a model into runs of whole blocks."""

from __future__ import annotations

from dataclasses import dataclass

from rwkvlab.errors import RwkvlabError


@dataclass(frozen=True)
class ChunkRange:
    """Chunk `index` (from 1) of `count`: blocks first..last-1."""

    index: int
    count: int
    first: int
    last: int

    @property
    def suffix(self) -> str:
        """The part of a file name that says which chunk it holds, as rwkv-qualcomm writes it."""
        return f"_chunk{self.index}of{self.count}"


def plan_chunks(n_layer: int, count: int) -> list[ChunkRange]:
    """`count` chunks that cover all layers, sizes differing by at most one, the earlier ones the larger.

    Raises:
        RwkvlabError: fewer than one chunk, or more chunks than layers.
    """
    if not 1 <= count <= n_layer:
        raise RwkvlabError(f"{count} chunks", f"1 to {n_layer}, the model's layers", "choose another --chunks")
    size, extra = divmod(n_layer, count)
    chunks, first = [], 0
    for index in range(1, count + 1):
        last = first + size + (index <= extra)
        chunks.append(ChunkRange(index, count, first, last))
        first = last
    return chunks
