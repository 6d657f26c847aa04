"""The report opens offline, loads nothing, and shows hostile names and texts as text."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pandas as pd
import pytest

from rwkvlab import plots
from rwkvlab.evaluate.evaluation import Agreement, Evaluation, Score
from rwkvlab.evaluate.protocol import Protocol
from rwkvlab.report import opening, table, write_report
from rwkvlab.runs import Run, finish_run, project_root, start_run

HOSTILE = '<script>alert("1")</script><img src=http://evil.example/x onerror=alert(2)>'


def protocol(where: str) -> Protocol:
    hashes = {"tokenizer_hash": "0123456789ab", "items_hash": "ba9876543210"}
    return Protocol(task="stories", where=where, bos=True, tokenizer=HOSTILE, **hashes, n=500, n_available=1000)


def evaluation(model: str = "x070", precision: str = "a16w8") -> Evaluation:
    score = Score(ppl=1.25, k=450, n=500, acc_low=0.87, acc_high=0.92, protocol=protocol("torch-sim"))
    sizes = {"sequences": 13, "n": 1010, "agree": 1009, "top1_low": 0.99, "top1_high": 1.0}
    errors = {"mean_kl": 1e-6, "max_error": 0.01, "mean_error": 0.001, "logit_range": 20.0}
    return Evaluation(
        model=model,
        model_sha256="cd" * 32,
        precision=precision,
        recipe_hash="feedfeedfeed",
        soc="SM8650",
        chunks=1,
        sdk_build="v2.49.40",
        ddr_bytes_per_token=1.67e6,
        ddr_bytes_per_prompt_token=5e4,
        context_bytes=1_500_000,
        baseline=score,
        score=score,
        fidelity=Agreement(reference="torch-sim", other="htp-sim", **sizes, **errors),
    )


def make_step(run: Run, name: str, metrics: dict, title: str) -> None:
    step = start_run(name.partition("-")[0], {}, folder=run.folder / "notebooks" / name)
    cell = nbformat.v4.new_markdown_cell(f"# {title}\n\nWhy `so`?\n\nMore.")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), step.folder / "notebook.ipynb")
    data = pd.DataFrame({"token": [0, 1], "layer": [0, 0], "rms": [1.0, 2.0]})
    plots.save_figure(plots.state_sizes(data), data, step.figures, "accuracy_against_bytes")
    finish_run(step, metrics)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = start_run("demo", {}, {"model": "ab" * 32}, tmp_path_factory.mktemp("results"))
    make_step(run, "60_evaluate-a16w8", evaluation(HOSTILE).model_dump(mode="json"), f"How good? {HOSTILE}")
    make_step(run, "70_pareto", {}, "Which is worth it?")
    write_report(run, run.folder / "report.html")
    return run


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return (run.folder / "report.html").read_text()


class Elements(HTMLParser):
    """All elements with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, *names: str) -> list[str]:
        return [value for _, attributes in self.found for name, value in attributes.items() if name in names]


LOADING = (
    "src",
    "srcset",
    "href",
    "xlink:href",
    "data",
    "action",
    "formaction",
    "poster",
    "background",
    "cite",
    "ping",
)


def references(html: str) -> list[str]:
    """Everything a browser could follow or load, in attributes and in styles."""
    found = Elements(html).values(*LOADING)
    found += re.findall(r"url\(\s*['\"]?([^)'\"]+)", html)
    return found + re.findall(r"@import\s+['\"]?([^;'\"]+)", html)


def test_nothing_is_loaded_from_anywhere(html: str) -> None:
    assert references(html)
    remote = [ref for ref in references(html) if re.match(r"\s*(\w+:)?//|\s*(https?|ftp|file|javascript):", ref, re.I)]
    assert remote == []
    others = [ref for ref in references(html) if not ref.startswith("data:image/svg+xml;base64,")]
    assert all(re.fullmatch(r"notebooks/[\w./-]+", unquote(ref)) for ref in others)
    assert {tag for tag, _ in Elements(html).found}.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    assert "default-src 'none'" in html


def test_the_check_itself_sees_remote_references() -> None:
    for bad in (
        '<img src="https://a/b">',
        "<style>@import 'https://a/b';</style>",
        "<p style='background:url(http://a)'>",
        "<a href=//a>",
    ):
        assert any("a" in ref for ref in references(bad)), bad


def test_the_figures_inside_load_nothing_either(html: str) -> None:
    images = [v for v in Elements(html).values("src") if v.startswith("data:")]
    assert len(images) == 4, "the plot on top, and one in each step"
    for image in images:
        svg = base64.b64decode(image.split(",", 1)[1]).decode()
        assert all(ref.startswith("#") for ref in references(svg)) and "<script" not in svg
        assert "<!ENTITY" not in svg


def test_links_lead_to_files_of_the_run(html: str, run: Run) -> None:
    links = Elements(html).values("href")
    assert links and all((run.folder / unquote(link)).is_file() for link in links)


def test_hostile_text_is_shown_and_not_run(html: str) -> None:
    elements = Elements(html)
    assert elements.text.count('<script>alert("1")</script>') >= 4, "title, heading, table, tokenizer"
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)


def test_numbers_carry_their_protocol(html: str) -> None:
    text = Elements(html).text
    wanted = [
        "450/500",
        "87.0–92.0",
        "1.670",
        "partial: 500 of 1000 items",
        "0123456789ab",
        "feedfeedfeed",
        "torch-sim",
    ]
    assert [
        part for part in [*wanted, "1010 positions of 13 texts", "token 0 first", "v2.49.40"] if part not in text
    ] == []


def test_no_path_of_the_machine(html: str, run: Run) -> None:
    for path in (Path.home(), project_root(), run.folder):
        assert str(path) not in html


def test_a_step_that_did_not_finish_is_said_so(tmp_path: Path) -> None:
    run = start_run("demo", {}, folder=tmp_path)
    start_run("10_model", {}, folder=tmp_path / "notebooks" / "10_model")
    text = write_report(run, tmp_path / "report.html").read_text()
    assert "did not finish" in text and "No evaluation finished" in text


def test_table_escapes_cells_and_sets_numbers_to_the_right() -> None:
    html = table(pd.DataFrame({"a<b": ["<i>", "x"], "n": [1.5, 2]}))
    assert "&lt;i&gt;" in html and "<i>" not in html and "a&lt;b" in html
    assert html.count('class="number"') == 3


def test_opening_is_title_and_question(tmp_path: Path) -> None:
    cell = nbformat.v4.new_markdown_cell("# Is it `right`?\n\nOne *short*\nparagraph.\n\n## More")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "n.ipynb")
    assert opening(tmp_path / "n.ipynb") == ("Is it `right`?", "One short paragraph.")
