"""The whole way on the bundled model: every notebook by papermill, one run folder, one report.

python -m rwkvlab.demo
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rwkvlab import zoo
from rwkvlab.checkpoint import Checkpoint
from rwkvlab.files import write_text_atomic
from rwkvlab.notebooks import run_notebook
from rwkvlab.quant.recipe import Precision
from rwkvlab.report import write_report
from rwkvlab.runs import Run, finish_run, results_root, short, start_run
from rwkvlab.tables.scores import find_evaluations, reading_table, result_table

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
WIDTH = 100
"""Of the printed table where there is no terminal to ask."""
STEPS, TABLE, REPORT = "notebooks", "table.csv", "report.html"


@dataclass(frozen=True)
class Step:
    """One execution of a notebook: its name, what tells it apart from others of the same notebook, its parameters."""

    notebook: str
    variant: str
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.notebook}-{self.variant}" if self.variant else self.notebook


def run_demo(
    results: Path | None = None,
    stories: int = 500,
    sim_stories: int = 13,
    precisions: Sequence[Precision] = PRECISIONS,
    model: str = "x070",
    tokenizer: str = "zoo",
    soc: str = "SM8650",
    workers: int = 2,
) -> Path:
    """Run all notebooks and leave `<results>/runs/<UTC>-demo-<hash8>/`; prints one line per notebook and a table.

    Args:
        results: folder of all results; None is the project's.
        stories: unseen stories that accuracy and perplexity are measured on, in torch.
        sim_stories: of these, how many the simulator reads too; 13 are over 1,000 positions.
        precisions: which.
        model, tokenizer: what is quantized.
        soc: the chip compiled for.
        workers: notebooks that run side by side.

    Returns:
        the run folder: executed notebooks with their figures and data, table.csv, metrics.json, report.html.

    Raises:
        RwkvlabError: a notebook failed: the error names it and the cell, and its executed copy is kept.
    """
    checkpoint = Checkpoint.open(zoo.find(model))
    root = results_root(results or "")
    options = {"stories": stories, "sim_stories": sim_stories, "precisions": list(precisions), "soc": soc}
    params = {"model": model, "tokenizer": tokenizer, **options}
    run = start_run("demo", params, {"model": checkpoint.sha256}, root)
    common = {"model": _absolute(model), "tokenizer": _absolute(tokenizer), "results": str(root)}
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{checkpoint.path.stem}: {stories} stories in torch, {sim_stories} on the simulator, for {soc}")
    started, seconds = time.monotonic(), {}
    for group in plan(run, common, stories, sim_stories, precisions, soc):
        seconds |= dict(_run_group(run, group, workers, console))
    finished = _finish(run, seconds)
    _show(finished, console, time.monotonic() - started)
    return finished.folder


def plan(
    run: Run, common: dict[str, Any], stories: int, sim_stories: int, precisions: Sequence[Precision], soc: str
) -> list[list[Step]]:
    """The steps, in groups whose members do not need each other."""
    evaluation = {"items": "stories", "n": stories, "sim_items": sim_stories, "soc": soc}
    return [
        [
            Step("00_doctor", "", {"soc": soc, "results": common["results"]}),
            Step("10_model", "", common),
            Step("20_calibrate", "", common),
        ],
        # The slowest first, so that the workers end together. Each compiles its own context, which 50 then finds.
        [
            *(Step("60_evaluate", p, common | evaluation | {"precision": p}) for p in sorted(precisions)),
            Step("30_encodings", "", common),
        ],
        [
            Step("50_context_cache", "", common | {"precisions": ",".join(precisions), "soc": soc}),
            Step("70_pareto", "", {"runs": str(run.folder / STEPS), "results": common["results"]}),
        ],
    ]


def _run_group(run: Run, steps: Sequence[Step], workers: int, console: Console) -> Iterator[tuple[str, float]]:
    """Run steps side by side, print a line as each ends, and yield its name and seconds."""
    with ThreadPoolExecutor(workers) as pool, console.status("running " + ", ".join(step.name for step in steps)):
        jobs = {pool.submit(run_notebook, s.notebook, run.folder / STEPS / s.name, s.parameters): s for s in steps}
        try:
            for job in as_completed(jobs):
                taken = job.result().seconds
                console.print(f"  {jobs[job].name:<22} {taken:6.1f} s", highlight=False)
                yield jobs[job].name, round(taken, 1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _finish(run: Run, seconds: dict[str, float]) -> Run:
    """Table and report, then the metrics, which say that all of it is there."""
    evaluations = find_evaluations(run.folder)
    results = result_table(evaluations)
    write_text_atomic(run.folder / TABLE, results.to_csv(index=False))
    write_report(run, run.folder / REPORT)
    return finish_run(run, {"evaluations": [e.model_dump() for e in evaluations], "seconds": seconds})


def _show(run: Run, console: Console, seconds: float) -> None:
    table = reading_table(pd.read_csv(run.folder / TABLE))
    shown = Table(
        title="Last word of unseen stories",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in table.columns:
        left = column in ("model", "precision")
        shown.add_column(column.replace(", ", "\n").replace(" / ", "\n/ "), justify="left" if left else "right")
    for row in table.itertuples(index=False):
        shown.add_row(*map(str, row))
    console.print(shown)
    console.print(f"{seconds / 60:.1f} minutes; open {short(run.folder / REPORT)}", highlight=False, soft_wrap=True)


def _absolute(name: str) -> str:
    """A path as the notebooks, which run in another folder, will find it; other names as they are."""
    return str(Path(name).resolve()) if Path(name).exists() else name


if __name__ == "__main__":
    run_demo()
