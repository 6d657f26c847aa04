"""ONNX Runtime with Qualcomm's QNN execution provider, set up one way for compiling and for running.

Needs onnxruntime and onnxruntime-qnn only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rwkvlab.errors import RwkvlabError

if TYPE_CHECKING:
    import onnxruntime

PROVIDER = "QNNExecutionProvider"


def session_options(provider_options: dict[str, str]) -> onnxruntime.SessionOptions:
    """Options of a session that must run wholly on the HTP.

    Graph optimisation is off: it would fuse a product and a sum into a Gemm that the provider refuses. Falling back to
    the CPU is off: a result that was partly computed elsewhere would be a wrong number, not a slow one.

    Raises:
        RwkvlabError: onnxruntime or onnxruntime-qnn is missing.
    """
    ort, qnn = _import()
    _register(ort, qnn)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    options.add_provider_for_devices(devices[:1], {"backend_path": qnn.get_qnn_htp_path(), **provider_options})
    return options


def sdk_version() -> str:
    """QNN's release inside the installed onnxruntime-qnn, as "2.49.40"."""
    _, qnn = _import()
    return qnn.build_and_package_info.qnn_version


@contextmanager
def quiet_native(enabled: bool = True) -> Iterator[None]:
    """Keep what native libraries print on the C-level stdout and stderr off the user's screen.

    The simulator writes banner lines there that no logging option turns off. What was captured is printed if the body
    fails.
    """
    if not enabled:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 1)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(saved[1], 2)
            captured.seek(0)
            os.write(2, captured.read()[-4000:])
            raise
        finally:
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def _import():
    try:
        import onnxruntime
        import onnxruntime_qnn
    except ImportError as error:
        raise RwkvlabError(
            f"{error.name} is not installed",
            "onnxruntime with onnxruntime-qnn 2.5 (Linux x86-64, Linux aarch64 or Windows arm64)",
            "pip install 'rwkvlab[device]', then rwkvlab doctor",
        ) from error
    return onnxruntime, onnxruntime_qnn


def _register(ort, qnn) -> None:
    if PROVIDER not in {device.ep_name for device in ort.get_ep_devices()}:
        ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
