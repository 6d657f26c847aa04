from __future__ import annotations

import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.sim import ARCHS_WITH_CONFIG
from rwkvlab.soc import SOCS, find_soc


def test_chips_of_this_release():
    assert set(SOCS) == {"SM8550", "SM8650", "SM8750", "SC8380"}
    assert {name: (chip.qnn_id, chip.htp_arch) for name, chip in SOCS.items()} == {
        "SM8550": (43, 73),
        "SM8650": (57, 75),
        "SM8750": (69, 79),
        "SC8380": (60, 73),
    }


@pytest.mark.parametrize("name", SOCS)
def test_found_in_any_case(name):
    assert find_soc(name.lower()) is find_soc(name) is SOCS[name]
    assert SOCS[name].htp_arch in ARCHS_WITH_CONFIG, "QuantSim must know every chip's arch"


@pytest.mark.parametrize("name", ["SM9999", "", "75", "SM8650 "])
def test_unknown_chips_are_refused_with_the_list(name):
    with pytest.raises(RwkvlabError, match=r"unknown SoC.*SC8380, SM8550, SM8650, SM8750"):
        find_soc(name)
