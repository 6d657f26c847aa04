"""The `rwkvlab` command: one verb per station of the flow, each ending with the command that comes next."""

from rwkvlab.cli.app import app, main

__all__ = ["app", "main"]
