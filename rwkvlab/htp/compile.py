"""From an ONNX graph to an HTP context binary, with the compiler's own memory traffic."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rwkvlab.errors import RwkvlabError
from rwkvlab.files import disk_error
from rwkvlab.soc import Soc

SHOWN = 8
"""Refused nodes an error spells out; the log has them all."""
TRAFFIC_HEADING = "DDR bandwidth summary"
VERBOSE, WARNING = 0, 2
"""ONNX Runtime's log severities. Only the verbose log names the nodes the HTP does not take, and it is long."""
_PAGES = 1 << 16
"""Less free space than this counts as none: a failed write may leave a few blocks unused."""


@dataclass(frozen=True)
class Traffic:
    """DDR bytes of one execution of a graph, as the compiler prints them."""

    read: int
    write: int
    spill: int
    fill: int


@dataclass(frozen=True)
class Compiled:
    """A context binary and what the compiler said of it.

    Attributes:
        binary: `<name>.bin`.
        wrapper: `<name>.onnx`, the small graph through which ONNX Runtime loads the binary.
        traffic: DDR bytes of one execution.
        ops: QNN operations by type, as handed to the compiler (it fuses some of them).
        sdk_build: the QNN build that made the binary.
        log: everything the compiler printed.
    """

    binary: Path
    wrapper: Path
    traffic: Traffic
    ops: dict[str, int]
    sdk_build: str
    log: Path


def compile_context(onnx_file: Path, folder: Path, name: str, soc: Soc) -> Compiled:
    """Compile `onnx_file` wholly for the HTP of `soc` into `folder/<name>.bin`, `.onnx` and `.log`.

    Raises:
        RwkvlabError: the HTP does not take some node (each is named), the compiler crashed, or it did not report its
            memory traffic. The log is kept; no binary is left behind.
    """
    log = folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as work:
            _compile_in(Path(work), onnx_file, soc, log)
            text = log.read_text(errors="replace")
            traffic = parse_traffic(text, log)
            ops = _count_ops(Path(work))
            binary, wrapper, build = _publish(Path(work), folder, name)
    except OSError as error:
        raise disk_error(folder / name, error) from error
    return Compiled(binary, wrapper, traffic, ops, build, log)


def parse_traffic(log_text: str, log: Path) -> Traffic:
    """Read the compiler's "DDR bandwidth summary".

    Raises:
        RwkvlabError: the summary or one of its four lines is absent, for which there is no substitute; or there are
            several, because the provider cut the graph, and the last alone would count too little.
    """
    if log_text.count(TRAFFIC_HEADING) > 1:
        raise RwkvlabError(
            f"the HTP compiler made several graphs of one (log: {log})", "one graph", "report the log: this is a bug"
        )
    _, heading, summary = log_text.rpartition(TRAFFIC_HEADING)
    found = dict(re.findall(r"^(spill_bytes|fill_bytes|write_total_bytes|read_total_bytes)=(\d+)\s*$", summary, re.M))
    if not heading or len(found) != 4:
        raise RwkvlabError(
            f"the HTP compiler printed no complete DDR bandwidth summary (log: {log})",
            "onnxruntime-qnn 2.3 to 2.5, whose compiler prints it",
            "pip install 'onnxruntime-qnn==2.5.*'",
        )
    return Traffic(
        read=int(found["read_total_bytes"]),
        write=int(found["write_total_bytes"]),
        spill=int(found["spill_bytes"]),
        fill=int(found["fill_bytes"]),
    )


def provider_options(soc: Soc) -> dict[str, str]:
    """The QNN provider's options for compiling: fp16 where the graph is float, full optimisation."""
    options = {
        "soc_model": str(soc.qnn_id),
        "htp_arch": str(soc.htp_arch),
        "enable_htp_fp16_precision": "1",
        "htp_graph_finalization_optimization_mode": "3",
    }
    return options if soc.vtcm_mb is None else options | {"vtcm_mb": str(soc.vtcm_mb)}


def _compile_in(work: Path, onnx_file: Path, soc: Soc, log: Path) -> None:
    code = _run_compiler(work, onnx_file, soc, log, WARNING)
    if code == 0:
        return
    if _is_disk_full(work, log):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code < 0:
        raise RwkvlabError(
            f"the HTP compiler crashed with signal {-code} on {onnx_file.name} (log: {log})",
            "a graph within the compiler's memory and stack limits",
            "use more chunks (--chunks), or close other programs if memory ran out",
        )
    for leftover in work.glob("context*"):  # the provider refuses to write over its own unfinished file
        leftover.unlink()
    _run_compiler(work, onnx_file, soc, log, VERBOSE)
    raise _refusal(onnx_file, soc, log)


def _is_disk_full(work: Path, log: Path) -> bool:
    """Whether the compiler failed for want of space, of which it says no more than that it could not save the model."""
    is_unsaved = "failed when saving model to" in log.read_text(errors="replace")
    return is_unsaved or shutil.disk_usage(work).free < _PAGES


def _run_compiler(work: Path, onnx_file: Path, soc: Soc, log: Path, severity: int) -> int:
    job = {
        "onnx": str(onnx_file.resolve()),
        "context": str((work / "context.onnx").resolve()),
        "log_severity": severity,
        "provider_options": provider_options(soc)
        | {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(work.resolve())},
    }
    job_file = work / "job.json"
    job_file.write_text(json.dumps(job))
    with log.open("wb") as output:
        command = [sys.executable, "-m", "rwkvlab.htp.compiler", str(job_file)]
        return subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=_raise_stack_limit
        ).returncode


def _raise_stack_limit() -> None:
    """Per-channel scale tables of a large head live on the compiler's stack; 8 MB is too little for them."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = 1 << 30
    resource.setrlimit(resource.RLIMIT_STACK, (wanted if hard == resource.RLIM_INFINITY else hard, hard))


def _refusal(onnx_file: Path, soc: Soc, log: Path) -> RwkvlabError:
    text = log.read_text(errors="replace")
    culprits = refused_nodes(text)
    if culprits:
        shown = ", ".join(culprits[:SHOWN]) + (f" and {len(culprits) - SHOWN} more" if len(culprits) > SHOWN else "")
        reasons = "; ".join(refusal_reasons(text))
        return RwkvlabError(
            f"the HTP of {soc.name} does not take these nodes of {onnx_file.name}: {shown}"
            + (f"; it says: {reasons}" if reasons else "")
            + f" (log: {log})",
            "operations, ranks and data types the HTP runs; a quantized linear needs a quantized input and output",
            "choose another precision for the named layer or another SoC",
        )
    message = re.findall(r"COMPILE REFUSED: (.+)", text) or text.strip().splitlines()[-1:] or ["no message"]
    hint = "use more chunks (--chunks)" if "limit" in message[0] or "memory" in message[0] else "read the log"
    return RwkvlabError(f"the HTP compiler refused {onnx_file.name}: {message[0]} (log: {log})", "", hint)


def refused_nodes(log_text: str) -> list[str]:
    """Nodes the HTP does not take, as "name (type)", from a verbose log.

    Those the QNN backend itself rejected, those of a type the provider does not know, and those it accepted but then
    could not build, come alone: once one of them is out, everything around it is reported as unsupported too.
    """
    rejected = re.findall(r"failed for node `([^`]+)` of type `([^`]+)`", log_text)
    unknown = re.findall(r"are not supported by QNN EP\.(\S+) node `([^`]+)`", log_text)
    unbuilt = [(name, "cannot be built") for name in re.findall(r'"([^"]+)" generated: could not create op', log_text)]
    every = re.findall(r"Operator type: (\S+) Node name: (\S*) Node index: \d+", log_text)
    pairs = [*rejected, *((name, kind) for kind, name in unknown)] or unbuilt or [(name, kind) for kind, name in every]
    return [f"{name} ({kind})" for name, kind in dict.fromkeys(pairs)]


def refusal_reasons(log_text: str) -> list[str]:
    """Why the QNN backend rejected nodes, in its own words from a verbose log, each reason once; it may give none."""
    said = re.findall(r"<E> (.+?)\s*$", log_text, re.M)
    verdicts = ("QnnBackend_validateOpConfig failed", "Failed to validate op")
    reasons = [line for line, then in pairwise(said) if then.startswith(verdicts[0]) and not line.startswith(verdicts)]
    return list(dict.fromkeys(reasons))


def _count_ops(work: Path) -> dict[str, int]:
    graphs = [path for path in work.glob("*.json") if path.name != "job.json" and "tensor_log" not in path.name]
    nodes = [node for path in graphs for node in json.loads(path.read_text())["graph"]["nodes"].values()]
    return dict(sorted(Counter(node["type"] for node in nodes).items()))


def _publish(work: Path, folder: Path, name: str) -> tuple[Path, Path, str]:
    """Move the two files to their names; the wrapper refers to the binary by name, so it is rewritten."""
    import onnx

    binary, wrapper = folder / f"{name}.bin", folder / f"{name}.onnx"
    graph = onnx.load(work / "context.onnx")
    attributes = {a.name: a for node in graph.graph.node for a in node.attribute}
    produced = work / attributes["ep_cache_context"].s.decode()
    attributes["ep_cache_context"].s = binary.name.encode()
    onnx.save(graph, work / "wrapper.onnx")
    shutil.move(produced, binary)
    shutil.move(work / "wrapper.onnx", wrapper)
    return binary, wrapper, attributes["ep_sdk_version"].s.decode()
