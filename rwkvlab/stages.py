"""The stations of the one flow, each made once and kept under a name that says what it was made from.

    calibration -> encodings -> graphs -> context cache

Commands, notebooks and the demo share this cache: what one of them made, the others find.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rwkvlab.checkpoint import Checkpoint
from rwkvlab.errors import RwkvlabError
from rwkvlab.export.export import export_model
from rwkvlab.files import sha256_file, sha256_text
from rwkvlab.htp.build import build_cache
from rwkvlab.htp.cache import MANIFEST, ContextCache
from rwkvlab.quant.calibrate import Calibration, calibrate
from rwkvlab.quant.encodings import Encodings
from rwkvlab.quant.quantize import quantize
from rwkvlab.quant.recipe import CalibrationOptions, Recipe
from rwkvlab.quant.torch_source import TorchSource
from rwkvlab.soc import find_soc
from rwkvlab.spec import GROUP_NORM_EPS
from rwkvlab.texts.corpus import CalibrationText, Source, calibration_tokens, cut_rows
from rwkvlab.texts.stories import STORIES, generate
from rwkvlab.tokenizer import Tokenizer, check_vocabulary

RANGES = ("checkpoint.py", "range_aids.py", "model/*.py", "quant/calibrate.py")
"""Modules that decide activation statistics."""
GRIDS = ("quant/grid.py", "quant/quantize.py", "quant/encodings.py", "quant/recipe.py")
"""Those that decide encodings besides. A change in any makes a new file: statistics and grids of older code are not
mistaken for this code's. (Graphs and context caches record the code that made them and are replaced in place.)"""


@dataclass(frozen=True)
class Stages:
    """A model with its stage cache.

    Attributes:
        checkpoint: the model.
        tokenizer: its vocabulary.
        root: folder of the cache, e.g. results/stages.
        progress: show bars.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    root: Path
    progress: bool = True

    def __post_init__(self) -> None:
        check_vocabulary(self.tokenizer, self.checkpoint.spec.vocab_size)

    @property
    def folder(self) -> Path:
        """Where this model's stages are."""
        epsilon = self.checkpoint.spec.group_norm_eps  # no tensor records it, so the file's digest cannot
        said = "" if epsilon == GROUP_NORM_EPS else f"-eps{epsilon:g}"
        return self.root / f"{self.checkpoint.path.stem}-{self.checkpoint.sha256[:8]}{said}"

    def calibration(self, recipe: Recipe) -> Calibration:
        """Activation statistics on the recipe's text."""
        text = read_calibration_text(recipe.calibration, self.tokenizer)
        aids = "-aids" + sha256_text(recipe.aids.model_dump_json())[:6] if recipe.aids.on else ""
        path = self.folder / f"calibration-{text.sha256[:12]}{aids}-{_code(RANGES)}.npz"
        if path.is_file():
            with suppress(RwkvlabError):  # damaged: it is ours and follows from model and text, so it is made anew
                return Calibration.load(path)
        made = calibrate(
            self.checkpoint.with_aids(recipe.aids),
            text.batches,
            recipe.calibration.text,
            text.sha256,
            recipe.graph.chunks,
            progress=self.progress,
            seed=recipe.calibration.seed,
        )
        made.save(path)
        return made

    def encodings(self, recipe: Recipe) -> Encodings:
        """Grids of every quantized tensor; empty for fp16."""
        if not recipe.quantizes:
            return Encodings()
        path = self.folder / f"{self._quantization(recipe)}-{_code(RANGES + GRIDS)}.encodings"
        if path.is_file():
            return Encodings.load(path)
        made = quantize(self.checkpoint, self.calibration(recipe), recipe)
        made.save(path)
        return made

    def graphs(self, recipe: Recipe) -> Path:
        """Folder of the exported ONNX graphs."""
        folder = self.folder / f"{self._quantization(recipe)}-graphs-{recipe.hash}"
        export_model(self.checkpoint, self.encodings(recipe), recipe, folder, force=True, progress=self.progress)
        return folder

    def context(self, recipe: Recipe) -> ContextCache:
        """Compiled and verified context cache for the recipe's SoC."""
        soc = find_soc(recipe.graph.soc)
        graphs = self.graphs(recipe)
        folder = self.folder / f"{self._quantization(recipe)}-{soc.name}-{recipe.hash}"
        try:
            return build_cache(graphs, folder, soc, progress=self.progress)
        except RwkvlabError:
            if not (folder / MANIFEST).exists():
                raise
            # This folder is ours and its name fixes what belongs in it, so a stale or damaged cache is made anew.
            return build_cache(graphs, folder, soc, force=True, progress=self.progress)

    def torch(self, recipe: Recipe | None = None) -> TorchSource:
        """The model in torch: float32 without a recipe, QuantSim with one."""
        if recipe is None:
            return TorchSource(self.checkpoint)
        checkpoint = self.checkpoint.with_aids(recipe.aids)
        return TorchSource(checkpoint, self.encodings(recipe), find_soc(recipe.graph.soc).htp_arch)

    def _quantization(self, recipe: Recipe) -> str:
        text = read_calibration_text(recipe.calibration, self.tokenizer)
        return f"{recipe.precision}-{sha256_text(recipe.quantization_hash + text.sha256)[:8]}"


def _code(patterns: Sequence[str]) -> str:
    """Six hex digits over rwkvlab's modules that match."""
    root = Path(__file__).parent
    files = [file for pattern in patterns for file in sorted(root.glob(pattern))]
    return sha256_text("".join(sha256_file(file) for file in files))[:6]


def read_calibration_text(options: CalibrationOptions, tokenizer: Tokenizer) -> CalibrationText:
    """The recipe's calibration text as rows of tokens.

    Raises:
        RwkvlabError: a file is missing, or there is too little text.
    """
    if options.text != STORIES:
        return calibration_tokens(options.text, tokenizer, options.tokens, options.length)
    stories = generate(options.tokens // 40 + 2, options.seed, "train")
    sources = [Source(f"story {number}", story.text + ".") for number, story in enumerate(stories)]
    return cut_rows(sources, tokenizer, options.tokens, options.length)
