from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rwkvlab.spec import LoraRanks, ModelSpec

if TYPE_CHECKING:
    from rwkvlab.checkpoint import Checkpoint

# Workers run side by side, and one thread makes sums reproducible. The variable is for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
try:
    import torch
except ImportError:  # the device install: its tests need none
    torch = None
else:
    torch.set_num_threads(1)

# No test may depend on how fast the machine is, and a failure must come back on the next run.
settings.register_profile("rwkvlab", deadline=None, derandomize=True)
settings.load_profile("rwkvlab")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Optional data beside the checkout: real LAMBADA, trained checkpoints, novels."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("needs the optional data in ../shared, which is not here")
    return folder


@pytest.fixture(scope="session")
def tiny_spec() -> ModelSpec:
    """Sizes chosen so that none can be mistaken for another, nor for a usual one."""
    lora = LoraRanks(decay=8, iclr=10, value=6, gate=12)
    return ModelSpec(n_layer=3, n_embd=64, head_size=16, n_ffn=96, vocab_size=80, lora=lora)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Random weights of `tiny_spec`, opened from a .pth file."""
    from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint

    path = tmp_path_factory.mktemp("tiny") / "tiny-x070.pth"
    return Checkpoint.open(write_random_checkpoint(tiny_spec, path, seed=1))
