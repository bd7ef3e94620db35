"""The exit codes and the output of a command: errors with a hint, JSON, or tables.

    0    success
    1    an error or a refusal; `sk demo`: an acknowledged row was lost
    2    wrong usage: an option, an environment variable or the config file
    3    `sk status`: commits cannot proceed, or return without a quorum; `sk check`: a check
         failed; `sk page check`: a page is damaged; `sk detach`: commits wait that no quorum
         has confirmed, and would return
    4    a service that is needed cannot be reached
    5    fenced: another proposer took over
    130  interrupted (`sk demo`)
    255  `sk archive fetch`: it is not certain whether the file exists; Postgres stops

Data is written to stdout. Errors are written to stderr: one sentence, and a hint if there is one.
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
from quorum_wal.telemetry.printable import printable
from quorum_wal.walproposer.errors import CommitsWait, Fenced, Unreachable, WalProposerError

if TYPE_CHECKING:  # their import takes longer than `sk archive fetch`
    from rich.console import Console
    from rich.table import Table

# Tables are not wrapped in a pipe, because a program or `less -S` reads them.
PIPE_COLUMNS = 1000

INSUFFICIENT_PRIVILEGE = "42501"


class ExitCode(IntEnum):
    """The exit codes above; click uses 2 as well."""

    FAILED = 1
    USAGE = 2
    BLOCKED = 3
    UNREACHABLE = 4
    FENCED = 5
    INTERRUPTED = 130
    CANNOT_TELL = 255


class CommandError(click.ClickException):
    """An error that ends a command: one sentence, a hint, an exit code."""

    def __init__(self, message: str, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = int(exit_code)  # type: ignore[misc]  # click means it so

    def show(self, file: Any = None) -> None:
        click.echo(f"sk: error: {printable(self.message)}", file=file or sys.stderr)
        if self.hint:
            click.echo(f"hint: {printable(self.hint)}", file=file or sys.stderr)


#: What the libraries raise for outside errors. Any other exception is a bug, with a traceback.
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
    """The error of a library as a CommandError, with its exit code."""
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
    """The hint for an error of a server that has no hint of its own."""
    if getattr(error, "sqlstate", "") == INSUFFICIENT_PRIVILEGE:
        return "Run ALTER ROLE ... REPLICATION; sk check shows what else is needed."
    if isinstance(error, Unreachable):
        return "Start it, or correct its address."
    return ""


def print_json(value: Any) -> None:
    """Indented JSON on stdout."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def console() -> Console:
    """stdout, as wide as the terminal, with colours only on a terminal."""
    from quorum_wal.cli.plain_console import PlainConsole

    return PlainConsole(
        highlight=False,
        markup=False,
        emoji=False,
        width=None if sys.stdout.isatty() else PIPE_COLUMNS,
    )


def plain_table(*columns: str) -> Table:
    """A table without lines, whose cells are not wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
