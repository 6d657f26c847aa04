"""Figures are drawn from realistic tables, of a small model and of one with many layers, and saved with their data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from rwkvlab import plots
from rwkvlab.tables.activations import activation_table, histogram_table, trade_off_table
from rwkvlab.tables.model import both_forms, half_lives, parity_table, state_norms
from rwkvlab.tables.scores import on_front
from rwkvlab.tables.traffic import stage_table, token_table
from rwkvlab.tables.weights import find_weight, grid_histogram, sqnr, weight_errors


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def errors(layers: int) -> pd.DataFrame:
    linears = ["att.key", "att.w1", "ffn.key"]
    rows = [[layer, linear, 8, 8, 3.0, 20.0 + layer, 44.0] for layer in range(layers) for linear in linears]
    rows.append([-1, "head", 8, 8, 3.0, 17.0, 41.0])
    columns = ["layer", "linear", "rows", "columns", "peak / rms", "W4 SQNR, dB", "W8 SQNR, dB"]
    return pd.DataFrame(rows, columns=columns)


def ranges(layers: int) -> pd.DataFrame:
    names = [f"blocks.{layer}.{kind}" for layer in range(layers) for kind in ("att.key", "ffn.key")] + ["head"]
    return pd.DataFrame(
        [[name, "input", -9.0, -4.0, 4.0, 8.0, 1.0] for name in names],
        columns=["linear", "end", "min", "p_low", "p_high", "max", "rms"],
    )


def results(sim: bool = True) -> pd.DataFrame:
    rows = [["fp16", 2.5e6, 0.96, 1e-6], ["a16w8", 1.7e6, 0.95, 1e-5], ["a16w4", 1.3e6, 0.91, 1e-2]]
    table = pd.DataFrame(rows, columns=["precision", "ddr_bytes_per_token", "acc", "overall_kl"])
    table = table.assign(model="x070", soc="SM8650", chunks=1, n=500, k=(500 * table.acc).astype(int))
    table = table.assign(acc_low=table.acc - 0.02, acc_high=table.acc + 0.02)
    table["on_front"] = on_front(table.ddr_bytes_per_token.to_numpy(), table.acc.to_numpy())
    return table if sim else table.assign(overall_kl=None)


def divergence() -> pd.DataFrame:
    frames = [
        pd.DataFrame({"comparison": name, "sequence": 0, "position": range(30), "kl": scale * rng().random(30)})
        for name, scale in (("torch-fp32 → torch-sim", 1e-3), ("torch-sim → htp-sim", 0.0))
    ]
    return pd.concat(frames)


ITEMS = pd.DataFrame({"surprise_float": rng().exponential(size=50), "surprise_quantized": rng().exponential(size=50)})
STEPS = pd.DataFrame({"token": [0, 0, 1, 1], "layer": [0, 1, 0, 1], "rms": [1.0, 2, 1, 2], "largest": [3.0, 3, 3, 3]})
TOKENS = pd.DataFrame(
    [["fp16", "decode", 2e6, 2e5, 1, 2.2e6], ["fp16", "prefill", 7e4, 8e3, 1, 7.8e4]],
    columns=["precision", "graph", "read", "write", "size", "total"],
)
OPERATIONS = pd.DataFrame({"operation": [f"Op{i}" for i in range(20)], "decode": range(20), "prefill": range(20)})
PROOFS = pd.DataFrame({"width": [64, 128], "weight_bytes": [8192, 32768], "ddr_bytes": [9000, 40000]})
OUTPUTS = pd.DataFrame({"width": [64, 64], "expected": [0.0, 1.0], "got": [0.001, 1.001]})
SPANS = pd.DataFrame({"layer": [0, 0, 1, 1], "share": [0.25, 0.75] * 2, "half_life": [1.2, 80, 3, 1000]})
PARITY = pd.DataFrame({"form": ["sequence"] * 2, "position": [0, 1], "relative_error": [0.0, 1e-6]})
HISTOGRAM = pd.DataFrame({"magnitude": [0.1, 1.0, 10.0], "negative": [0, 0, 0], "positive": [5, 9, 1]})
GRID = pd.concat(pd.DataFrame({"bits": b, "code": np.linspace(-8, 7, 40), "density": 0.025}) for b in (4, 8))

FIGURES = {
    "parity": lambda: plots.parity_errors(PARITY),
    "state sizes": lambda: plots.state_sizes(STEPS),
    "memory spans": lambda: plots.memory_spans(SPANS),
    "ranges": lambda: plots.activation_ranges(ranges(4), "input", 99.99),
    "ranges, one layer": lambda: plots.activation_ranges(ranges(1), "input", 99.99),
    "ranges, 32 layers": lambda: plots.activation_ranges(ranges(32), "input", 99.99),
    "histogram": lambda: plots.activation_histogram(HISTOGRAM, "head.input", (0.0, 10.0), 1e-4),
    "error map": lambda: plots.error_map(errors(4), 4),
    "error map, 32 layers": lambda: plots.error_map(errors(32), 8),
    "error by linear": lambda: plots.error_by_linear(errors(32)),
    "weights on grid": lambda: plots.weights_on_grid(GRID),
    "traffic": lambda: plots.memory_traffic(TOKENS),
    "operations": lambda: plots.operation_counts(OPERATIONS),
    "stages": lambda: plots.compile_stages(pd.DataFrame({"stage": ["a", "b"], "milliseconds": [0.1, 100.0]})),
    "proof errors": lambda: plots.proof_errors(OUTPUTS),
    "proof traffic": lambda: plots.proof_traffic(PROOFS),
    "surprise": lambda: plots.surprise(ITEMS, "a16w4"),
    "divergence by position": lambda: plots.divergence_by_position(divergence()),
    "accuracy": lambda: plots.accuracy_against_bytes(results()),
    "accuracy, one row": lambda: plots.accuracy_against_bytes(results().head(1)),
    "divergence": lambda: plots.divergence_against_bytes(results()),
    "divergence without simulator": lambda: plots.divergence_against_bytes(results(sim=False)),
}


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES.keys())
@pytest.mark.filterwarnings("error")
def test_figure_is_labelled_and_renders_without_a_warning(make, tmp_path: Path) -> None:
    figure = make()
    assert isinstance(figure, Figure)
    axes = [a for a in figure.axes if a.get_visible() and a.get_label() != "<colorbar>"]
    assert any(a.get_title(loc="left") for a in axes), "a title"
    labels = [text for a in axes for text in (a.get_xlabel(), a.get_ylabel())]
    assert any(labels) or figure.get_supxlabel(), "labelled axes"
    assert figure.get_figheight() < 12, "fits a page whatever the number of layers"
    plots.save_figure(figure, pd.DataFrame(), tmp_path, "figure")


def test_a_figure_is_saved_with_the_data_behind_it(tmp_path: Path) -> None:
    saved = plots.save_figure(plots.accuracy_against_bytes(results()), results(), tmp_path / "figures", "pareto")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"pareto.svg", "pareto.png", "pareto.csv"}
    pd.testing.assert_frame_equal(pd.read_csv(saved.csv), results())
    data, size = saved._repr_png_()
    assert data.startswith(b"\x89PNG") and 300 < size["width"] < 1200
    assert b"<svg" in saved.svg.read_bytes()


def test_the_same_data_gives_the_same_files(tmp_path: Path) -> None:
    first, second = (
        plots.save_figure(plots.state_sizes(STEPS), STEPS, tmp_path / name, "state").svg.read_bytes() for name in "ab"
    )
    assert first == second
    assert not re.search(rb"\d{4}-\d\d-\d\dT", first), "no date"


def test_accuracy_plot_shows_every_interval_and_count() -> None:
    figure = plots.accuracy_against_bytes(results())
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"fp16\n480/500", "a16w8\n475/500", "a16w4\n455/500"} <= set(texts)
    assert any("n = 500" in text and "95 %" in text for text in texts)
    assert len(figure.axes[0].containers) == 3


def test_on_front() -> None:
    cost, gain = np.array([3.0, 2.0, 1.0, 2.5, 2.0]), np.array([0.9, 0.9, 0.5, 0.8, 0.9])
    assert on_front(cost, gain).tolist() == [False, True, True, False, True]


# --- the tables behind the figures, on a real if tiny model ---


def test_activation_tables(tiny_checkpoint) -> None:
    from tests.pipeline import calibration_of

    calibration = calibration_of(tiny_checkpoint)
    table = activation_table(calibration, 99.0)
    assert len(table) == len(calibration.ranges)
    assert (table["min"] <= table.p_low).all() and (table.p_high <= table["max"]).all()
    assert (table["step percentile"] <= table["step min-max"] * 1.0001).all()
    values = calibration.ranges["head.input"]
    histogram = histogram_table(values)
    assert histogram.negative.sum() + histogram.positive.sum() > 0.99 * (values.negative.sum() + values.positive.sum())
    assert trade_off_table(values)["step, of min-max's"].iloc[-1] == pytest.approx(1)


def test_weight_tables(tiny_checkpoint) -> None:
    table = weight_errors(tiny_checkpoint)
    gain = table["W8 SQNR, dB"] - table["W4 SQNR, dB"]
    assert gain.between(20, 29).all(), "four bits are worth about 24 dB"
    weight = find_weight(tiny_checkpoint, "blocks.1.ffn.key")
    row = table[(table.layer == 1) & (table.linear == "ffn.key")].iloc[0]
    scale = weight.abs().amax(1, keepdim=True) / 127
    noise = (weight - (weight / scale).round() * scale).square().mean()
    plain = 10 * float((weight.square().mean() / noise).log10())
    assert row["W8 SQNR, dB"] == pytest.approx(plain, abs=0.5) and sqnr(weight, 8) == row["W8 SQNR, dB"]
    histogram = grid_histogram(weight, 4)
    assert histogram.share.sum() == pytest.approx(1)
    assert histogram[histogram.code.abs() <= 8].share.sum() == pytest.approx(1)


def test_model_tables(tiny_checkpoint) -> None:
    from rwkvlab.model.load import load_model

    model, ids = load_model(tiny_checkpoint), [0, 5, 9, 3, 7, 2]
    states = state_norms(model, ids)
    assert list(states.groupby("layer").size()) == [6, 6, 6] and (states.largest >= states.rms).all()
    spans = half_lives(model, ids)
    assert list(spans.groupby("layer").size()) == [64, 64, 64]
    assert spans.half_life.min() > np.log(0.5) / -np.exp(-0.5), "the decay of RWKV-7 is at least exp(-exp(-0.5))"
    forms = both_forms(model, ids)
    parity = parity_table(forms, forms["sequence"])
    assert parity[parity.form == "sequence"].error.max() == 0
    assert 0 < parity[parity.form == "step by step"].relative_error.max() < 1e-5


def test_traffic_per_token_sums_chunks_and_divides_blocks() -> None:
    columns = ["precision", "graph", "tokens", "DDR read, B", "DDR write, B", "binary, B"]
    rows = [["fp16", "decode", 1, 100, 10, 7], ["fp16", "decode", 1, 50, 5, 7], ["fp16", "prefill", 32, 320, 64, 9]]
    table = token_table(pd.DataFrame(rows, columns=columns)).set_index("graph")
    assert table.loc["decode", ["read", "write", "total", "size"]].tolist() == [150, 15, 165, 14]
    assert table.loc["prefill", "total"] == 12


def test_compiler_stages_are_read_from_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Starting stage: A B\n [#] 2%\rCompleted stage: A B (1500 us)\nrest\n")
    assert stage_table(tmp_path / "log").to_dict("records") == [{"stage": "A B", "milliseconds": 1.5}]
