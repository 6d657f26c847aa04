"""The local target on the host simulator; and that it needs neither torch nor AIMET."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import venv
from pathlib import Path

import numpy as np
import pytest

from rwkvlab.device.local import LocalTarget
from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.cache import ContextCache
from tests.pipeline import build_to, encodings_of, recipe_for

ROOT = Path(__file__).resolve().parents[2]
TOKENS = [0, *np.random.default_rng(4).integers(0, 80, 39).tolist()]  # a block of 32 and eight more
FP16_NOISE = 0.02  # of the logit range: random weights amplify float16 rounding, as test_matrix shows against torch


@pytest.fixture(scope="module")
def encodings(tiny_checkpoint):
    return encodings_of(tiny_checkpoint, "a16w8")


@pytest.fixture(scope="module")
def caches(tiny_checkpoint, encodings, tmp_path_factory) -> dict[str, ContextCache]:
    options = {
        "whole": recipe_for("a16w8", 1),
        "two chunks": recipe_for("a16w8", 2),
        "external embedding": recipe_for("a16w8", 1, external_embedding=True),
    }
    folder = tmp_path_factory.mktemp("caches")
    return {name: build_to(folder / name[:3], tiny_checkpoint, encodings, r) for name, r in options.items()}


@pytest.fixture(scope="module")
def targets(caches) -> dict[str, LocalTarget]:
    return {name: LocalTarget(cache) for name, cache in caches.items()}


@pytest.fixture(scope="module")
def decoded(targets) -> np.ndarray:
    """Logits of every position, one token at a time."""
    target, rows = targets["whole"], []
    state = target.empty_state()
    for token in TOKENS:
        logits, state = target.step(token, state)
        rows.append(logits)
    return np.array(rows)


def noise(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.ptp(want))


def test_where_it_ran_is_said(targets):
    assert targets["whole"].where == "htp-sim"


@pytest.mark.parametrize("length", [1, 32, 40])
def test_prefill_and_decode_equal_decode_only(targets, decoded, length):
    logits, state = targets["whole"].prefill(TOKENS[:length])
    assert noise(logits, decoded[length - 1]) < FP16_NOISE
    if length < len(TOKENS):
        following, _ = targets["whole"].step(TOKENS[length], state)
        assert noise(following, decoded[length]) < FP16_NOISE


def test_prefill_continues_from_a_state(targets, decoded):
    _, state = targets["whole"].prefill(TOKENS[:20])
    logits, _ = targets["whole"].prefill(TOKENS[20:], state)
    assert noise(logits, decoded[-1]) < FP16_NOISE


@pytest.mark.parametrize("name", ["whole", "two chunks", "external embedding"])
def test_every_position_equals_decoding(targets, decoded, name):
    (index, logits), *_ = targets[name].logits([TOKENS])
    assert index == 0 and logits.shape == decoded.shape
    assert noise(logits, decoded) < FP16_NOISE


def test_padding_on_the_right_changes_no_position(targets):
    """But for rounding: decays are taken relative to the middle of 16 rows, which may be padding."""
    long, *shorter = (TOKENS[:32], TOKENS[:17], TOKENS[:5])
    scores = dict(targets["whole"].logits([long, *shorter]))
    for index, ids in enumerate(shorter, start=1):
        assert noise(scores[index], scores[0][: len(ids)]) < FP16_NOISE


def test_external_embedding_computes_the_same(targets):
    inner, outer = (dict(targets[n].logits([TOKENS[:32]]))[0] for n in ("whole", "external embedding"))
    assert noise(outer, inner) < FP16_NOISE


def test_external_embedding_is_a_file_of_its_own(caches, tiny_spec):
    cache = caches["external embedding"]
    file = cache.manifest.embedding
    assert file is not None and file.name == "tiny-x070.emb"
    assert file.bytes == tiny_spec.vocab_size * tiny_spec.n_embd * 4


def test_states_are_not_changed_in_place(targets):
    target = targets["two chunks"]
    state = target.empty_state()
    target.step(3, state)
    assert all(not value.any() for value in state.values())
    assert list(state) == [f"state{i}" for i in range(9)]


@pytest.mark.parametrize("ids", [[-1], [80], [3, 99]])
def test_ids_outside_the_vocabulary_are_refused(targets, ids):
    for use in (lambda t: t.prefill(ids), lambda t: list(t.logits([ids])), lambda t: t.step(ids[-1], t.empty_state())):
        with pytest.raises(RwkvlabError, match="0 to 79"):
            use(targets["whole"])


def test_empty_prompts_are_refused(targets):
    with pytest.raises(RwkvlabError, match="empty"):
        targets["whole"].prefill([])
    with pytest.raises(RwkvlabError, match="empty"):
        list(targets["whole"].logits([[0], []]))


# --- without torch and AIMET ---


def device_distributions() -> set[str]:
    """What `pip install rwkvlab[device]` brings, from the requirements of what is installed here."""
    found: set[str] = set()
    todo = [(line, "device") for line in importlib.metadata.requires("rwkvlab") or []]
    while todo:
        line, extra = todo.pop()
        name = re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0].lower().replace("_", "-")
        wanted = re.search(r"extra\s*==\s*['\"]([\w-]+)", line)
        if name in found or (wanted and wanted[1] != extra):
            continue
        try:
            todo += [(requirement, "") for requirement in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(name)
    return found


@pytest.fixture(scope="module")
def device_python(tmp_path_factory) -> Path:
    """A virtual environment with the device install and nothing else: links to the files of this environment's."""
    folder = tmp_path_factory.mktemp("device") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in device_distributions():
        for file in importlib.metadata.files(name) or []:
            top, source = file.parts[0], Path(str(file.locate()))
            if top != ".." and not (site / top).exists():
                (site / top).symlink_to(source if len(file.parts) == 1 else source.parents[len(file.parts) - 2])
    (site / "checkout.pth").write_text(str(ROOT))
    return folder / "bin" / "python"


EVALUATE = """
import importlib.util, json, sys
for name in ("torch", "aimet_torch", "aimet_common", "onnx", "pandas", "matplotlib"):
    assert importlib.util.find_spec(name) is None, name + " is here"
from rwkvlab.device.local import LocalTarget
from rwkvlab.evaluate.lambada import evaluate_lambada
from rwkvlab.htp.cache import ContextCache
from rwkvlab.texts.lambada import Item
from rwkvlab.tokenizer import load_tokenizer
result = evaluate_lambada(
    LocalTarget(ContextCache.open(sys.argv[1])), [Item("the sun is", " hot")], load_tokenizer("bytes"), progress=False
)
print(json.dumps([result.n, float(result.log_probs[0]), result.protocol.where, "torch" in sys.modules]))
"""


def test_a_context_runs_without_torch_and_aimet(device_python, tmp_path):
    from rwkvlab.checkpoint import Checkpoint, write_random_checkpoint
    from rwkvlab.evaluate.lambada import evaluate_lambada
    from rwkvlab.quant.encodings import Encodings
    from rwkvlab.quant.torch_source import TorchSource
    from rwkvlab.spec import LoraRanks, ModelSpec
    from rwkvlab.texts.lambada import Item
    from rwkvlab.tokenizer import load_tokenizer

    lora = LoraRanks(decay=8, iclr=8, value=8, gate=8)
    spec = ModelSpec(n_layer=1, n_embd=32, head_size=16, n_ffn=64, vocab_size=256, lora=lora)
    checkpoint = Checkpoint.open(write_random_checkpoint(spec, tmp_path / "bytes.pth"))
    cache = build_to(tmp_path, checkpoint, Encodings(), recipe_for("fp16"))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [device_python, "-c", EVALUATE, cache.folder], capture_output=True, text=True, cwd=tmp_path, env=clean
    )
    assert done.returncode == 0, done.stderr[-3000:]
    n, log_prob, where, has_torch = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[1")))
    here = evaluate_lambada(
        TorchSource(checkpoint), [Item("the sun is", " hot")], load_tokenizer("bytes"), progress=False
    )
    assert (n, where, has_torch) == (1, "htp-sim", False)
    assert abs(log_prob - here.log_probs[0]) < 0.05
