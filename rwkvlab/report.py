"""One HTML file that tells a demo's run: opens from disk, offline, and loads nothing.

Figures are inlined as SVG data; links lead to files in the run folder. Everything that is not ours, names and texts
above all, is escaped, and a content security policy forbids scripts and any loading.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import quote

import nbformat
import pandas as pd

from rwkvlab.evaluate.evaluation import Agreement, Evaluation
from rwkvlab.files import write_text_atomic
from rwkvlab.notebooks import EXECUTED
from rwkvlab.runs import PROVENANCE, Provenance, Run, open_run
from rwkvlab.tables.scores import find_evaluations, reading_table, result_table

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --rule: #d1d9e0; --paper: #ffffff; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --rule: #3d444d; --paper: #0d1117; --band: #151b23; }
}
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .4rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
p { margin: .5rem 0; max-width: 46rem; }
.soft, figcaption, footer { color: var(--soft); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { background: var(--band); font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--rule); border-radius: 6px;
  padding: .5rem; box-sizing: border-box; }
a { color: inherit; }
code { font-size: .85em; overflow-wrap: anywhere; }
""".strip()

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(run: Run, path: Path) -> Path:
    """Write the report of a run whose notebooks lie in `<run>/notebooks/<step>/`; links are relative to `path`."""
    evaluations = find_evaluations(run.folder)
    model = evaluations[0].model if evaluations else run.provenance.name
    found = [open_run(file.parent) for file in (run.folder / "notebooks").glob(f"*/{PROVENANCE}")]
    steps = [step.folder for step in sorted(found, key=lambda step: (step.provenance.name, step.provenance.started))]
    parts = [
        _header(model, run.provenance, evaluations),
        *_lead_figures(steps, path.parent),
        *_protocol(evaluations),
        *(_step(folder, path.parent) for folder in steps),
        _provenance(run.provenance),
    ]
    write_text_atomic(path, page(f"{model} on the HTP", "\n".join(parts)))
    return path


def page(title: str, body: str) -> str:
    """A whole document; `title` is text, `body` HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(frame: pd.DataFrame) -> str:
    """A frame as an HTML table, cells escaped; columns whose every cell starts with a digit are set to the right."""
    numeric = [all(str(value)[:1].isdigit() for value in frame[column]) for column in frame]
    kinds = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{kind}>{escape(str(name))}</th>" for kind, name in zip(kinds, frame.columns, strict=True))
    rows = [
        "".join(f"<td{kind}>{escape(str(value))}</td>" for kind, value in zip(kinds, row, strict=True))
        for row in frame.itertuples(index=False)
    ]
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def figure(svg: Path, root: Path) -> str:
    """A figure drawn from SVG data, with a link to the table behind it, relative to `root`."""
    data = base64.b64encode(svg.read_bytes()).decode()
    image = f'<img alt="{escape(svg.stem.replace("_", " "))}" src="data:image/svg+xml;base64,{data}">'
    table_behind = _link(svg.with_suffix(".csv"), root, f"{svg.stem}.csv")
    return f"<figure>{image}<figcaption>Data: {table_behind}</figcaption></figure>"


def _header(model: str, provenance: Provenance, evaluations: list[Evaluation]) -> str:
    chips = ", ".join(sorted({e.soc for e in evaluations})) or "none"
    code = provenance.code.git_sha[:10] if provenance.code.git_sha else "no git"
    version = f"rwkvlab {provenance.packages.get('rwkvlab') or 'from its folder'} ({code})"
    intro = (
        "From checkpoint to HTP context binary, at each precision: what a token moves through memory, what "
        "quantization costs on the last word of unseen texts, and whether the compiled model computes what the "
        "simulation in torch does."
    )
    results = table(reading_table(result_table(evaluations))) if evaluations else "<p>No evaluation finished.</p>"
    return (
        f"<h1>{escape(model)} on the HTP</h1>\n"
        f'<p class="soft">{escape(provenance.started[:16].replace("T", " "))} UTC, compiled for {escape(chips)}, '
        f"{escape(version)}</p>\n<p>{escape(intro)}</p>\n{results}"
    )


def _lead_figures(steps: Iterable[Path], root: Path) -> list[str]:
    found = [folder / "figures" / "accuracy_against_bytes.svg" for folder in steps]
    return [figure(svg, root) for svg in found if svg.is_file()]


def _protocol(evaluations: list[Evaluation]) -> list[str]:
    """How the numbers were obtained, one row per evaluation."""
    if not evaluations:
        return []
    rows = [
        {
            "precision": e.precision,
            "ppl and acc on": e.score.protocol.where,
            "task": e.score.protocol.task + (f" ({e.score.protocol.partial})" if e.score.protocol.partial else ""),
            "n": e.score.n,
            "token 0 first": "yes" if e.score.protocol.bos else "no",
            "items": e.score.protocol.items_hash,
            "tokenizer": f"{e.score.protocol.tokenizer} {e.score.protocol.tokenizer_hash}",
            "recipe": e.recipe_hash,
            "fidelity": _compared(e.fidelity),
            "compiled by": e.sdk_build,
        }
        for e in evaluations
    ]
    text = (
        "ppl = exp(-mean over items of the last word's summed log-probability), acc = share of items whose last-word "
        "tokens are all the most likely ones, with Wilson's 95 % interval. DDR bytes are the HTP compiler's own count "
        "for one execution of the decode graphs. No speed was measured: the simulator's clock is not a device's."
    )
    return [f"<h2>Protocol</h2>\n<p>{escape(text)}</p>", table(pd.DataFrame(rows))]


def _compared(found: Agreement | None) -> str:
    return f"{found.reference} / {found.other}, {found.n} positions of {found.sequences} texts" if found else "not run"


def _step(folder: Path, root: Path) -> str:
    """One notebook: its title and question, its figures, links."""
    copy = folder / EXECUTED
    title, question = opening(copy) if copy.is_file() else (folder.name, "")
    drawn = sorted((folder / "figures").glob("*.svg"), key=lambda svg: (svg.stat().st_mtime_ns, svg.name))
    figures = [figure(svg, root) for svg in drawn]
    variant = folder.name.partition("-")[2]
    heading = f"{title} ({variant})" if variant else title
    state = "" if open_run(folder).done else " This notebook did not finish."
    link = f"{_link(copy, root, 'executed notebook')}." if copy.is_file() else ""
    return f'<h2>{escape(heading)}</h2>\n<p>{escape(question)}{state}</p>\n<p class="soft">{link}</p>\n' + "\n".join(
        figures
    )


def opening(notebook: Path) -> tuple[str, str]:
    """Title and first paragraph of a notebook's first cell, without Markdown's marks."""
    text = nbformat.read(notebook, as_version=4).cells[0].source
    title, _, rest = text.partition("\n\n")
    return title.lstrip("# ").strip(), " ".join(rest.partition("\n\n")[0].replace("`", "").replace("*", "").split())


def _provenance(provenance: Provenance) -> str:
    code = provenance.code
    dirty = " with uncommitted changes" if code.dirty else ""
    facts: Mapping[str, str] = {
        "code": f"{code.git_sha}{dirty}" if code.git_sha else "not a git checkout",
        **{name: version or "not installed" for name, version in provenance.packages.items()},
        "QNN SDK": provenance.qnn_sdk or "not installed",
        "Python": provenance.python,
        "machine": provenance.platform,
        "started, UTC": provenance.started,
        **{f"sha256 of {name}": digest for name, digest in provenance.inputs.items()},
    }
    return "<h2>Provenance</h2>\n" + table(pd.DataFrame({"what": list(facts), "value": list(facts.values())}))


def _link(target: Path, root: Path, text: str) -> str:
    relative = target.relative_to(root).as_posix()
    return f'<a href="{escape(quote(relative))}">{escape(text)}</a>'
