"""A recipe: everything that decides a quantized model's numbers, as data."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import write_text_atomic
from rwkvlab.range_aids import RangeAids

Precision = Literal["fp16", "a16w8", "a16w4", "att-a16w8+ffn-a16w4"]

LARGE_LINEARS = tuple(f"att.{x}" for x in ("receptance", "key", "value", "gate", "output")) + tuple(
    f"ffn.{x}" for x in ("key", "value", "receptance")
)
"""The matrices that hold nearly all of a block's bytes (RWKV-7's gate is low-rank, and its ffn has no receptance)."""
SEED_W4 = ("att.output", "ffn.key", "ffn.value", "ffn.receptance")
"""What rwkv-qualcomm quantizes to 4 bits in the rows it calls att-a16w8 + ffn-a16w4."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrationOptions(_Data):
    """The text whose activations set the 16-bit ranges.

    Attributes:
        text: "stories" (the bundled world's training stories), or a text file or a folder of them.
        tokens: how many tokens are read, the leading token 0 of each row included.
        length: tokens per row; each row starts from the empty state.
        seed: of the generated stories.
    """

    text: str = "stories"
    tokens: int = Field(default=8192, ge=2)
    length: int = Field(default=128, ge=2)
    seed: int = 0


class GraphOptions(_Data):
    """What is compiled from the quantized model.

    Attributes:
        chunks: context binaries the model is cut into.
        prefill_tokens: tokens per execution of the prefill graph, a multiple of 16 from 32 on. (At 16 the compiler of
            onnxruntime-qnn 2.5 orders the rows of a quantized time mix's output wrongly.)
        logits: "all" positions of a prefill block get scores, or the "last" only.
        external_embedding: leave the embedding out of the graph and write it to `<model>.emb`.
        soc: the chip compiled for.
    """

    chunks: int = Field(default=1, ge=1)
    prefill_tokens: int = Field(default=32, ge=32, multiple_of=16)
    logits: Literal["all", "last"] = "all"
    external_embedding: bool = False
    soc: str = "SM8650"


class WeightRule(_Data):
    """An exception to the precision: the weights of some linears in other bits.

    Attributes:
        linears: a pattern over names within a block, or "head": "att.key", "ffn.*", "att.w?".
        layers: which blocks; None is all of them.
        bits: 4, 8, or 16, which stays float.
    """

    linears: str
    layers: tuple[int, ...] | None = None
    bits: Literal[4, 8, 16]

    def matches(self, linear: str) -> bool:
        """Whether the rule speaks of the linear called e.g. `blocks.3.att.key` or `head`."""
        if linear == "head":
            return self.layers is None and fnmatchcase(linear, self.linears)
        _, layer, part = linear.split(".", 2)
        return (self.layers is None or int(layer) in self.layers) and fnmatchcase(part, self.linears)


class Recipe(_Data):
    """How a model is quantized and compiled.

    Attributes:
        precision: fp16; a16w8, every linear in 8-bit weights; a16w4, the large linears in 4-bit weights, the low-rank
            maps and the head in 8-bit; att-a16w8+ffn-a16w4, rwkv-qualcomm's mix: att.output and the channel mix in
            4-bit, the rest in 8-bit. Activations are 16-bit integers at each quantized linear's input and output.
        exceptions: weights in other bits than the precision gives them; the last rule that matches counts.
        method: rtn, round to nearest.
        granularity: per-channel, one scale per output row.
        islands: what stays float: "linears" quantizes the linears only, everything between them is fp16.
        aids: rewrites that keep RWKV-5 and 6 inside float16's range.
        activation_range: min-max, or percentile, which lets the rarest values clip.
        percentile: of the values kept by "percentile", in percent; half of the rest is cut at each end.
        calibration: the text that sets activation ranges.
        graph: what is compiled.
    """

    precision: Precision = "a16w8"
    exceptions: tuple[WeightRule, ...] = ()
    method: Literal["rtn"] = "rtn"
    granularity: Literal["per-channel"] = "per-channel"
    islands: Literal["linears"] = "linears"
    aids: RangeAids = RangeAids()
    activation_range: Literal["min-max", "percentile"] = "min-max"
    percentile: float = Field(default=99.99, gt=50, lt=100)
    calibration: CalibrationOptions = CalibrationOptions()
    graph: GraphOptions = GraphOptions()

    def weight_bits(self, linear: str) -> int | None:
        """Bit width of the weights of the linear called e.g. `blocks.3.att.key` or `head`; None stays float."""
        bits = self._bits_by_precision(linear)
        for rule in self.exceptions:
            if rule.matches(linear):
                bits = rule.bits
        return None if bits == 16 else bits

    def _bits_by_precision(self, linear: str) -> int:
        if self.precision == "fp16":
            return 16
        four = {"a16w8": (), "a16w4": LARGE_LINEARS, "att-a16w8+ffn-a16w4": SEED_W4}[self.precision]
        return 4 if linear.split(".", 2)[-1] in four else 8

    @property
    def quantizes(self) -> bool:
        """Whether any weight is quantized."""
        return self.precision != "fp16" or any(rule.bits < 16 for rule in self.exceptions)

    @property
    def hash(self) -> str:
        """12 hex digits over every field."""
        return _digest(self.model_dump(mode="json"))

    @property
    def quantization_hash(self) -> str:
        """12 hex digits over what decides the encodings; graphs and chips may differ."""
        return _digest(self.model_dump(mode="json", exclude={"graph"}))

    def save(self, path: Path) -> None:
        """Write as YAML."""
        write_text_atomic(path, yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))

    @classmethod
    def load(cls, path: Path | str) -> Recipe:
        """Read YAML.

        Raises:
            RwkvlabError: not readable, not YAML, an unknown key, or a value out of range.
        """
        try:
            content = yaml.safe_load(Path(path).read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise RwkvlabError(
                f"cannot read the recipe {path}: {error}", "a YAML file", "check the path and the file"
            ) from error
        if not isinstance(content, dict):
            raise RwkvlabError(f"{path} holds no mapping", "key: value lines", "see quant_encodings/ for examples")
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: dict, source: str = "recipe") -> Recipe:
        """Validate a mapping; every offending key is named in the error."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()
            )
            raise RwkvlabError(
                f"{source}: {problems}", f"keys {', '.join(cls.model_fields)}", "correct the named keys"
            ) from error


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
