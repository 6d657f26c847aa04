"""The child process that turns one ONNX file into one HTP context binary: `python -m rwkvlab.htp.compiler JOB.json`.

A process of its own, because Qualcomm's compiler reports the memory traffic only on the C-level stdout, needs more
stack than a Python thread has, and takes the whole process with it when it crashes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(job_file: str) -> None:
    """Compile as the job says; a refusal ends the process with the provider's message."""
    job = json.loads(Path(job_file).read_text())
    import onnxruntime

    from rwkvlab.htp.backend import session_options

    onnxruntime.set_default_logger_severity(job["log_severity"])
    options = session_options(job["provider_options"])
    options.log_severity_level = job["log_severity"]
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_embed_mode", "0")
    options.add_session_config_entry("ep.context_file_path", job["context"])
    try:
        onnxruntime.InferenceSession(job["onnx"], options)
    except Exception as error:
        print(f"COMPILE REFUSED: {error}", file=sys.stderr, flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1])
