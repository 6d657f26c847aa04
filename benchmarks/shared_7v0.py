"""A byte-level checkpoint through the whole pipeline, measured in bits per byte of real LAMBADA text.

    python -m benchmarks.shared_7v0 MODEL.pth LAMBADA.jsonl [--items 20] [--sim-items 2] [--text FOLDER]

Calibrates on --text (or the items after those measured), compiles a16w8 and a16w4 for SM8650, and compares fp32,
QuantSim and the host simulator on the same bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.device.local import LocalTarget
from rwkvlab.evaluate.bits import bits_per_byte
from rwkvlab.evaluate.fidelity import Fidelity, compare
from rwkvlab.quant.recipe import CalibrationOptions, Recipe
from rwkvlab.stages import Stages
from rwkvlab.texts.lambada import load_items
from rwkvlab.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Row:
    """One precision.

    Attributes:
        bits: per byte, QuantSim on all items.
        sim_bits, torch_bits: per byte, simulator and QuantSim on the first few items.
        to_float: QuantSim against fp32 on all items.
        to_sim: simulator against QuantSim on the first few.
        ddr_bytes: per token.
    """

    precision: str
    bits: float
    torch_bits: float
    sim_bits: float
    to_float: Fidelity
    to_sim: Fidelity
    ddr_bytes: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("lambada", type=Path)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--sim-items", type=int, default=2)
    parser.add_argument("--text", type=Path, help="text file or folder to calibrate on")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print(
            render(
                *measure(options.model, options.lambada, Path(folder), options.items, options.sim_items, options.text)
            )
        )


def measure(
    model: Path, lambada: Path, folder: Path, items: int, sim_items: int, text: Path | None = None
) -> tuple[float, list[Row]]:
    """fp32 bits per byte on `items` passages, and a row per precision."""
    tokenizer = load_tokenizer("bytes")
    passages = [item.text for item in load_items(lambada)]
    if text is None:
        text = folder / "calibration.txt"
        text.write_text("\n".join(passages[items : items + 200]))
    stages = Stages(Checkpoint.open(model), tokenizer, folder, progress=False)
    measured = passages[:items]
    sequences = [[0, *tokenizer.encode(passage)] for passage in measured]
    float_bits = bits_per_byte(stages.torch(), measured, tokenizer).value

    def row(precision: str) -> Row:
        calibration = CalibrationOptions(text=str(text))
        recipe = Recipe.model_validate({"precision": precision, "calibration": calibration.model_dump()})
        cache = stages.context(recipe)
        target, quantsim = LocalTarget(cache), stages.torch(recipe)
        few = measured[:sim_items]
        return Row(
            precision,
            bits_per_byte(quantsim, measured, tokenizer).value,
            bits_per_byte(quantsim, few, tokenizer).value,
            bits_per_byte(target, few, tokenizer).value,
            compare(stages.torch(), quantsim, sequences),
            compare(quantsim, target, sequences[:sim_items]),
            cache.manifest.ddr_bytes_per_token(),
        )

    return float_bits, [row("a16w8"), row("a16w4")]


def render(float_bits: float, rows: list[Row]) -> str:
    """The table, in Markdown."""
    lines = [
        f"fp32: {float_bits:.4f} bits per byte over {rows[0].to_float.n} positions; "
        f"the simulator on the first {rows[0].to_sim.n}.",
        "",
        "| precision | bits/byte QuantSim | KL from fp32 | bits/byte simulator (QuantSim on the same) | "
        "KL simulator from QuantSim | same top-1 | DDR bytes per token |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.precision} | {r.bits:.4f} | {r.to_float.mean_kl:.2e} | {r.sim_bits:.4f} ({r.torch_bits:.4f}) | "
        f"{r.to_sim.mean_kl:.2e} | {r.to_sim.agree}/{r.to_sim.n} | {r.ddr_bytes:,.0f} |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
