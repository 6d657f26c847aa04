"""The one exception users meet."""

from __future__ import annotations


class RwkvlabError(Exception):
    """Something a user can put right.

    Args:
        what: what was wrong, with the offending value.
        allowed: what would have been accepted ("" where that is evident).
        todo: what to do next, ideally a command.
    """

    def __init__(self, what: str, allowed: str = "", todo: str = "") -> None:
        self.what, self.allowed, self.todo = what, allowed, todo
        super().__init__(what, allowed, todo)

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows in a failed cell: the one line, without the frames that led to it."""
        return [f"RwkvlabError: {self}"]

    def __str__(self) -> str:
        parts = [self.what]
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.todo:
            parts.append(f"try: {self.todo}")
        return "; ".join(" ".join(part.split()) for part in parts)
