"""Publish a demo run: its table and plot to results/published, and the table into the README.

python -m benchmarks.publish results/runs/<UTC>-demo-<hash8>
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_path, write_text_atomic

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"
BEGIN, END = "<!-- results begin -->\n", "<!-- results end -->"


def readme_table(rows: pd.DataFrame) -> str:
    """The published table as the README shows it."""
    head = "| model | precision | DDR MB per token | ppl | acc | fidelity: same top-1 | fidelity: KL, nats |\n"
    lines = [
        f"| {r.model} | {r.precision} | {r.ddr_bytes_per_token / 1e6:.3f} | {r.ppl:.3f} "
        f"| {r.k}/{r.n} = {r.acc:.1%} (95 % {r.acc_low:.1%} to {r.acc_high:.1%}) "
        f"| {r.fidelity_top1:.2%} of {r.positions} | {r.fidelity_kl:.1e} |\n"
        for r in rows.itertuples()
    ]
    return head + "|---|---|---|---|---|---|---|\n" + "".join(lines)


def with_table(readme: str, table: str) -> str:
    """`readme` with the table between its two markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table + END + after


def main(run: Path) -> None:
    """Copy and rewrite.

    Raises:
        RwkvlabError: `run` is no finished demo run.
    """
    figures = run / "notebooks" / "70_pareto" / "figures"
    if not (run / "metrics.json").is_file() or not figures.is_dir():
        raise RwkvlabError(f"{run} is no finished demo run", "a folder made by make demo", "run make demo")
    copies = {run / "table.csv": "x070.csv"}
    copies |= {
        figures / f"accuracy_against_bytes.{end}": f"x070-accuracy-against-bytes.{end}" for end in ("svg", "png")
    }
    for source, name in copies.items():
        with atomic_path(PUBLISHED / name) as temporary:
            shutil.copyfile(source, temporary)
    readme = ROOT / "README.md"
    write_text_atomic(readme, with_table(readme.read_text(), readme_table(pd.read_csv(PUBLISHED / "x070.csv"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
