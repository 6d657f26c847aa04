"""What the README cites is what results/published holds, and belongs to the model that is bundled."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.publish import BEGIN, END, readme_table, with_table

ROOT = Path(__file__).resolve().parents[1]


def test_readme_shows_the_published_table():
    rows = pd.read_csv(ROOT / "results" / "published" / "x070.csv")
    shown = (ROOT / "README.md").read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == readme_table(rows)
    assert ((rows.k / rows.n - rows.acc).abs() < 1e-9).all(), "an accuracy is k/n"


def test_only_the_text_between_the_markers_changes():
    assert with_table(f"a\n{BEGIN}old\n{END}\nb", "new\n") == f"a\n{BEGIN}new\n{END}\nb"
