"""Our logits beside those of the independent `rwkv` package: `python -m rwkvlab.model.parity MODEL`.

The package reads its switches from the environment when it is imported, so it runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.model.load import load_model
from rwkvlab.spec import Version

_REFERENCE = """
import sys, numpy, torch
torch.set_num_threads(1)
from rwkv.model import RWKV
model = RWKV(model=sys.argv[1], strategy="cpu fp32")
logits, _ = model.forward([int(t) for t in sys.argv[3].split(",")], None, full_output=True)
numpy.save(sys.argv[2], logits.float().numpy())
"""


@dataclass(frozen=True)
class Parity:
    """Largest logit difference to the reference.

    Attributes:
        tokens: positions compared.
        logit_range: largest minus smallest reference logit.
        sequence_error: with the whole text in one call (chunk-parallel WKV).
        step_error: token by token (step WKV).
    """

    tokens: int
    logit_range: float
    sequence_error: float
    step_error: float

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens, logit range {self.logit_range:.3g}: largest difference to the rwkv package "
            f"{self.sequence_error:.1e} as a sequence, {self.step_error:.1e} step by step "
            f"({self.sequence_error / self.logit_range:.1e} and {self.step_error / self.logit_range:.1e} of the range)"
        )


def compare_with_rwkv_package(checkpoint: Checkpoint, tokens: Sequence[int]) -> Parity:
    """Run both on the same tokens from the empty state, in float32 on the CPU.

    Raises:
        RwkvlabError: the package is missing or does not load the checkpoint.
    """
    expected = reference_logits(checkpoint.path, tokens, checkpoint.spec.version)
    model, ids = load_model(checkpoint), torch.tensor([list(tokens)])
    with torch.no_grad():
        sequence, _ = model(ids)
        steps, state = [], None
        for position in range(len(tokens)):
            logits, state = model(ids[:, position : position + 1], state)
            steps.append(logits[0, 0])
    return Parity(
        tokens=len(tokens),
        logit_range=float(expected.max() - expected.min()),
        sequence_error=float(np.abs(sequence[0].numpy() - expected).max()),
        step_error=float(np.abs(torch.stack(steps).numpy() - expected).max()),
    )


def reference_logits(path: Path, tokens: Sequence[int], version: Version) -> np.ndarray:
    """Logits [T, V] of the `rwkv` package for a .pth file."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "logits.npy"
        arguments = [str(path.with_suffix("")), str(output), ",".join(map(str, tokens))]
        switches = {"RWKV_V7_ON": "1" if version == "7.0" else "0", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
        environment = os.environ | switches
        command = [sys.executable, "-W", "ignore", "-c", _REFERENCE, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RwkvlabError(
                f"the rwkv package does not run {path.name}: {reason}",
                "a BlinkDL .pth",
                "pip install rwkv, or skip parity",
            )
        return np.load(output)


def main(path: str) -> None:
    """Print the parity of one checkpoint on 200 random tokens."""
    checkpoint = Checkpoint.open(path)
    tokens = np.random.default_rng(0).integers(0, checkpoint.spec.vocab_size, 200).tolist()
    print(compare_with_rwkv_package(checkpoint, tokens))


if __name__ == "__main__":
    main(sys.argv[1])
