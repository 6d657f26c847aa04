from __future__ import annotations

from rwkvlab.errors import RwkvlabError


def test_one_line_with_all_three_parts() -> None:
    error = RwkvlabError("chunks 9", "1 to 4", "rwkvlab export --chunks 4")
    assert str(error) == "chunks 9; allowed: 1 to 4; try: rwkvlab export --chunks 4"


def test_empty_parts_leave_no_trace() -> None:
    assert str(RwkvlabError("no such file")) == "no such file"
    assert str(RwkvlabError("no such file", todo="ls")) == "no such file; try: ls"


def test_line_breaks_from_elsewhere_are_folded() -> None:
    assert str(RwkvlabError("line one\n  line two", "a\tb")) == "line one line two; allowed: a b"


def test_survives_a_process_boundary() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(RwkvlabError("a", "b", "c")))
    assert (error.what, error.allowed, error.todo) == ("a", "b", "c")
