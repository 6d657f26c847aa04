"""Peak memory of calibrating, simulating and exporting a generated model in 1 chunk and in 6.

    python -m benchmarks.memory [--layers 12] [--width 768] [--vocab 65536]

Each count runs in a process of its own, which reports its highest resident size (VmHWM) and how much of it importing
torch and AIMET alone takes. The embedding is external, so that vocabulary and blocks are told apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LENGTH, ROWS = 32, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--worker", nargs=3, metavar=("CHECKPOINT", "CHUNKS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(measure(Path(options.worker[0]), int(options.worker[1]), Path(options.worker[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(options.layers, options.width, options.vocab, Path(folder))
        rows = {count: run_worker(checkpoint, count, Path(folder) / str(count)) for count in options.chunks}
    print(render(options.layers, options.width, options.vocab, rows))


def make_checkpoint(layers: int, width: int, vocab: int, folder: Path) -> Path:
    """Random weights in the proportions of the released 0.1B model, in bfloat16."""
    import torch

    from rwkvlab.checkpoint import write_random_checkpoint
    from rwkvlab.spec import LoraRanks, ModelSpec

    lora = LoraRanks(decay=64, iclr=64, value=32, gate=128)
    spec = ModelSpec(n_layer=layers, n_embd=width, head_size=64, n_ffn=4 * width, vocab_size=vocab, lora=lora)
    return write_random_checkpoint(spec, folder / "generated.pth", dtype=torch.bfloat16)


def run_worker(checkpoint: Path, chunks: int, folder: Path) -> dict[str, float]:
    """Measure one chunk count in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--worker", str(checkpoint), str(chunks), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(path: Path, chunks: int, folder: Path) -> dict[str, float]:
    """Peak memory in MB after each stage of this process's work on one model."""
    import aimet_torch.onnx
    import aimet_torch.quantsim  # noqa: F401
    import numpy as np
    import onnx  # noqa: F401

    from rwkvlab.checkpoint import Checkpoint
    from rwkvlab.export.export import export_model
    from rwkvlab.quant.calibrate import calibrate
    from rwkvlab.quant.quantize import quantize
    from rwkvlab.quant.recipe import GraphOptions, Recipe
    from rwkvlab.quant.torch_source import TorchSource

    peaks = {"imports": high_water_mark()}
    checkpoint = Checkpoint.open(path)
    recipe = Recipe(precision="a16w4", graph=GraphOptions(chunks=chunks, external_embedding=True))
    rows = np.random.default_rng(0).integers(0, checkpoint.spec.vocab_size, (ROWS, LENGTH))
    calibration = calibrate(checkpoint, rows, "random ids", "", chunks, progress=False)
    peaks["calibration"] = high_water_mark()
    encodings = quantize(checkpoint, calibration, recipe)
    for _ in TorchSource(checkpoint, encodings, chunks=chunks).logits(rows.tolist()):
        pass
    peaks["QuantSim"] = high_water_mark()
    export_model(checkpoint, encodings, recipe, folder, progress=False)
    peaks["export"] = high_water_mark()
    return peaks


def high_water_mark() -> float:
    """Highest resident size of this process so far, MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def render(layers: int, width: int, vocab: int, rows: dict[int, dict[str, float]]) -> str:
    """The table, in Markdown."""
    stages = list(next(iter(rows.values())))
    lines = [
        f"Generated RWKV-7, {layers} layers x {width}, vocabulary {vocab}, a16w4; peak resident MB after each stage.",
        "",
        f"| chunks | {' | '.join(stages)} | above the imports |",
        "|---" * (len(stages) + 2) + "|",
    ]
    for count, peaks in rows.items():
        values = [*peaks.values(), peaks[stages[-1]] - peaks["imports"]]
        lines.append(f"| {count} | {' | '.join(f'{value:,.0f}' for value in values)} |")
    peaks = list(rows.values())
    first, last = peaks[0], peaks[-1]
    total = last[stages[-1]] / first[stages[-1]]
    own = (last[stages[-1]] - last["imports"]) / (first[stages[-1]] - first["imports"])
    lines += ["", f"{max(rows)} chunks against {min(rows)}: {total:.0%} of the total, {own:.0%} above the imports."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
