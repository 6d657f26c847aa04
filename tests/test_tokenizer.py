from __future__ import annotations

import hashlib
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkvlab.errors import RwkvlabError
from rwkvlab.tokenizer import Tokenizer, WorldTokenizer, byte_form, check_vocabulary, load_tokenizer


@pytest.fixture(scope="module")
def world() -> Tokenizer:
    return load_tokenizer("world")


def package_file() -> Path:
    package = importlib.util.find_spec("rwkv")
    assert package and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "rwkv_vocab_v20230424.txt"


def random_strings(count: int) -> list[str]:
    """Words and symbols of many scripts, code, runs of spaces, and plain noise, the kinds that tokens are made of."""
    rng = random.Random(5)
    pieces = ["the", " and", "Hello", "  ", "\n", "\n\n", "\t", " ", "    ", "def f(x):", "中文", "日本語の", "é", "ß"]
    pieces += ["😀", "👩‍👩‍👧", "мир", " שלום", "12345", "-" * 70, "=" * 9, "\x00", "'s", "…", "\u2028", "\r\n", "ﷺ"]

    def noise() -> str:
        return "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0xD800)])) for _ in range(rng.randrange(9)))

    return ["".join(rng.choice([rng.choice(pieces), noise()]) for _ in range(rng.randrange(12))) for _ in range(count)]


def test_world_equals_the_rwkv_packages_tokenizer(world: Tokenizer) -> None:
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

    reference = TRIE_TOKENIZER(str(package_file()))
    for text in random_strings(10_000):
        ids = reference.encode(text)
        assert world.encode(text) == ids, text
        assert world.decode(ids) == text


def test_world_has_its_published_size(world: Tokenizer) -> None:
    assert (world.name, world.vocab_size) == ("world", 65530)
    check_vocabulary(world, 65536)


def test_real_text(shared: Path, world: Tokenizer) -> None:
    """Token count of the real test set, as counted independently with the rwkv package's tokenizer."""
    from rwkvlab.texts.lambada import load_items

    assert sum(len(world.encode(item.text)) for item in load_items(shared / "data" / "lambada_test.jsonl")) == 408_657


@pytest.mark.parametrize("name", ["world", "bytes"])
def test_any_bytes_come_back(name: str) -> None:
    tokenizer = load_tokenizer(name)

    @given(st.binary())
    def round_trip(data: bytes) -> None:
        ids = tokenizer.encode_bytes(data)
        assert tokenizer.decode_bytes(ids) == data
        assert all(0 <= token < tokenizer.vocab_size for token in ids)

    @given(st.text())
    def text_round_trip(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    round_trip()
    text_round_trip()


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=30, unique=True), st.binary(max_size=60))
def test_any_vocabulary_encodes_by_longest_match(
    tmp_path_factory: pytest.TempPathFactory, extra: list[bytes], data: bytes
) -> None:
    """Against the definition, spelled out: at each position, the longest token that the rest begins with."""
    tokens = [bytes([value]) for value in range(256)] + [token for token in extra if len(token) > 1]
    path = tmp_path_factory.mktemp("vocab") / "v.txt"
    path.write_text("".join(f"{i} {token!r} {len(token)}\n" for i, token in enumerate(tokens, start=1)))
    expected, rest = [], data
    while rest:
        best = max((token for token in tokens if rest.startswith(token)), key=len)
        expected.append(tokens.index(best) + 1)
        rest = rest[len(best) :]
    assert load_tokenizer(path).encode_bytes(data) == expected


def test_partial_utf8_is_replaced_not_raised(world: Tokenizer) -> None:
    for tokenizer in (world, load_tokenizer("bytes")):
        assert tokenizer.decode(tokenizer.encode_bytes("é".encode()[:1])) == "\N{REPLACEMENT CHARACTER}"


def test_end_of_text_decodes_to_nothing(world: Tokenizer) -> None:
    assert world.decode_bytes([0, *world.encode("a"), 0]) == b"a"


@pytest.mark.parametrize(("name", "ids"), [("world", [65530]), ("world", [-1]), ("bytes", [256]), ("bytes", [-1])])
def test_unknown_ids_are_refused(name: str, ids: list[int]) -> None:
    with pytest.raises(RwkvlabError, match=f"no token with id {ids[0]}"):
        load_tokenizer(name).decode(ids)


def test_half_a_surrogate_pair_is_refused(world: Tokenizer) -> None:
    with pytest.raises(RwkvlabError, match="character 1 of the text"):
        world.encode("a\ud800")


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def test_strings_bytes_and_line_ends(tmp_path: Path) -> None:
    lines = ("1 'é' 2", "2 b'\\xc3' 1", '7 "it\'s" 4', "3 ' ' 1", "4 '\\n' 1")
    unix = load_tokenizer(write(tmp_path / "unix.txt", *lines))
    windows = load_tokenizer(write(tmp_path / "windows.txt", *lines, end="\r\n"))
    for tokenizer in (unix, windows):
        assert tokenizer.encode("é it's\n") == [1, 3, 7, 4]
        assert tokenizer.encode_bytes(b"\xc3") == [2]
        assert tokenizer.vocab_size == 8
    by_id = rb"1 b'\xc3\xa9' 2|2 b'\xc3' 1|3 b'\x20' 1|4 b'\x0a' 1|7 b'\x69\x74\x27\x73' 4|".replace(b"|", b"\n")
    assert unix.hash == windows.hash == hashlib.sha256(by_id).hexdigest()
    assert (unix.name, windows.name) == ("unix.txt", "windows.txt")


# --- the byte form ---


def load_world_format(path: Path) -> WorldTokenizer:
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, WorldTokenizer)
    return tokenizer


@given(st.dictionaries(st.integers(1, 2**24), st.binary(min_size=1, max_size=9), min_size=1, max_size=20))
def test_the_byte_form_is_the_same_vocabulary(
    tmp_path_factory: pytest.TempPathFactory, tokens: dict[int, bytes]
) -> None:
    tokens = {token: piece for piece, token in {piece: token for token, piece in tokens.items()}.items()}
    folder = tmp_path_factory.mktemp("vocab")
    spelled = {token: piece.decode() if piece.isascii() else piece for token, piece in tokens.items()}
    lines = [f"{token} {text!r} {len(tokens[token])}" for token, text in spelled.items()]
    plain = load_world_format(write(folder / "v.txt", *lines))
    (folder / "b_v.txt").write_text(byte_form(plain.tokens))
    converted = load_world_format(folder / "b_v.txt")
    assert converted.tokens == plain.tokens == tokens
    assert converted.hash == plain.hash
    assert byte_form(converted.tokens) == (folder / "b_v.txt").read_text()
    tokens[1] = tokens.get(1, b"") + b"0123456789"
    (folder / "other.txt").write_text(byte_form(tokens))
    assert load_tokenizer(folder / "other.txt").hash != plain.hash


def test_the_byte_form_of_world(world: Tokenizer, tmp_path: Path) -> None:
    """Every line escapes every byte and nothing else, in the order of the published file."""
    assert isinstance(world, WorldTokenizer)
    (tmp_path / "b_world.txt").write_text(byte_form(world.tokens))
    converted = load_world_format(tmp_path / "b_world.txt")
    assert (converted.tokens, converted.hash) == (world.tokens, world.hash)
    lines = (tmp_path / "b_world.txt").read_text().splitlines()
    published = package_file().read_text().removesuffix("\n").split("\n")
    for line, original in zip(lines, published, strict=True):
        token, escaped, length = line.split(" ")
        assert (token, length) == (original.split(" ")[0], original.rsplit(" ", 1)[1])
        assert re.fullmatch(r"b'(\\x[0-9a-f]{2})+'", escaped) and len(escaped) == 3 + 4 * int(length)
        assert bytes.fromhex(escaped[2:-1].replace("\\x", "")) == world.tokens[int(token)]


# --- ABC notation ---


def test_abc_ids_are_ascii_codes() -> None:
    abc = load_tokenizer("abc")
    assert (abc.name, abc.vocab_size) == ("abc", 128)
    assert abc.encode("\x02X:1\nK:C\n|: CEG |\x03")[:5] == [2, 88, 58, 49, 10]
    every = bytes(range(128))
    assert abc.encode_bytes(every) == list(range(128)) and abc.decode_bytes(range(128)) == every
    assert abc.hash not in (load_tokenizer("bytes").hash, load_tokenizer("world").hash)
    check_vocabulary(abc, 128)


def test_abc_refuses_what_is_not_ascii() -> None:
    abc = load_tokenizer("abc")
    with pytest.raises(RwkvlabError, match=r"byte b'\\xc3' at position 5 is not ASCII; .* accents as ABC does"):
        abc.encode("T:Cafés")
    with pytest.raises(RwkvlabError, match="'abc' has no token with id 128"):
        abc.decode([65, 128])
    with pytest.raises(RwkvlabError, match="has 128 ids, the model 256 rows"):
        check_vocabulary(abc, 256)


def test_a_byte_no_token_has_is_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path / "v.txt", "1 'ab' 2", "2 'a' 1"))
    assert tokenizer.encode("aba") == [1, 2]
    for text, position in (("abb", 2), ("c", 0), ("aaé", 2)):
        with pytest.raises(RwkvlabError, match=f"at position {position} is in no token of vocabulary 'v.txt'"):
            tokenizer.encode(text)


HOSTILE = [
    "2 __import__('os').system('touch ran') 1",
    "2 (lambda: 'a')() 1",
    "2 'a' + 'b' 2",
    "2 f'{1}' 1",
    "2 ['a'] 1",
    "2 3 1",
    "2 " + "(" * 4000 + " 1",
    "2 " + "-" * 4000 + "1 1",
    "2 'a 1",
    "2 '\\ud800' 3",
    "2 '\x00' 1",
    "2 'a' 2",
    "2 '' 0",
    "2 'é' 1",
    "2 'a' -1",
    "0 'a' 1",
    "-2 'a' 1",
    "2_0 'a' 1",
    "٢ 'a' 1",
    "999999999 'a' 1",
    "99999999999999999999 'a' 1",
    "1 'a' 1",  # the id of line 1
    "2 'x' 1",  # the token of line 1
    "2 b'x' 1",
    "2 'a'",
    "",
    "2 '" + "a" * 10_000 + "' 10000",
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:20])
def test_hostile_lines_are_refused_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RwkvlabError, match=r"v.txt line 2") as error:
        load_tokenizer(write(tmp_path / "v.txt", "1 'x' 1", line, "9 'y' 1"))
    assert len(str(error.value)) < 500
    assert not (tmp_path / "ran").exists()


def test_unreadable_vocabularies_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"1 'a' 1\n2 '\xe9' 1\n")
    (tmp_path / "big.txt").touch()
    with (tmp_path / "big.txt").open("rb+") as file:
        file.truncate(2**27)
    for path, what in (
        (tmp_path / "absent.txt", "cannot read vocabulary"),
        (tmp_path, "cannot read vocabulary|has .* bytes"),
        (tmp_path / "empty.txt", "has 0 bytes"),
        (tmp_path / "latin.txt", "line 2 is not UTF-8"),
        (tmp_path / "big.txt", "has 134217728 bytes"),
    ):
        with pytest.raises(RwkvlabError, match=what):
            load_tokenizer(path)


def test_a_vocabulary_must_be_the_models(world: Tokenizer) -> None:
    small = load_tokenizer("bytes")
    check_vocabulary(small, 256)
    check_vocabulary(small, 280)
    for tokenizer, rows in ((small, 255), (small, 65536), (world, 65529), (world, 256)):
        with pytest.raises(RwkvlabError, match=f"has {tokenizer.vocab_size} ids, the model {rows} rows"):
            check_vocabulary(tokenizer, rows)


def test_the_world_vocabulary_may_be_absent() -> None:
    code = """
import importlib.util
from rwkvlab.errors import RwkvlabError
from rwkvlab.tokenizer import load_tokenizer
importlib.util.find_spec = lambda name: None
try:
    load_tokenizer("world")
except RwkvlabError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install rwkv" in done.stdout


def test_loading_world_imports_neither_torch_nor_the_package() -> None:
    code = """
import sys
from rwkvlab.tokenizer import load_tokenizer
load_tokenizer("world")
sys.exit(bool({"torch", "rwkv", "rwkv.model"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
