"""What the HTP compiler made: graphs, operations, memory traffic, its own stages."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from rwkvlab.htp.cache import ContextCache


def graph_table(cache: ContextCache) -> pd.DataFrame:
    """One row per compiled graph; bytes as the compiler reports them for one execution."""
    rows = [
        [
            cache.manifest.source.recipe.precision,
            graph.graph.kind,
            graph.graph.chunk,
            graph.graph.tokens,
            sum(graph.ops.values()),
            graph.binary.bytes,
            graph.ddr_read_bytes,
            graph.ddr_write_bytes,
            graph.ddr_spill_bytes,
            graph.ddr_fill_bytes,
        ]
        for kind in ("decode", "prefill")
        for graph in cache.graphs(kind)
    ]
    columns = ["precision", "graph", "chunk", "tokens", "operations", "binary, B", "DDR read, B", "DDR write, B"]
    return pd.DataFrame(rows, columns=[*columns, "spill, B", "fill, B"])


def token_table(graphs: pd.DataFrame) -> pd.DataFrame:
    """The whole chain's traffic per token, from `graph_table`s: one row per precision and kind of graph."""
    per_token = graphs.assign(
        read=graphs["DDR read, B"] / graphs.tokens,
        write=graphs["DDR write, B"] / graphs.tokens,
        size=graphs["binary, B"],
    )
    sums = per_token.groupby(["precision", "graph"], sort=False, as_index=False).agg(
        read=("read", "sum"), write=("write", "sum"), size=("size", "sum")
    )
    return sums.assign(total=sums["read"] + sums["write"])


def operation_table(cache: ContextCache) -> pd.DataFrame:
    """QNN operations by type over all chunks: columns operation, decode, prefill; the most frequent first."""
    counts = {
        kind: pd.concat([pd.Series(graph.ops) for graph in cache.graphs(kind)]).groupby(level=0).sum()
        for kind in ("decode", "prefill")
    }
    table = pd.DataFrame(counts).fillna(0).astype(int)
    table = table.loc[table.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    return table.rename_axis("operation").reset_index()


def stage_table(log: Path) -> pd.DataFrame:
    """The compiler's stages and how long each took on this machine, ms, from its log."""
    found = re.findall(r"Completed stage: (.+?) \((\d+) us\)", log.read_text(errors="replace"))
    return pd.DataFrame([[name, int(us) / 1000] for name, us in found], columns=["stage", "milliseconds"])
