"""How the command ends: errors with a hint and an exit code, JSON or tables for data.

Exit codes: 0 all is well; 1 something refused or failed; 2 wrong usage; 3 commits cannot proceed
(`sk status`) or a check failed (`sk check`); 4 somebody cannot be reached; 5 fenced: another
proposer took over.
"""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

EXIT_FAILED = 1
EXIT_BLOCKED = 3
EXIT_UNREACHABLE = 4
EXIT_FENCED = 5


class CommandError(click.ClickException):
    """One sentence, a hint, an exit code."""

    def __init__(self, message: str, hint: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code  # type: ignore[misc]  # click means it so

    def show(self, file: Any = None) -> None:
        click.echo(f"sk: error: {self.message}", file=file or sys.stderr)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file or sys.stderr)


def print_json(value: Any) -> None:
    """Indented JSON on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
