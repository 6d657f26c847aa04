"""Evaluations as tables: items, comparisons, and the one table in which precisions compete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rwkvlab.errors import RwkvlabError
from rwkvlab.evaluate.evaluation import Evaluation
from rwkvlab.evaluate.lambada import LambadaResult
from rwkvlab.evaluate.recorded import Recorded, divergences
from rwkvlab.runs import METRICS, Run, finished_runs
from rwkvlab.tables.frames import rows_of

EVALUATE = "60_evaluate"
"""Name of the runs that hold an `Evaluation` as their metrics."""


def item_table(baseline: LambadaResult, quantized: LambadaResult) -> pd.DataFrame:
    """Per item: surprise at the last word in nats, and whether it was predicted, before and after quantization."""
    return pd.DataFrame(
        {
            "item": range(baseline.n),
            "surprise_float": -baseline.log_probs,
            "surprise_quantized": -quantized.log_probs,
            "correct_float": baseline.correct,
            "correct_quantized": quantized.correct,
        }
    )


def change_table(items: pd.DataFrame) -> pd.DataFrame:
    """How many items were predicted before and after: quantization loses some and, by luck, gains others."""
    before, after = items.correct_float, items.correct_quantized
    counts = {
        "predicted by both": before & after,
        "lost by quantization": before & ~after,
        "gained by quantization": ~before & after,
        "predicted by neither": ~before & ~after,
    }
    return pd.DataFrame({"last word": list(counts), "items": [int(found.sum()) for found in counts.values()]})


def divergence_table(pairs: Iterable[tuple[Recorded, Recorded]]) -> pd.DataFrame:
    """KL(reference || other) in nats by position: columns comparison, sequence, position, kl."""
    frames = []
    for reference, other in pairs:
        for sequence, kl in divergences(reference, other).items():
            label = f"{reference.where} → {other.where}"
            frames.append(
                pd.DataFrame({"comparison": label, "sequence": sequence, "position": np.arange(len(kl)), "kl": kl})
            )
    return pd.concat(frames, ignore_index=True)


def find_evaluations(folder: Path) -> list[Evaluation]:
    """What the evaluation notebook left anywhere below `folder`, oldest first.

    Raises:
        RwkvlabError: a run's metrics are damaged, or of another version of this project.
    """
    return [_evaluation(run) for run in finished_runs(folder, EVALUATE)]


def _evaluation(run: Run) -> Evaluation:
    try:
        return Evaluation.model_validate(run.metrics)
    except ValueError as error:  # JSON's and pydantic's errors are both
        first = str(error).splitlines()[0]
        raise RwkvlabError(
            f"{run.folder / METRICS} holds no evaluation ({first})",
            "what this version of 60_evaluate writes",
            "evaluate again, and move that run folder away",
        ) from error


def comparable(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[Evaluation]]:
    """The evaluations that share the newest one's protocol, and the others, whose numbers must not stand beside them.

    Of several with the same model and recipe the newest counts. `evaluations` are in order of time.

    Raises:
        RwkvlabError: there are none.
    """
    if not evaluations:
        raise RwkvlabError("no evaluations to compare", "at least one", "run notebook 60_evaluate first")
    newest = {(e.model_sha256, e.recipe_hash, e.soc, e.yardstick): e for e in evaluations}
    kept = list(newest.values())
    yardstick = kept[-1].yardstick
    return [e for e in kept if e.yardstick == yardstick], [e for e in kept if e.yardstick != yardstick]


def result_table(evaluations: Sequence[Evaluation]) -> pd.DataFrame:
    """One row per evaluation, the most bytes first; raw numbers, for figures and files."""
    rows = []
    for e in sorted(evaluations, key=lambda e: -e.ddr_bytes_per_token):
        fidelity, overall = e.fidelity, e.overall
        rows.append(
            {
                "model": e.model,
                "precision": e.precision,
                "soc": e.soc,
                "chunks": e.chunks,
                "ddr_bytes_per_token": e.ddr_bytes_per_token,
                "context_bytes": e.context_bytes,
                "ppl": e.score.ppl,
                "k": e.score.k,
                "n": e.score.n,
                "acc": e.score.acc,
                "acc_low": e.score.acc_low,
                "acc_high": e.score.acc_high,
                "accuracy_on": e.score.protocol.where,
                "fidelity_top1": fidelity.top1 if fidelity else None,
                "fidelity_kl": fidelity.mean_kl if fidelity else None,
                "overall_kl": overall.mean_kl if overall else None,
                "positions": fidelity.n if fidelity else None,
                "recipe": e.recipe_hash,
            }
        )
    table = pd.DataFrame(rows)
    if not table.empty:
        table["on_front"] = on_front(table.ddr_bytes_per_token.to_numpy(), table.acc.to_numpy())
    return table


def on_front(cost: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Which points no other one beats: none is at most as costly and at least as good, and better in one of the two."""
    cheaper, better = cost[:, None] <= cost[None, :], gain[:, None] >= gain[None, :]
    strictly = (cost[:, None] < cost[None, :]) | (gain[:, None] > gain[None, :])
    return np.logical_not((cheaper & better & strictly).any(axis=0))


def reading_table(results: pd.DataFrame) -> pd.DataFrame:
    """`result_table` for people, in the shape in which RWKV releases for Qualcomm chips report theirs."""
    rows = [
        {
            "model": row.model,
            "precision": row.precision,
            "DDR MB / token": f"{row.ddr_bytes_per_token / 1e6:.3f}",
            "ppl": f"{row.ppl:.3f}",
            "acc, %": f"{100 * row.acc:.1f}",
            "k/n": f"{row.k}/{row.n}",
            "95 % interval": f"{100 * row.acc_low:.1f}–{100 * row.acc_high:.1f}",
            "fidelity, top-1 %": f"{100 * row.fidelity_top1:.2f}" if pd.notna(row.fidelity_top1) else "not run",
            "fidelity, KL nats": f"{row.fidelity_kl:.1e}" if pd.notna(row.fidelity_kl) else "not run",
        }
        for row in rows_of(results)
    ]
    return pd.DataFrame(rows)
