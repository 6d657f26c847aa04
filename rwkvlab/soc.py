"""Systems on chip the HTP compiler can target."""

from __future__ import annotations

from dataclasses import dataclass

from rwkvlab.errors import RwkvlabError


@dataclass(frozen=True)
class Soc:
    """One chip.

    Attributes:
        name: Qualcomm's part number.
        qnn_id: QNN's own number for it (not the one in /sys/devices/soc0/soc_id).
        htp_arch: generation of its Hexagon Tensor Processor, 75 for V75.
        vtcm_mb: on-chip tightly coupled memory, MB; None where no public source was found, and the compiler's own
            figure for that chip is used.
        sold_as: the product name people know.
    """

    name: str
    qnn_id: int
    htp_arch: int
    vtcm_mb: int | None
    sold_as: str


SOCS = {
    chip.name: chip
    for chip in (
        # qnn_id and arch: MollySophia/rwkv-qualcomm make_context_cache_binary.py; also pytorch/executorch
        # backends/qualcomm/serialization/qc_schema.py, which gives the VTCM sizes.
        Soc("SM8550", 43, 73, 8, "Snapdragon 8 Gen 2"),
        Soc("SM8650", 57, 75, 8, "Snapdragon 8 Gen 3"),
        Soc("SM8750", 69, 79, 8, "Snapdragon 8 Elite"),
        Soc("SC8380", 60, 73, None, "Snapdragon X Elite"),
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
