"""Which chip takes which model at which precision: the compiler is asked, cell by cell.

    python -m benchmarks.soc_matrix --models x070,x060,x052 --precisions fp16,a16w8,a16w4,att-a16w8+ffn-a16w4 \
        -o results/published/soc-matrix.md

A cell is one chip, precision and model, its decode and its prefill graph. The pre-flight check is not consulted: this
is the evidence it rests on. Every finished cell is a line of a .jsonl file beside the table, and is not asked again
unless the model, the graph code or onnxruntime-qnn has changed; so a killed run continues where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from benchmarks.soc_tables import report
from rwkvlab.cli.common import open_model, open_tokenizer, refuse_unwritable
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.manifest import ExportManifest, GraphInfo, GraphKind, code_digest
from rwkvlab.files import write_text_atomic
from rwkvlab.htp.compile import compile_context, refusal_reasons, refused_nodes
from rwkvlab.quant.recipe import Recipe
from rwkvlab.soc import SOCS, Soc, find_soc
from rwkvlab.stages import Stages

PRECISIONS = ("fp16", "a16w8", "a16w4", "att-a16w8+ffn-a16w4")
CALIBRATION = {"tokens": 1024, "length": 64}
"""Little: ranges change the numbers in a graph, not whether a chip takes it."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(_Data):
    """What the compiler is asked; an equal question has an equal answer."""

    model: str
    model_sha256: str
    recipe: Recipe
    soc: str
    code: str
    onnxruntime_qnn: str


class Outcome(_Data):
    """What became of one graph: its traffic and size in bytes, or the nodes refused and the compiler's reasons."""

    kind: GraphKind
    ddr_read: int = 0
    ddr_write: int = 0
    binary: int = 0
    refused_nodes: int = 0
    first_refused: str = ""
    reasons: tuple[str, ...] = ()


class Cell(_Data):
    """A question and its answers, one for each graph."""

    question: Question
    outcomes: tuple[Outcome, ...]

    @property
    def refused(self) -> list[Outcome]:
        """The graphs that did not compile."""
        return [outcome for outcome in self.outcomes if outcome.refused_nodes]


class Answers:
    """The finished cells, in a file with one JSON line each; lines that cannot be read are asked again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.is_file() else []
        self.cells = {cell.question: cell for cell in map(_read_cell, lines) if cell is not None}

    def add(self, cell: Cell) -> None:
        """Keep a finished cell; the whole file is written anew, so that no kill leaves half a line."""
        self.cells[cell.question] = cell
        write_text_atomic(self.path, "".join(f"{cell.model_dump_json()}\n" for cell in self.cells.values()))


def fill(stages: Sequence[Stages], precisions: Sequence[str], chips: Sequence[Soc], answers: Answers) -> list[Cell]:
    """Ask every question that has no answer yet.

    Raises:
        RwkvlabError: an unknown precision, or a failure that is not a chip's refusal, such as a full disk.
    """
    plan = [(stage, recipe) for stage in stages for recipe in map(_recipe, precisions)]
    cells = []
    with tqdm(total=len(plan) * len(chips), desc="cells", disable=not sys.stderr.isatty()) as bar:
        for stage, recipe in plan:
            for cell in _cells(stage, recipe, chips, answers):
                cells.append(cell)
                bar.update()
    return cells


def ask(graphs: Path, info: GraphInfo, soc: Soc) -> Outcome:
    """Compile one graph for one chip and keep nothing of it.

    Raises:
        RwkvlabError: it failed, and not because the chip does not take some node.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = compile_context(graphs / f"{info.name}.onnx", Path(folder), info.name, soc)
        except RwkvlabError:
            log = (Path(folder) / f"{info.name}.log").read_text(errors="replace")
            nodes = refused_nodes(log)
            if not nodes:
                raise
            reasons = tuple(refusal_reasons(log))
            return Outcome(kind=info.kind, refused_nodes=len(nodes), first_refused=nodes[0], reasons=reasons)
        traffic, size = made.traffic, made.binary.stat().st_size
        return Outcome(kind=info.kind, ddr_read=traffic.read, ddr_write=traffic.write, binary=size)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    try:
        refuse_unwritable(options.output.parent)
        chips = [find_soc(name) for name in options.socs]
        stages = [_stages(model, options) for model in options.models]
        cells = fill(stages, options.precisions, chips, Answers(options.output.with_suffix(".jsonl")))
        write_text_atomic(options.output, report(cells))
    except RwkvlabError as error:
        sys.exit(str(error))
    print(options.output)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.soc_matrix", description="Ask the compiler chip by chip.")
    listed = {"type": lambda text: text.split(","), "metavar": "A,B"}
    parser.add_argument("--models", required=True, help="bundled models or checkpoints", **listed)
    parser.add_argument("--precisions", default=list(PRECISIONS), help=",".join(PRECISIONS), **listed)
    parser.add_argument("--socs", default=list(SOCS), help=",".join(SOCS), **listed)
    parser.add_argument("--tokenizer", default="zoo", help="of all the models: zoo, world, bytes or a vocabulary file")
    parser.add_argument("--stages", type=Path, default=Path("results/runs/stages"), help="cache of the exported graphs")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/published/soc-matrix.md"))
    return parser.parse_args(arguments)


def _stages(model: str, options: argparse.Namespace) -> Stages:
    checkpoint = open_model(model)
    tokenizer = open_tokenizer(options.tokenizer, checkpoint.spec.vocab_size)
    return Stages(checkpoint, tokenizer, options.stages, progress=False)


def _recipe(precision: str) -> Recipe:
    return Recipe.parse({"precision": precision, "calibration": CALIBRATION})


def _cells(stage: Stages, recipe: Recipe, chips: Sequence[Soc], answers: Answers) -> Iterator[Cell]:
    checkpoint, graphs = stage.checkpoint, None
    for soc in chips:
        question = Question(
            model=checkpoint.path.stem,
            model_sha256=checkpoint.sha256,
            recipe=recipe,
            soc=soc.name,
            code=code_digest(),
            onnxruntime_qnn=version("onnxruntime-qnn"),
        )
        if question not in answers.cells:
            graphs = graphs or stage.graphs(recipe)
            infos = ExportManifest.load(graphs).graphs
            answers.add(Cell(question=question, outcomes=tuple(ask(graphs, info, soc) for info in infos)))
        yield answers.cells[question]


def _read_cell(line: str) -> Cell | None:
    try:
        return Cell.model_validate_json(line)
    except ValidationError:
        return None


if __name__ == "__main__":
    main()
