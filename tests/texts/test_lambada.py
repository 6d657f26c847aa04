from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.texts import lambada
from rwkvlab.texts.lambada import Item, load_items, load_set, split_last_word

TEXTS = ["Tom hid the key.\n\nHe never found the key", '"Where?" she asked | well "in the barn', "a  b"]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_split_at_the_last_space(tmp_path: Path) -> None:
    assert load_items(write_jsonl(tmp_path / "a.jsonl", TEXTS)) == [
        Item("Tom hid the key.\n\nHe never found the", " key"),
        Item('"Where?" she asked | well "in the', " barn"),
        Item("a ", " b"),
    ]


@given(st.text(), st.text(min_size=1))
def test_context_and_target_join_to_the_text(context: str, word: str) -> None:
    text = f"{context} {word}"
    try:
        item = split_last_word(text)
    except RwkvlabError:
        assert not text[: text.rindex(" ")].strip() or text != text.rstrip()
    else:
        assert item.text == text
        assert item.target.startswith(" ") and item.target.count(" ") == 1


def test_the_separated_form_gives_the_same_items(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if "|" not in text]
    expected = load_items(write_jsonl(tmp_path / "a.jsonl", texts))
    for name, content in (
        ("plain", "|".join(texts) + "|"),
        ("lines", "|\n".join(texts) + "\n|\n"),
        ("windows", ("|\n".join(texts) + "|\n").replace("\n", "\r\n")),
    ):
        path = tmp_path / f"{name}.txt"
        path.write_bytes(content.encode())
        assert load_items(path) == expected, name


def test_the_real_set_is_recognised_in_both_forms(tmp_path: Path, shared: Path) -> None:
    source = shared / "data" / "lambada_test.jsonl"
    real = load_set(source)
    assert real.official and len(real.items) == 5153
    assert real.sha256 == "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
    (tmp_path / "l.txt").write_text("".join(item.text + "|" for item in real.items))
    assert load_set(tmp_path / "l.txt").official
    assert load_set(tmp_path / "l.txt").items == real.items
    part = load_set(write_jsonl(tmp_path / "part.jsonl", [item.text for item in real.items[:-1]]))
    assert not part.official


def test_any_other_set_is_not_official(tmp_path: Path) -> None:
    assert not load_set(write_jsonl(tmp_path / "a.jsonl", TEXTS)).official


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '"text"', "null", '{"txt": "a b"}', '{"text": 3}', '{"text": "a \\ud800"}', "[" * 100_000]
)
def test_malformed_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a b"}\n' + line + '\n{"text": "c d"}\n')
    with pytest.raises(RwkvlabError, match=r"a.jsonl line 2 is malformed"):
        load_set(path)


@pytest.mark.parametrize("text", ["word", " word", "two words ", "two words\n", "", " "])
def test_items_without_a_last_word_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RwkvlabError, match=r"a.jsonl item 2 has no last word"):
        load_set(write_jsonl(tmp_path / "a.jsonl", ["a b", text]))


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    for name, data, what in (
        ("empty.jsonl", b"", "holds no passages"),
        ("blank.jsonl", b"\n\n", "holds no passages"),
        ("empty.txt", b"", "holds no passages"),
        ("unfinished.txt", b"a b|c d", "ends without a `|` after passage 2"),
        ("latin.jsonl", b'{"text": "caf\xe9 b"}', "not UTF-8 at byte 13"),
        ("a.csv", b"a b", "suffix '.csv'"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RwkvlabError, match=what):
            load_set(tmp_path / name)
    with pytest.raises(RwkvlabError, match=r"cannot read .*absent.jsonl"):
        load_set(tmp_path / "absent.jsonl")


def test_no_network_is_one_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise RuntimeError("cannot resolve host\nmore")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=unreachable))
    with pytest.raises(RwkvlabError, match=r"cannot download .* cannot resolve host; try: copy the file"):
        load_set("hub")


def test_the_hub_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RwkvlabError, match="pip install huggingface_hub"):
        load_set("hub")


def test_a_download_with_other_contents_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "other.jsonl", TEXTS)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=lambda *_, **__: str(path)))
    with pytest.raises(RwkvlabError, match="not the official LAMBADA file"):
        load_set(lambada.HUB)


def test_the_download_is_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repository: str, file: str, repo_type: str) -> str:
        asked.append((repository, file, repo_type))
        return str(shared / "data" / "lambada_test.jsonl")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    assert load_set("hub").official
    assert asked == [("EleutherAI/lambada_openai", "data/lambada_test.jsonl", "dataset")]
