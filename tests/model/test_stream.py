from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.model.chunks import plan_chunks
from rwkvlab.model.load import load_chunk, load_model
from rwkvlab.model.stream import pad_batches, stream

sequences_of_ids = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=40), max_size=20)


@given(sequences_of_ids, st.integers(1, 200))
def test_padded_batches_hold_every_sequence_once(sequences, limit):
    seen = {}
    for indices, ids in pad_batches(sequences, limit):
        assert ids.numel() <= limit or len(indices) == 1
        assert ids.shape == (len(indices), max(len(sequences[i]) for i in indices))
        for row, index in zip(ids.tolist(), indices, strict=True):
            assert index not in seen
            seen[index] = row
            assert set(row[len(sequences[index]) :]) <= {0}
    assert sorted(seen) == list(range(len(sequences)))
    assert all(seen[i][: len(ids)] == ids for i, ids in enumerate(sequences))


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_streamed_logits_equal_the_models(tiny_checkpoint, chunks):
    spec = tiny_checkpoint.spec
    batches = [torch.arange(14).reshape(2, 7), torch.arange(5).reshape(1, 5) + 40]
    plan = plan_chunks(spec.n_layer, chunks)
    got = dict(stream(spec, plan, lambda p: load_chunk(tiny_checkpoint, p.first, p.last), batches))
    model = load_model(tiny_checkpoint)
    for index, batch in enumerate(batches):
        torch.testing.assert_close(got[index], model(batch)[0], rtol=1e-5, atol=1e-5)


def test_one_chunk_is_alive_at_a_time(tiny_checkpoint):
    alive = []

    def load(part):
        gc.collect()
        assert all(reference() is None for reference in alive)
        chunk = load_chunk(tiny_checkpoint, part.first, part.last)
        alive.append(weakref.ref(chunk))
        return chunk

    for _ in stream(tiny_checkpoint.spec, plan_chunks(3, 3), load, [torch.zeros(1, 4, dtype=torch.long)]):
        pass
    assert len(alive) == 3
