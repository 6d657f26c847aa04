"""The chip matrix as a page: results, why each refusal, and the chips themselves with their sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rwkvlab.htp.limits import lacks
from rwkvlab.soc import FP16_SOURCE, SOCS, Soc

if TYPE_CHECKING:
    from benchmarks.soc_matrix import Cell, Outcome


def report(cells: Sequence[Cell]) -> str:
    """The whole page, in Markdown."""
    versions = ", ".join(sorted({cell.question.onnxruntime_qnn for cell in cells}))
    parts = [
        "# Which chip takes which model\n",
        f"Asked of the HTP compiler in onnxruntime-qnn {versions} by `python -m benchmarks.soc_matrix`: the decode and"
        " the prefill graph of each model, in one chunk. A number is the DDR bytes that one decode step reads, in MB,"
        " as the compiler counts them; *no* is explained below.\n",
        *(_results(model, cells) for model in dict.fromkeys(cell.question.model for cell in cells)),
        "## Why not\n",
        *(refusals(cells) or ["Nothing was refused.\n"]),
        "## Pre-flight check\n",
        surprises(cells),
        "## The chips\n",
        chip_table([SOCS[name] for name in dict.fromkeys(cell.question.soc for cell in cells)]),
    ]
    return "\n".join(parts)


def refusals(cells: Sequence[Cell]) -> list[str]:
    """For each chip that refuses something, what it lacks and what the compiler said, as lines of a list."""
    items = []
    for name in dict.fromkeys(cell.question.soc for cell in cells if cell.refused):
        refused = [cell for cell in cells if cell.question.soc == name and cell.refused]
        missing = {lacks(SOCS[name], cell.question.recipe) or "something not known to us" for cell in refused}
        said = dict.fromkeys(in_words(outcome) for cell in refused for outcome in cell.refused)
        count = sum(len(cell.refused) for cell in refused)
        items += [f"- **{name}** (v{SOCS[name].htp_arch}) refuses {count} graphs. It lacks"]
        items += [*_nested(sorted(missing)), "", "  The compiler:", "", *_nested(said), ""]
    return items


def in_words(outcome: Outcome) -> str:
    """Why a graph was refused: the compiler's reason if it gave one, or that it could not build an accepted node."""
    if outcome.reasons:
        return "; ".join(f'"{reason}"' for reason in outcome.reasons)
    return f"{outcome.refused_nodes} nodes fail, the first {outcome.first_refused}, without a reason"


def surprises(cells: Sequence[Cell]) -> str:
    """Where `make-context-cache` would say something else before compiling than the compiler says."""
    odd = [
        f"- {cell.question.model} {cell.question.recipe.precision} on {cell.question.soc}: "
        + ("refused by the compiler only" if cell.refused else "refused by the check only")
        for cell in cells
        if bool(cell.refused) != bool(lacks(SOCS[cell.question.soc], cell.question.recipe))
    ]
    if odd:
        return "It is wrong about:\n\n" + "\n".join(odd) + "\n"
    return f"It agrees with the compiler in all {len(cells)} cells.\n"


def chip_table(chips: Sequence[Soc]) -> str:
    """Every figure of the chips with the number of its source; unknown where none was found."""
    sources = [FP16_SOURCE]
    for chip in chips:
        found = (chip.sources.numbers, chip.sources.vtcm, chip.sources.dram)
        sources += [source for source in found if source is not None and source not in sources]

    def cite(value: object, source: str | None) -> str:
        return "unknown" if value is None or source is None else f"{value} [{sources.index(source) + 1}]"

    rows = [
        [
            f"{chip.name}, {chip.sold_as}",
            cite(chip.qnn_id, chip.sources.numbers),
            cite(f"v{chip.htp_arch}", chip.sources.numbers),
            cite(chip.vtcm_mb, chip.sources.vtcm),
            cite(chip.dram_gbs, chip.sources.dram),
            cite("yes" if chip.fp16 else "no", FP16_SOURCE),
        ]
        for chip in chips
    ]
    table = _table(["chip", "QNN id", "HTP", "VTCM, MB", "peak DRAM, GB/s", "float16"], rows)
    return table + "\n" + "\n".join(f"{number}. {source}" for number, source in enumerate(sources, 1)) + "\n"


def _results(model: str, cells: Sequence[Cell]) -> str:
    asked = {(c.question.soc, c.question.recipe.precision): c for c in cells if c.question.model == model}
    names, precisions = (list(dict.fromkeys(key[place] for key in asked)) for place in (0, 1))
    rows = [
        [f"{name} (v{SOCS[name].htp_arch})", *(_result(asked[name, precision]) for precision in precisions)]
        for name in names
    ]
    return f"## {model}\n\n" + _table(["chip", *precisions], rows)


def _result(cell: Cell) -> str:
    if not cell.refused:
        return f"{next(o.ddr_read for o in cell.outcomes if o.kind == 'decode') / 1e6:.2f}"
    return "no" if len(cell.refused) == len(cell.outcomes) else "no " + ", ".join(o.kind for o in cell.refused)


def _nested(lines: Iterable[str]) -> list[str]:
    return [f"  - {line}" for line in lines]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
