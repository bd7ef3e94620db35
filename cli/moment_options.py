"""Options of the commands that reconstruct a moment: the moment, its WAL, and the Postgres."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.safekeeper_wal import Safekeeper, SafekeeperWalSource
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.cli.moment_text import MomentText
from quorum_wal.cli.parameters import with_conninfo
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.lsn import Lsn

F = TypeVar("F", bound=Callable[..., Any])


def moment_options(function: F) -> F:
    """--at, --at-lsn, --pg-bin, --work-dir."""
    return at_options(replay_options(function))


def replay_options(function: F) -> F:
    """--pg-bin, --work-dir."""
    work_dir = click.option(
        "--work-dir",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder for files and WAL while it runs.  [default: the temporary folder]",
    )
    return pg_bin_option(work_dir(function))


def at_options(function: F) -> F:
    """--at, --at-lsn."""
    at = click.option("--at", type=MomentText(), help='The moment: a time, or "10 minutes ago".')
    at_lsn = click.option("--at-lsn", metavar="LSN", help="The moment as a position in the WAL.")
    return at(at_lsn(function))


def pg_bin_option(function: F) -> F:
    """--pg-bin."""
    return click.option(
        "--pg-bin",
        type=click.Path(path_type=Path),
        help="Folder of the Postgres programs that replay WAL.  [default: found by version]",
    )(function)


def moment_of(options: dict[str, Any]) -> RecoveryTarget:
    """Raises click.UsageError."""
    if options["at"] is not None and options["at_lsn"] is not None:
        raise click.UsageError("--at and --at-lsn exclude each other")
    if options["at_lsn"] is None:
        return RecoveryTarget(time=options["at"])
    try:
        return RecoveryTarget(lsn=int(Lsn.parse(options["at_lsn"])))
    except WalError as error:
        raise click.UsageError(f"--at-lsn: {error}") from error


def wal_sources(archive: TimelineArchive, options: dict[str, Any]) -> list[WalSource]:
    """The archive, then the given safekeepers, for WAL that is not archived yet."""
    sources: list[WalSource] = [ArchivedWalSource(lambda: archive)]
    addresses = with_conninfo(options["safekeepers"], options["safekeeper_conninfo"])
    if addresses:
        timeline = archive.timeline
        members = [Safekeeper(str(a), partial(a.connect, timeline)) for a in addresses]
        sources.append(SafekeeperWalSource(members))
    return sources


def binaries_of(archive: TimelineArchive, chosen: Path | None) -> PostgresBinaries:
    """Raises Unavailable."""
    if chosen is not None:
        return PostgresBinaries.at(chosen)
    return find_postgres(archive.facts.server.pg_major)
