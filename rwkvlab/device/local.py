"""The target that runs a context cache in this process: the host simulator on a PC, the NPU on a Snapdragon machine.

Needs neither torch nor AIMET.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.backend import sdk_version
from rwkvlab.htp.cache import ContextCache, GraphKind
from rwkvlab.htp.session import HtpSession
from rwkvlab.tokenizer import check_sequences

State = dict[str, np.ndarray]
"""`state0` .. by name, without the _in/_out of the graphs."""


class LocalTarget:
    """A model on the HTP: prompts through prefill blocks, single tokens through decode graphs.

    Args:
        cache: a verified context cache.

    Raises:
        RwkvlabError: the cache is newer than the installed QNN runtime, or does not load.
    """

    def __init__(self, cache: ContextCache) -> None:
        cache.check_runtime(sdk_version())
        self.cache, self.spec = cache, cache.manifest.source.spec
        self.where = "htp-sim" if platform.machine() == "x86_64" else f"device:{device_model()}"
        self.block = cache.manifest.source.recipe.graph.prefill_tokens
        self._sessions: dict[GraphKind, list[HtpSession]] = {}
        self._embedding = self._map_embedding()

    def empty_state(self) -> State:
        """Every state tensor, zero."""
        spec = self.spec
        shift, wkv = (1, spec.n_embd), (1, spec.n_head, spec.head_size, spec.head_size)
        shapes = [shift, wkv, shift] * spec.n_layer
        return {f"state{number}": np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}

    def step(self, token: int, state: State) -> tuple[np.ndarray, State]:
        """One token through the decode graphs.

        Returns:
            logits [V] and the next state; `state` is not changed.
        """
        logits, state = self._run("decode", np.array([[token]]), state)
        return logits[0, -1], state

    def prefill(self, tokens: Sequence[int], state: State | None = None) -> tuple[np.ndarray, State]:
        """A prompt: whole blocks through the prefill graphs, the rest token by token.

        Returns:
            logits [V] after the last token, and the state.
        """
        if not tokens:
            raise RwkvlabError("the prompt is empty", "at least one token", "prepend token 0")
        state = self.empty_state() if state is None else state
        whole = len(tokens) - len(tokens) % self.block
        logits = np.zeros(0, np.float32)
        for start in range(0, whole, self.block):
            scores, state = self._run("prefill", np.array([tokens[start : start + self.block]]), state)
            logits = scores[0, -1]
        for token in tokens[whole:]:
            logits, state = self.step(token, state)
        return logits, state

    def logits(self, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[int, np.ndarray]]:
        """Scores at every position of each sequence, wholly through prefill blocks.

        The last block is padded on the right; the model is causal, so padding changes no real position.

        Yields:
            index and logits [T, V].

        Raises:
            RwkvlabError: the prefill graphs score the last position only, or a sequence is empty or not the model's.
        """
        check_sequences(sequences, self.spec.vocab_size)
        if self.cache.manifest.source.recipe.graph.logits != "all":
            raise RwkvlabError(
                "the prefill graphs score the last position only", "graphs with logits: all", "export with --logits all"
            )
        for index, tokens in enumerate(sequences):
            state, scores = self.empty_state(), []
            for start in range(0, len(tokens), self.block):
                block = np.zeros((1, self.block), np.int32)
                part = tokens[start : start + self.block]
                block[0, : len(part)] = part
                out, state = self._run("prefill", block, state)
                scores.append(out[0])
            yield index, np.concatenate(scores)[: len(tokens)]

    def _run(self, kind: GraphKind, tokens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        self._check_ids(tokens)
        x = tokens if self._embedding is None else np.asarray(self._embedding[tokens])
        carried, after = {"in": x}, {}
        for session in self._chain(kind):
            states = {n: state[n.removesuffix("_in")] for n in session.inputs if n.startswith("state")}
            out = session.run(states | {n: value for n, value in carried.items() if n in session.inputs})
            after |= {n.removesuffix("_out"): value for n, value in out.items() if n.startswith("state")}
            carried["in"] = out["logits"] if "logits" in out else out["out"]
            if "v_first_out" in out:
                carried["v_first_in"] = out["v_first_out"]
        return carried["in"], after

    def _chain(self, kind: GraphKind) -> list[HtpSession]:
        if kind not in self._sessions:
            paths = [self.cache.folder / graph.wrapper.name for graph in self.cache.graphs(kind)]
            self._sessions[kind] = [HtpSession(path) for path in paths]
        return self._sessions[kind]

    def _check_ids(self, tokens: np.ndarray) -> None:
        if tokens.min() < 0 or tokens.max() >= self.spec.vocab_size:
            raise RwkvlabError(
                f"token ids {tokens.min()}..{tokens.max()}",
                f"0 to {self.spec.vocab_size - 1}",
                "use the model's own tokenizer",
            )

    def _map_embedding(self) -> np.ndarray | None:
        file = self.cache.manifest.embedding
        if file is None:
            return None
        shape = (self.spec.vocab_size, self.spec.n_embd)
        return np.memmap(self.cache.folder / file.name, np.float32, "r", shape=shape)


def device_model() -> str:
    """What this machine is: the chip's name where Linux tells it, else the processor's."""
    try:
        return Path("/sys/devices/soc0/machine").read_text().strip()
    except OSError:
        return platform.processor() or platform.machine()
