"""Train the bundled model from nothing.

    python -m rwkvlab.zoo.train --out x070.pth

A run that was interrupted goes on where its last checkpoint (`<out>.resume.pt`) left it, with the same result.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import atomic_path
from rwkvlab.tokenizer import load_tokenizer
from rwkvlab.zoo.batches import ANSWER_WEIGHT, Batch, Reading, batch
from rwkvlab.zoo.network import X070, Network, checkpoint_tensors, initialise, parameter_groups, spread_norm_gains


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result, besides the story world."""

    steps: int = 3600
    rows: int = 14
    length: int = 144
    seed: int = 1
    peak_rate: float = 2e-3
    final_rate: float = 1e-4
    warm_up: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    gain_spread: float = 0.8

    def rate(self, step: int) -> float:
        """Learning rate: linear warm-up, then a cosine."""
        warm = min(1.0, (step + 1) / self.warm_up)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return warm * (self.final_rate + (self.peak_rate - self.final_rate) * cosine)

    def reading(self, step: int) -> Reading:
        """Fewer and fewer lessons in the first 40 %, easy stories up to 62 %, then those that are like the test."""
        return Reading(lessons=max(0.0, 1 - step / (0.4 * self.steps)), easy=step < 0.62 * self.steps)


@dataclass(frozen=True)
class Progress:
    """Loss in nats per token, answers weighted, and the share of answers that were the most likely token."""

    loss: float
    answered: float

    def blend(self, new: Progress) -> Progress:
        """Exponential average."""
        return Progress(0.95 * self.loss + 0.05 * new.loss, 0.95 * self.answered + 0.05 * new.answered)


class Training:
    """The network, its optimiser and how many steps they have done."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device, self.step = settings, device, 0
        self.network = Network(X070)
        initialise(self.network, torch.Generator().manual_seed(settings.seed))
        self.network.to(device)
        groups = parameter_groups(self.network, settings.weight_decay)
        self.optimiser = torch.optim.AdamW(groups, lr=settings.peak_rate, betas=(0.9, 0.99), eps=1e-18)
        self.tokenizer = load_tokenizer("zoo")

    def advance(self) -> Progress:
        """One step."""
        settings = self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(self.step)
        reading = settings.reading(self.step)
        data = batch(self.tokenizer, settings.seed, self.step, settings.rows, settings.length, reading)
        loss, answered = self._evaluate(data)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
        self.optimiser.step()
        self.step += 1
        return Progress(loss.item(), answered.item())

    def _evaluate(self, data: Batch) -> tuple[Tensor, Tensor]:
        tokens, weights = data.tokens.to(self.device), data.weights.to(self.device)
        logits = self.network(tokens[:, :-1])
        targets = tokens[:, 1:]
        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        correct = (logits.argmax(-1) == targets)[weights == ANSWER_WEIGHT]
        return (losses * weights).sum() / weights.sum(), correct.float().mean()

    def export(self, path: Path) -> None:
        """Write the network, given outlier channels, in BlinkDL's format and float16."""
        network = copy.deepcopy(self.network).cpu()
        spread_norm_gains(network, self.settings.gain_spread, torch.Generator().manual_seed(self.settings.seed))
        with atomic_path(path) as temporary:
            torch.save(checkpoint_tensors(network, torch.float16), temporary)

    def save(self, path: Path) -> None:
        """Write all that `restore` needs."""
        with atomic_path(path) as temporary:
            torch.save(
                {
                    "settings": vars(self.settings),
                    "step": self.step,
                    "network": self.network.state_dict(),
                    "optimiser": self.optimiser.state_dict(),
                },
                temporary,
            )

    def restore(self, path: Path) -> None:
        """Continue a saved run.

        Raises:
            RwkvlabError: it was made with other settings.
        """
        saved = torch.load(path, map_location=self.device, weights_only=True)
        if saved["settings"] != vars(self.settings):
            raise RwkvlabError(
                f"{path} belongs to a run with {saved['settings']}",
                f"the settings of this run, {vars(self.settings)}",
                "delete it to start afresh, or choose another --out",
            )
        self.step = saved["step"]
        self.network.load_state_dict(saved["network"])
        self.optimiser.load_state_dict(saved["optimiser"])


def train(settings: Settings, out: Path, save_every: int = 100, device: str = "cpu") -> Path:
    """Train, or resume training, and write the checkpoint in BlinkDL's format, in float16.

    Args:
        settings: the run.
        out: where the finished model goes; `<out>.resume.pt` beside it holds the unfinished one.
        save_every: steps between saves of the unfinished run.
        device: where to train.
    """
    resume = out.with_suffix(".resume.pt")
    training = Training(settings, torch.device(device))
    if resume.exists():
        training.restore(resume)
    with tqdm(total=settings.steps, initial=training.step, unit="step", mininterval=5) as progress:
        average = None
        while training.step < settings.steps:
            now = training.advance()
            average = average.blend(now) if average else now
            progress.update()
            progress.set_postfix(loss=f"{average.loss:.3f}", answered=f"{average.answered:.1%}", refresh=False)
            if training.step % save_every == 0:
                training.save(resume)
    training.export(out)
    resume.unlink(missing_ok=True)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(train(Settings(steps=arguments.steps, seed=arguments.seed), arguments.out, device=arguments.device))


if __name__ == "__main__":
    main()
