from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.texts.corpus import Source, calibration_tokens, cut_rows, read_sources
from rwkvlab.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")


def test_rows_start_with_end_of_text_and_hold_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh")
    text = calibration_tokens(tmp_path / "a.txt", BYTES, n_tokens=10, length=5)
    assert text.batches.dtype == np.int64
    assert text.batches.tolist() == [[0, *b"abcd"], [0, *b"efgh"]]
    assert text.n_tokens == 10 and text.sources == ("a.txt",)
    assert text.sha256 == hashlib.sha256(np.array(text.batches, "<i8").tobytes()).hexdigest()


def test_rows_are_spread_over_the_whole_text() -> None:
    text = cut_rows([Source("a", "".join(chr(65 + i) * 3 for i in range(8)))], BYTES, n_tokens=16, length=4)
    assert [bytes(row[1:].tolist()) for row in text.batches] == [b"AAA", b"CCC", b"EEE", b"GGG"]


@given(st.lists(st.text("abc \n", min_size=1), min_size=1, max_size=4), st.integers(1, 60), st.integers(2, 9))
def test_every_row_is_a_different_piece_of_the_joined_text(texts: list[str], n_tokens: int, length: int) -> None:
    sources = [Source(str(number), text) for number, text in enumerate(texts)]
    joined = "\0".join(texts).encode()
    needed = -(-n_tokens // length)
    if len(joined) // (length - 1) < needed:
        with pytest.raises(RwkvlabError, match=f"has {len(joined)} tokens, .* {needed} rows"):
            cut_rows(sources, BYTES, n_tokens, length)
        return
    text = cut_rows(sources, BYTES, n_tokens, length)
    assert text.batches.shape == (needed, length) and n_tokens <= text.n_tokens < n_tokens + length
    assert not text.batches[:, 0].any()
    windows = [list(joined[i : i + length - 1]) for i in range(0, len(joined) - length + 2, length - 1)]
    position = -1
    for row in text.batches[:, 1:].tolist():
        position = windows.index(row, position + 1)


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in (("b.txt", "bb"), ("a.txt", "aa"), ("sub/c.txt", "cc"), ("notes.md", "no")):
        (tmp_path / name).write_text(text)
    assert read_sources(tmp_path) == [Source("a.txt", "aa"), Source("b.txt", "bb"), Source("c.txt", "cc")]
    assert read_sources([tmp_path / "b.txt", str(tmp_path / "notes.md")])[1] == Source("notes.md", "no")


def test_the_hash_tells_inputs_apart_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone two three\r\nfour".encode())
    (tmp_path / "b.txt").write_text("one two three\nfour")
    (tmp_path / "c.txt").write_text("ten two three\nfour")
    first, same, other = (calibration_tokens(tmp_path / f"{name}.txt", BYTES, 8, 4).sha256 for name in "abc")
    assert first == same != other


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_empty_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(RwkvlabError, match=r"a.txt holds no text"):
        calibration_tokens(tmp_path, BYTES, 8, 4)


def test_too_little_text_is_refused_with_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 11)
    with pytest.raises(RwkvlabError, match=r"has 11 tokens, enough for 3 rows of 4; allowed: 4 rows, from at least 12"):
        calibration_tokens(tmp_path, BYTES, 16, 4)


def test_unusable_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "none").mkdir()
    for paths, what in (
        (tmp_path / "latin.txt", "not UTF-8 at byte 3"),
        (tmp_path / "none", "no text files in"),
        ([], "no text files in an empty list"),
        (tmp_path / "absent.txt", "cannot read .*absent.txt"),
    ):
        with pytest.raises(RwkvlabError, match=what):
            calibration_tokens(paths, BYTES, 8, 4)


@pytest.mark.parametrize(("n_tokens", "length"), [(0, 4), (-1, 4), (8, 1), (8, 0)])
def test_sizes_that_make_no_sense_are_refused(n_tokens: int, length: int) -> None:
    with pytest.raises(RwkvlabError, match=f"n_tokens {n_tokens}, length {length}"):
        cut_rows([Source("a", "abc")], BYTES, n_tokens, length)


def test_novels(shared: Path) -> None:
    text = calibration_tokens(
        shared / "corpus" / "rudyard-kipling_the-jungle-book.txt", load_tokenizer("world"), 4096, 128
    )
    assert text.batches.shape == (32, 128)
