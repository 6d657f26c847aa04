from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.encodings import Encoding, Encodings

scales = st.floats(1e-30, 1e30, allow_subnormal=False)
names = st.text(min_size=1, max_size=30)


@st.composite
def encodings(draw) -> Encoding:
    bits, symmetric = draw(st.integers(2, 32)), draw(st.booleans())
    scale = np.array(draw(st.lists(scales, min_size=1, max_size=9)))
    middle = -(2 ** (bits - 1))
    offset = [middle if symmetric else draw(st.integers(1 - 2**bits, 0)) for _ in scale]
    return Encoding(bits, symmetric, scale, np.array(offset))


@given(st.dictionaries(names, encodings(), max_size=4), st.dictionaries(names, encodings(), max_size=4))
@settings(max_examples=60)
def test_file_gives_back_exactly_what_was_saved(tmp_path_factory, params, activations):
    path = tmp_path_factory.mktemp("e") / "m.encodings"
    saved = Encodings(params, activations)
    saved.save(path)
    loaded = Encodings.load(path)
    assert loaded == saved and loaded.sha256 == saved.sha256


ENTRY = {
    "name": "blocks.0.att.key.weight",
    "bw": 8,
    "dtype": "INT",
    "enc_type": "PER_TENSOR",
    "is_sym": False,
    "scale": [0.5],
    "offset": [-3],
}


def write(folder, *entries, version="1.0.0"):
    path = folder / "m.encodings"
    content = {"version": version, "param_encodings": list(entries), "activation_encodings": [], "excluded_layers": []}
    path.write_text(json.dumps(content))
    return path


def test_reads_aimets_format(tmp_path):
    encoding = Encodings.load(write(tmp_path, ENTRY)).params[ENTRY["name"]]
    assert (encoding.bits, encoding.symmetric) == (8, False)
    assert encoding.low.tolist() == [-1.5] and encoding.high.tolist() == [126.0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"bw": 4.5}, "bw"),
        ({"bw": 1}, "bw"),
        ({"bw": 64}, "bw"),
        ({"dtype": "FLOAT"}, "dtype"),
        ({"enc_type": "LPBQ"}, "enc_type"),
        ({"is_sym": "false"}, "is_sym"),
        ({"scale": [0.0]}, "scale"),
        ({"scale": [-1.0]}, "scale"),
        ({"scale": [float("nan")]}, "scale"),
        ({"scale": [float("inf")]}, "scale"),
        ({"scale": ["0.5"]}, "scale"),
        ({"scale": 0.5}, "scale"),
        ({"scale": [], "offset": []}, "scale"),
        ({"scale": [0.5, 0.5]}, "one offset per scale"),
        ({"scale": [0.5, 0.5], "offset": [-3, -3]}, "one scale per tensor"),
        ({"offset": [-3.7]}, "offset"),
        ({"offset": [3]}, "offsets from"),
        ({"offset": [-256]}, "offsets from"),
        ({"offset": [-(2**70)]}, "offsets from"),
        ({"is_sym": True}, "where symmetric"),
        ({"axis": 0}, "axis"),
    ],
    ids=str,
)
def test_malformed_entries_are_refused_by_name(tmp_path, change, named):
    with pytest.raises(RwkvlabError) as caught:
        Encodings.load(write(tmp_path, ENTRY | change))
    assert ENTRY["name"] in str(caught.value) and named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ENTRY)
def test_missing_keys_are_named(tmp_path, key):
    with pytest.raises(RwkvlabError, match=key):
        Encodings.load(write(tmp_path, {k: v for k, v in ENTRY.items() if k != key}))


def test_two_encodings_of_one_tensor_are_refused(tmp_path):
    with pytest.raises(RwkvlabError, match="two encodings"):
        Encodings.load(write(tmp_path, ENTRY, ENTRY))


def test_other_versions_are_refused(tmp_path):
    with pytest.raises(RwkvlabError, match=r"'0\.6\.1'.*1\.0\.0"):
        Encodings.load(write(tmp_path, version="0.6.1"))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"version": "1.0.0"}', "\udcff"], ids=range(7))
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "m.encodings"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(RwkvlabError, match=r"m\.encodings"):
        Encodings.load(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(RwkvlabError, match="cannot read"):
        Encodings.load(tmp_path / "absent")
