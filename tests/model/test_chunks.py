from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.model.chunks import plan_chunks


@given(st.integers(1, 80).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_chunks_cover_every_layer_once_and_evenly(case):
    n_layer, count = case
    plan = plan_chunks(n_layer, count)
    assert [layer for part in plan for layer in range(part.first, part.last)] == list(range(n_layer))
    sizes = [part.last - part.first for part in plan]
    assert len(plan) == count and max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    assert [part.suffix for part in plan] == [f"_chunk{i}of{count}" for i in range(1, count + 1)]


@given(st.integers(1, 80), st.integers(-3, 100))
def test_impossible_counts_are_refused(n_layer, count):
    if 1 <= count <= n_layer:
        return
    with pytest.raises(RwkvlabError, match=f"{count} chunks.*1 to {n_layer}"):
        plan_chunks(n_layer, count)


def test_remainder_goes_to_the_first_chunks():
    assert [(p.first, p.last) for p in plan_chunks(32, 5)] == [(0, 7), (7, 14), (14, 20), (20, 26), (26, 32)]
