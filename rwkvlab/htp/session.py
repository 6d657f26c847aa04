"""Running one context binary: on the host simulator here, on the HTP itself on a Snapdragon machine.

Needs neither torch nor AIMET nor onnx.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rwkvlab.errors import RwkvlabError
from rwkvlab.htp.backend import quiet_native, session_options


class HtpSession:
    """A loaded context binary.

    Args:
        wrapper: the `.onnx` file beside the `.bin`.

    Raises:
        RwkvlabError: a file is missing, or the QNN runtime does not load the binary.
    """

    def __init__(self, wrapper: Path) -> None:
        self.name = wrapper.stem
        for path in (wrapper, wrapper.with_suffix(".bin")):
            if not path.is_file():
                raise RwkvlabError(
                    f"{path} is missing",
                    "a context cache with its .onnx and .bin",
                    "make it again: rwkvlab make-context-cache",
                )
        self._session = _load(wrapper)
        self.inputs = {node.name: tuple(node.shape) for node in self._session.get_inputs()}
        self.outputs = [node.name for node in self._session.get_outputs()]
        self._types = {node.name: _NUMPY_TYPES[node.type] for node in self._session.get_inputs()}

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Execute once.

        Args:
            feeds: every input by name, in the shape the graph was compiled for.

        Returns:
            every output by name.

        Raises:
            RwkvlabError: an input is missing, unknown or has another shape.
        """
        self._check(feeds)
        typed = {name: np.ascontiguousarray(value, self._types[name]) for name, value in feeds.items()}
        values = self._session.run(self.outputs, typed)
        return {name: np.asarray(value) for name, value in zip(self.outputs, values, strict=True)}

    def _check(self, feeds: Mapping[str, np.ndarray]) -> None:
        if feeds.keys() != self.inputs.keys():
            odd = sorted(feeds.keys() ^ self.inputs.keys())
            raise RwkvlabError(
                f"{self.name}: inputs {odd} are missing or unknown", ", ".join(self.inputs), "bind tensors by name"
            )
        for name, value in feeds.items():
            if value.shape != self.inputs[name]:
                raise RwkvlabError(
                    f"{self.name}: input {name} has shape {value.shape}",
                    str(self.inputs[name]),
                    "use the graph compiled for that length",
                )


_NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}


def _load(wrapper: Path):
    options = session_options({})
    options.log_severity_level = 3
    import onnxruntime

    try:
        with quiet_native():
            return onnxruntime.InferenceSession(str(wrapper), options)
    except Exception as error:
        raise RwkvlabError(
            f"the QNN runtime does not load {wrapper.with_suffix('.bin').name}: {error}",
            "a binary made by the same or an older QNN than the installed one, undamaged",
            "make it again: rwkvlab make-context-cache",
        ) from error
