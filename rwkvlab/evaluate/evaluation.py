"""One evaluated recipe: the numbers that compete, each with its protocol. What notebook 60 leaves in metrics.json."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rwkvlab.evaluate.fidelity import Fidelity
from rwkvlab.evaluate.lambada import LambadaResult
from rwkvlab.evaluate.protocol import Protocol
from rwkvlab.htp.cache import ContextCache


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Score(_Data):
    """Last-word prediction: perplexity, accuracy k/n with its 95 % interval, protocol."""

    ppl: float
    k: int
    n: int
    acc_low: float
    acc_high: float
    protocol: Protocol

    @property
    def acc(self) -> float:
        """k / n."""
        return self.k / self.n

    @classmethod
    def of(cls, result: LambadaResult) -> Score:
        """Without the per-item scores."""
        low, high = result.acc_interval
        return cls(ppl=result.ppl, k=result.k, n=result.n, acc_low=low, acc_high=high, protocol=result.protocol)


class Agreement(_Data):
    """Two implementations on the same positions; see `Fidelity`."""

    reference: str
    other: str
    sequences: int
    n: int
    agree: int
    top1_low: float
    top1_high: float
    mean_kl: float
    max_error: float
    mean_error: float
    logit_range: float

    @property
    def top1(self) -> float:
        """Share of positions with the same argmax."""
        return self.agree / self.n

    @classmethod
    def of(cls, found: Fidelity, sequences: int) -> Agreement:
        """`found` over so many sequences."""
        low, high = found.top1_interval
        names = ("reference", "other", "n", "agree", "mean_kl", "max_error", "mean_error", "logit_range")
        return cls(sequences=sequences, top1_low=low, top1_high=high, **{name: getattr(found, name) for name in names})


class Evaluation(_Data):
    """A model with one recipe, compiled and measured.

    Attributes:
        model, model_sha256, precision, recipe_hash: what was measured.
        soc, chunks, sdk_build: what it was compiled for, and by.
        ddr_bytes_per_token: read and written by one decode step, from the compiler.
        ddr_bytes_per_prompt_token: of a full prefill block, divided by its tokens.
        context_bytes: size of the decode graphs' binaries.
        baseline: the float model.
        score: the recipe, in the simulation `score.protocol.where` names.
        cost: float model against the simulated quantization in torch; None if no positions were compared.
        fidelity: that simulation against the HTP; None if the HTP did not run.
        overall: float model against the HTP.
    """

    model: str
    model_sha256: str
    precision: str
    recipe_hash: str
    soc: str
    chunks: int
    sdk_build: str
    ddr_bytes_per_token: float
    ddr_bytes_per_prompt_token: float
    context_bytes: int
    baseline: Score
    score: Score
    cost: Agreement | None = None
    fidelity: Agreement | None = None
    overall: Agreement | None = None

    @property
    def yardstick(self) -> str:
        """Equal for evaluations whose accuracies may be compared: same items, leading-token rule and vocabulary."""
        p = self.score.protocol
        return f"{p.task} {p.items_hash} n={p.n} token 0 {'first' if p.bos else 'absent'} {p.tokenizer_hash}"

    @classmethod
    def of(
        cls,
        cache: ContextCache,
        baseline: LambadaResult,
        score: LambadaResult,
        cost: Agreement | None = None,
        fidelity: Agreement | None = None,
        overall: Agreement | None = None,
    ) -> Evaluation:
        """Gather what a context cache and the measurements say."""
        manifest = cache.manifest
        source = manifest.source
        return cls(
            model=source.model,
            model_sha256=source.model_sha256,
            precision=source.recipe.precision,
            recipe_hash=source.recipe.hash,
            soc=manifest.soc,
            chunks=source.recipe.graph.chunks,
            sdk_build=manifest.sdk_build,
            ddr_bytes_per_token=manifest.ddr_bytes_per_token("decode"),
            ddr_bytes_per_prompt_token=manifest.ddr_bytes_per_token("prefill"),
            context_bytes=sum(graph.binary.bytes for graph in cache.graphs("decode")),
            baseline=Score.of(baseline),
            score=Score.of(score),
            cost=cost,
            fidelity=fidelity,
            overall=overall,
        )
