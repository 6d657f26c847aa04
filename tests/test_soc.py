from __future__ import annotations

import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.sim import ARCHS_WITH_CONFIG
from rwkvlab.soc import SOCS, find_soc

# The enumeration Qnn_SocModel_t of QNN's QnnTypes.h; QCM6490 is younger than it (LiteRT's soc_table.h has it).
QNN_TYPES_H = {
    "SM8350": 30,
    "SM7325": 35,
    "SM8450": 36,
    "SC8280X": 37,
    "SM8475": 42,
    "SM8550": 43,
    "SM8650": 57,
    "SC8380": 60,
    "SM8635": 68,
    "SM8750": 69,
    "SM8850": 87,
}
# Announced memory clock in MHz and number of 16-bit channels.
MEMORY = {
    "SM8850": (5300, 4),
    "SM8750": (5300, 4),
    "SM8650": (4800, 4),
    "SM8635": (4200, 4),
    "SM8550": (4200, 4),
    "SM8475": (3200, 4),
    "SM8450": (3200, 4),
    "SM8350": (3200, 4),
    "SM7325": (3200, 2),
    "SC8380": (4224, 8),
}


def test_the_twelve_chips_are_there_under_their_own_names():
    assert {name: chip.name for name, chip in SOCS.items()} == {name: name for name in (*QNN_TYPES_H, "QCM6490")}


@pytest.mark.parametrize(("name", "number"), QNN_TYPES_H.items())
def test_numbers_are_those_of_the_qnn_header(name, number):
    assert SOCS[name].qnn_id == number


def test_numbers_tell_chips_apart():
    assert len({chip.qnn_id for chip in SOCS.values()}) == len(SOCS)


@pytest.mark.parametrize("chip", SOCS.values(), ids=SOCS)
def test_aimet_can_simulate_every_generation(chip):
    assert chip.htp_arch in ARCHS_WITH_CONFIG


@pytest.mark.parametrize(("name", "memory"), MEMORY.items())
def test_bandwidth_is_that_of_the_announced_memory(name, memory):
    clock, channels = memory
    both_edges = 2 * clock * 1e6
    assert SOCS[name].dram_gbs == pytest.approx(both_edges * channels * 16 / 8 / 1e9, rel=2e-3)


@pytest.mark.parametrize("chip", SOCS.values(), ids=SOCS)
def test_a_figure_has_a_source_and_without_one_it_is_unknown(chip):
    assert chip.sources.numbers
    assert (chip.vtcm_mb is None) == (chip.sources.vtcm is None)
    assert (chip.dram_gbs is None) == (chip.sources.dram is None)


def test_a_name_is_found_in_any_case():
    assert find_soc("sm8650") is find_soc("SM8650")


def test_an_unknown_chip_is_refused_with_the_names_of_the_known():
    with pytest.raises(RwkvlabError) as refused:
        find_soc("SM9999")
    assert "SM9999" in str(refused.value)
    assert all(name in str(refused.value) for name in SOCS)
