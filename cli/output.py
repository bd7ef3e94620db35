"""How a command ends and what it prints: errors with a hint and an exit code, JSON or tables.

    0    all is well
    1    something refused or failed; `sk demo`: something acknowledged was lost
    2    wrong usage: a flag, an environment variable or the config file
    3    `sk status`: commits cannot proceed, or return without a quorum; `sk check`: a check
         failed; `sk page check`: a page is damaged; `sk detach`: it would let commits return
         that no quorum has
    4    somebody who is needed cannot be reached
    5    fenced: another proposer took over
    130  interrupted (`sk demo`)
    255  `sk archive fetch`: it cannot tell whether the file exists; Postgres ends its recovery

Data goes to stdout. Errors go to stderr: one sentence, and a hint when there is something to do.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from quorum_wal.access.errors import AccessError
from quorum_wal.backup.errors import BackupError
from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.generations.errors import GenerationError, GenerationServiceUnavailable
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.pageserver.errors import PageserverError, ServerUnreachable
from quorum_wal.pg_server.errors import PgServerError
from quorum_wal.pgwal.errors import WalError
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.spark.errors import SparkWalError
from quorum_wal.storage.errors import StorageError
from quorum_wal.walproposer.errors import CommitsWait, Fenced, Unreachable, WalProposerError

if TYPE_CHECKING:  # they cost more than `sk archive fetch` takes
    from rich.console import Console
    from rich.table import Table

# Tables are not wrapped for a pipe: a program or `less -S` reads them.
PIPE_COLUMNS = 1000

INSUFFICIENT_PRIVILEGE = "42501"


class ExitCode(IntEnum):
    """The table above; 2 is click's own, too."""

    FAILED = 1
    USAGE = 2
    BLOCKED = 3
    UNREACHABLE = 4
    FENCED = 5
    INTERRUPTED = 130
    CANNOT_TELL = 255


class CommandError(click.ClickException):
    """One sentence, a hint, an exit code."""

    def __init__(self, message: str, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = int(exit_code)  # type: ignore[misc]  # click means it so

    def show(self, file: Any = None) -> None:
        click.echo(f"sk: error: {self.message}", file=file or sys.stderr)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file or sys.stderr)


#: What the libraries raise for the world's faults; anything else is a bug and shows itself.
LIBRARY_ERRORS = (
    WalProposerError,
    SafekeeperError,
    AccessError,
    StorageError,
    ObjectStoreError,
    BackupError,
    GenerationError,
    PageserverError,
    SparkWalError,
    PgServerError,
    ConsensusError,
    WalError,
)


def command_error(error: Exception) -> CommandError:
    """A library's error as the command's end."""
    codes: dict[type[Exception], ExitCode] = {
        Fenced: ExitCode.FENCED,
        Unreachable: ExitCode.UNREACHABLE,
        GenerationServiceUnavailable: ExitCode.UNREACHABLE,
        ServerUnreachable: ExitCode.UNREACHABLE,
        CommitsWait: ExitCode.BLOCKED,
    }
    code = codes.get(type(error), ExitCode.FAILED)
    hint = getattr(error, "hint", "") or _usual_hint(error)
    return CommandError(" ".join(str(error).split()), hint, code)


def _usual_hint(error: Exception) -> str:
    """Where a server has refused without a hint of its own."""
    if getattr(error, "sqlstate", "") == INSUFFICIENT_PRIVILEGE:
        return "ALTER ROLE ... REPLICATION; sk check shows what else is needed."
    if isinstance(error, Unreachable):
        return "Start it, or correct its address."
    return ""


def print_json(value: Any) -> None:
    """Indented JSON on stdout."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def console() -> Console:
    """stdout, as wide as the terminal; colours only there."""
    from rich.console import Console

    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        width=None if sys.stdout.isatty() else PIPE_COLUMNS,
    )


def plain_table(*columns: str) -> Table:
    """A table without lines, its cells never broken."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
