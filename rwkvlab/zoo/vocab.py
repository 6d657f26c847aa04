"""The bundled models' vocabulary, derived from the story world so that the two cannot drift apart.

Format of the World vocabularies: one token a line, `id literal length-in-bytes`, ids from 1; id 0 is end-of-text. Ids
1..256 are the single bytes; then come "\\n\\n", the speakers, and every word of the world with its leading space.

    python -m rwkvlab.zoo.vocab        # rewrites vocab.txt
"""

from __future__ import annotations

import re

from rwkvlab.files import write_text_atomic
from rwkvlab.texts import _story_templates as templates
from rwkvlab.zoo import vocab_path


def vocabulary() -> list[bytes]:
    """All tokens in order of their ids, from id 1."""
    single_bytes = [bytes([value]) for value in range(256)]
    words = sorted({" " + word for text in templates.texts() for word in _words(text)})
    starts = sorted(_words(text)[0] for text in templates.OPENINGS)
    pieces = dict.fromkeys(["\n\n", "User", "Assistant", *starts, *words])
    return single_bytes + [piece.encode() for piece in pieces]


def vocabulary_text(tokens: list[bytes]) -> str:
    """The vocabulary file's content."""
    return "".join(f"{index} {_literal(token)} {len(token)}\n" for index, token in enumerate(tokens, start=1))


def _literal(token: bytes) -> str:
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", "", text))


if __name__ == "__main__":
    write_text_atomic(vocab_path(), vocabulary_text(vocabulary()))
