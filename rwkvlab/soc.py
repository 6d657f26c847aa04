"""Systems on chip the HTP compiler can target."""

from __future__ import annotations

from dataclasses import dataclass

from rwkvlab.errors import RwkvlabError


@dataclass(frozen=True)
class Sources:
    """Where a chip's figures were published; None for a figure nobody published.

    Attributes:
        numbers: of its QNN number and HTP generation.
        vtcm: of the VTCM size.
        dram: of the memory bandwidth.
    """

    numbers: str
    vtcm: str | None
    dram: str | None


@dataclass(frozen=True)
class Soc:
    """One chip.

    Attributes:
        name: Qualcomm's part number.
        sold_as: the product name people know.
        qnn_id: QNN's own number for it (not the one in /sys/devices/soc0/soc_id).
        htp_arch: generation of its Hexagon Tensor Processor, 75 for V75.
        vtcm_mb: on-chip tightly coupled memory, MB; None where no public source was found, and the compiler's own
            figure for that chip is used.
        dram_gbs: peak of the fastest memory it supports, 10^9 bytes/s, which CPU, GPU and HTP share; None where no
            public source was found. A device may have slower memory.
        fp16: whether its HTP computes in float16. Nobody publishes it by chip, and the generation does not decide it:
            this is the answer of the compiler (`FP16_SOURCE`).
        sources: where the figures come from.
    """

    name: str
    sold_as: str
    qnn_id: int
    htp_arch: int
    vtcm_mb: int | None
    dram_gbs: float | None
    fp16: bool
    sources: Sources


_ORT = "github.com/onnxruntime/onnxruntime-qnn: onnxruntime/core/providers/qnn/soc_utility/soc_table.h"
_EXECUTORCH = "github.com/pytorch/executorch: backends/qualcomm/serialization/qc_schema.py"
_RWKV_QUALCOMM = "github.com/MollySophia/rwkv-qualcomm: utils/htp_devices_config.py"
# Mostly clock x 2 transfers x 16 bits x channels: 4800 MHz x 2 x 64 bits / 8 = 76.8 GB/s.
_GIST = "gist.github.com/EwoutH/754fa40ad9ddc93d55084fc46569c759"
_HETEROEDGE = "github.com/yinrun/HeteroEdge: README.md"
_GEEKTOPIA = "geektopia.es/es/technology/2024/10/22/noticias/amp/qualcomm-anuncia-el-snapdragon-8-elite-para-moviles-de-gama-alta.html"  # noqa: E501
_NANOREVIEW = "nanoreview.net/en/soc-compare/"
_888_778G = _NANOREVIEW + "qualcomm-snapdragon-875-vs-qualcomm-snapdragon-778g-5g"
_8PLUS_GEN1 = _NANOREVIEW + "snapdragon-8-plus-gen-1-vs-apple-a15-bionic"
_8_GEN1 = "gadgetsinnepal.com.np/snadpdragon-8-gen-1/"
_X_ELITE = "beebom.com/snapdragon-x-elite-plus-skus-benchmarks"

FP16_SOURCE = "the compiler of onnxruntime-qnn 2.5.0 (QNN 2.49), given a graph with float operations for that chip"

SOCS = {
    chip.name: chip
    for chip in (
        Soc("SM8850", "Snapdragon 8 Elite Gen 5", 87, 81, 8, 84.8, True, Sources(_ORT, _EXECUTORCH, _HETEROEDGE)),
        Soc("SM8750", "Snapdragon 8 Elite", 69, 79, 8, 84.8, True, Sources(_ORT, _EXECUTORCH, _GEEKTOPIA)),
        Soc("SM8650", "Snapdragon 8 Gen 3", 57, 75, 8, 76.8, True, Sources(_ORT, _EXECUTORCH, _GIST)),
        Soc("SM8635", "Snapdragon 8s Gen 3", 68, 73, None, 67.2, False, Sources(_ORT, None, _GIST)),
        Soc("SM8550", "Snapdragon 8 Gen 2", 43, 73, 8, 67.2, True, Sources(_ORT, _EXECUTORCH, _GIST)),
        Soc("SM8475", "Snapdragon 8+ Gen 1", 42, 69, 8, 51.2, True, Sources(_ORT, _EXECUTORCH, _8PLUS_GEN1)),
        Soc("SM8450", "Snapdragon 8 Gen 1", 36, 69, 8, 51.2, True, Sources(_ORT, _EXECUTORCH, _8_GEN1)),
        Soc("SM8350", "Snapdragon 888", 30, 68, 4, 51.2, False, Sources(_ORT, _EXECUTORCH, _888_778G)),
        Soc("SM7325", "Snapdragon 778G", 35, 68, None, 25.6, False, Sources(_RWKV_QUALCOMM, None, _888_778G)),
        Soc("SC8380", "Snapdragon X Elite", 60, 73, None, 135, True, Sources(_ORT, None, _X_ELITE)),
        Soc("SC8280X", "Snapdragon 8cx Gen 3", 37, 68, None, None, False, Sources(_ORT, None, None)),
        Soc("QCM6490", "Dragonwing QCM6490", 93, 68, 2, None, False, Sources(_EXECUTORCH, _EXECUTORCH, None)),
    )
}


def find_soc(name: str) -> Soc:
    """The chip called `name`, in any case.

    Raises:
        RwkvlabError: no such chip is known.
    """
    chip = SOCS.get(name.upper())
    if chip is None:
        raise RwkvlabError(
            f"unknown SoC '{name}'", ", ".join(sorted(SOCS)), "pick the chip of your device from that list"
        )
    return chip
