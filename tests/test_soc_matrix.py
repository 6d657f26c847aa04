from __future__ import annotations

import pytest

from benchmarks import soc_matrix
from benchmarks.soc_matrix import Answers, Cell, Outcome, Question, fill
from benchmarks.soc_tables import report
from rwkvlab.quant.recipe import Recipe
from rwkvlab.soc import SOCS, find_soc

TAKEN = (Outcome(kind="decode", ddr_read=1_230_000), Outcome(kind="prefill", ddr_read=9_990_000))
REFUSED = tuple(
    Outcome(kind=kind, refused_nodes=3, first_refused="/emb/Gather (Gather)", reasons=("no FP16",))
    for kind in ("decode", "prefill")
)


def cell(soc: str, outcomes=TAKEN, model: str = "x070", precision: str = "a16w8") -> Cell:
    recipe = Recipe.model_validate({"precision": precision})
    question = Question(model=model, model_sha256="0", recipe=recipe, soc=soc, code="1", onnxruntime_qnn="2.5.0")
    return Cell(question=question, outcomes=outcomes)


def test_answers_are_found_again_and_a_torn_line_is_asked_again(tmp_path):
    path = tmp_path / "matrix.jsonl"
    first, second = cell("SM8650"), cell("SM8350", REFUSED)
    answers = Answers(path)
    answers.add(first)
    answers.add(second)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert Answers(path).cells == {first.question: first}
    path.write_text(whole)
    assert list(Answers(path).cells.values()) == [first, second]


def test_only_open_cells_are_compiled_and_the_model_is_exported_once(tmp_path, tiny_checkpoint, monkeypatch):
    from rwkvlab.stages import Stages
    from rwkvlab.tokenizer import load_tokenizer

    asked = []
    monkeypatch.setattr(soc_matrix, "ask", lambda graphs, info, soc: asked.append((soc.name, info.kind)) or TAKEN[0])
    monkeypatch.setattr("rwkvlab.stages.check_vocabulary", lambda *_: None)
    stages = Stages(tiny_checkpoint, load_tokenizer("bytes"), tmp_path / "stages", progress=False)
    path = tmp_path / "matrix.jsonl"
    fill([stages], ["fp16"], [find_soc("SM8650")], Answers(path))
    cells = fill([stages], ["fp16"], [find_soc("SM8650"), find_soc("SM8750")], Answers(path))
    assert asked == [(soc, kind) for soc in ("SM8650", "SM8750") for kind in ("decode", "prefill")]
    assert [found.question.soc for found in cells] == ["SM8650", "SM8750"]


def test_the_page_has_the_traffic_the_refusals_and_the_sources():
    page = report([cell("SM8650"), cell("SM8350", REFUSED), cell("SM8635", (TAKEN[0], REFUSED[1]))])
    assert "| SM8650 (v75) | 1.23 |" in page
    assert "| SM8350 (v68) | no |" in page
    assert "| SM8635 (v73) | no prefill |" in page
    assert "float16" in page and '"no FP16"' in page
    assert "agrees with the compiler in all 3 cells" in page
    assert all(source in page for source in (SOCS["SM8650"].sources.dram, SOCS["SM8350"].sources.vtcm))


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (cell("SM8650", REFUSED), "on SM8650: refused by the compiler only"),
        (cell("SM8350"), "on SM8350: refused by the check only"),
    ],
)
def test_the_page_says_where_the_preflight_check_is_wrong(odd, said):
    assert said in report([odd])


def test_an_unknown_chip_or_model_is_one_line(tmp_path, capsys):
    for arguments in (["--models", "x070", "--socs", "SM1"], ["--models", "nothing.pth"]):
        with pytest.raises(SystemExit) as stopped:
            soc_matrix.main([*arguments, "-o", str(tmp_path / "page.md")])
        assert "; allowed: " in str(stopped.value) and "\n" not in str(stopped.value)
    assert not list(tmp_path.iterdir())
