"""`sk branch create`."""

from __future__ import annotations

from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.branch_options import branches_dir_option, log_tail_shown, port_option
from quorum_wal.cli.moment_options import (
    at_options,
    binaries_of,
    moment_of,
    pg_bin_option,
    wal_sources,
)
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import live_safekeepers_option, timeline_option
from quorum_wal.cli.progress import ByteProgress
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.pageserver.branches.branch_configuration import BranchRequest
from quorum_wal.pageserver.branches.branch_creation import BranchCreation, Progress
from quorum_wal.pageserver.branches.branch_folder import BranchFolder, branch_folders
from quorum_wal.pageserver.branches.branch_record import Branch
from quorum_wal.pageserver.branches.branch_server import BranchServer, choose_port, is_port_free
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pg_server.account import server_account
from quorum_wal.pgwal.lsn import format_lsn


@click.command()
@click.argument("name")
@branches_dir_option
@archive_options()
@timeline_option
@live_safekeepers_option
@at_options
@pg_bin_option
@port_option("Port on the loopback.  [default: the first free one from 5433]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting for its postgresql.conf: shared_buffers=2GB, ... (repeatable).",
)
@click.option(
    "--cluster-hba",
    is_flag=True,
    help="Use the cluster's pg_hba.conf.  [default: connections by password, or through the "
    "socket as the server's account]",
)
@click.option("--no-start", is_flag=True, help="Do not start it; use sk branch start.")
@click.option("--no-sync", is_flag=True, help="Do not fsync the files; for tests.")
def create(**options: Any) -> None:
    """Create a branch: a separate server with the whole cluster as of a moment.

    The branch accepts writes. The cluster, its archive and its safekeepers are not affected. It
    needs as much disk space as the database. Prints the connection string. Without --at, the moment
    is the end of the available WAL.
    """
    moment, settings = moment_of(options), _settings(options["settings"])
    folder = BranchFolder(options["branches_dir"], options["name"])
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    request = BranchRequest(
        target=moment,
        port=_port(options),
        settings=settings,
        cluster_hba=options["cluster_hba"],
        is_synced=not options["no_sync"],
    )
    redo = RedoServer(binaries_of(archive, options["pg_bin"]), server_account())
    with ByteProgress("branch") as bar:
        branch = BranchCreation(
            folder,
            archive,
            wal_sources(archive, options),
            redo,
            request,
            Progress(_tell_moment, bar.expect, bar.more),
        ).run()
    _tell_made(branch)
    server = BranchServer(folder, branch)
    if not options["no_start"]:
        with log_tail_shown(), folder.locked():
            server.start()
    click.echo(server.dsn)
    click.echo(f"without a password, as its account: {server.socket_dsn}", err=True)


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    """Raises click.UsageError."""
    pairs = [text.partition("=") for text in given]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise click.UsageError("--set needs NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _port(options: dict[str, Any]) -> int:
    """Raises CommandError, BranchError."""
    chosen: int | None = options["port"]
    if chosen is None:
        return choose_port(_taken_ports(options))
    if not is_port_free(chosen):
        raise CommandError(f"port {chosen} is in use", "Give another --port, or none.")
    return chosen


def _taken_ports(options: dict[str, Any]) -> set[int]:
    """The ports of the existing branches, whether they run or not."""
    taken = set()
    for folder in branch_folders(options["branches_dir"]):
        try:
            branch = folder.record()
        except BranchError:
            continue  # sk branch list shows a damaged branch
        if branch is not None:
            taken.add(branch.port)
    return taken


def _tell_moment(point: RestorePoint, is_wal_end: bool) -> None:
    click.echo(
        f"from the cut at {format_lsn(point.cut_lsn)}, with WAL up to {point.target}", err=True
    )
    if is_wal_end:
        click.echo(
            "WARNING: the available WAL has no commit after that time. If the time is recent, "
            "commits before it may be missing. Give --safekeepers to read WAL that is not archived",
            err=True,
        )


def _tell_made(branch: Branch) -> None:
    commit = branch.last_commit_at
    last = commit.isoformat(" ") if commit else "none after the cut"
    click.echo(
        f"branch {branch.name} is at {format_lsn(branch.lsn)}, last transaction {last}, timeline "
        f"{branch.tli}",
        err=True,
    )
    if branch.prepared:
        click.echo(
            f"{branch.prepared} transactions were prepared at that moment, and hold their locks. "
            "SELECT * FROM pg_prepared_xacts, then COMMIT PREPARED or ROLLBACK PREPARED",
            err=True,
        )
