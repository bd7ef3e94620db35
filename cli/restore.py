"""`sk restore`: restore a server from a backup, the archive and the remaining safekeepers."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from quorum_wal.backup.recovery_settings import SignalFile
from quorum_wal.backup.restore_plan import RestorePlan
from quorum_wal.backup.target import Latest
from quorum_wal.cli.archive_options import archive_options
from quorum_wal.cli.attach import (
    admin_token_option,
    proposer_http_option,
    proposer_listener,
    proposer_with_page,
)
from quorum_wal.cli.elect import elect_within
from quorum_wal.cli.listening import tls_files, tls_options
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import (
    Dsn,
    application_name_option,
    live_safekeepers_option,
    slot_option,
    timeline_option,
    timeout_option,
)
from quorum_wal.cli.qsync_options import QsyncValues, qsync_config, qsync_options
from quorum_wal.cli.restore_request import RestoreRequest
from quorum_wal.pg_server.binaries import BIN_DIR_VARIABLE
from quorum_wal.pg_server.errors import ServerFailed
from quorum_wal.pg_server.restored_server import RestoredServer
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.telemetry.status_server import HttpListener
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.failover.failover import Failover
from quorum_wal.walproposer.primary.prepared_transactions import read_prepared
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.timelines.timeline_creation import require_timeline


@click.command()
@archive_options()
@timeline_option
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data directory of the restored server; must be empty or not exist.",
)
@click.option(
    "--tablespace",
    multiple=True,
    metavar="OLD=NEW",
    help="New location of a tablespace (repeatable).",
)
@click.option(
    "--target", type=click.Choice(["latest"]), help="Restore to the end of the log (the default)."
)
@click.option("--target-lsn", metavar="LSN", help="Restore WAL below this position.")
@click.option("--target-time", metavar="TIME", help="Restore commits up to this time.")
@click.option(
    "--target-xid",
    type=click.IntRange(1, 2**32 - 1),
    metavar="N",
    help="Restore commits up to this transaction, itself included.",
)
@click.option(
    "--target-action",
    type=click.Choice(["promote", "pause", "shutdown"]),
    default="promote",
    show_default=True,
    help="What the server does when it reaches such a target.",
)
@click.option("--backup", "backup_id", metavar="NAME", help="Begin with this backup.")
@live_safekeepers_option
@click.option(
    "--replica-conninfo",
    type=Dsn(),
    help="libpq settings with which the server connects to safekeepers (user, sslmode, passfile, "
    "...).  [default: --safekeeper-conninfo]",
)
@click.option(
    "--pg-bin",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=BIN_DIR_VARIABLE,
    show_envvar=True,
    help="Folder of the Postgres programs that run it.  [default: the newest of its version]",
)
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option("--no-sync", is_flag=True, help="Do not fsync the files; for tests.")
@click.option("--start", is_flag=True, help="Start it, wait until recovery ends, and check it.")
@click.option(
    "--promote",
    is_flag=True,
    help="Make it the new primary: fence the old one, start this one, and run its proposer.",
)
@click.option(
    "--no-attach", is_flag=True, help="With --promote: exit when promoted; then run sk attach."
)
@click.option("--server", type=Dsn(), help="DSN of the restored server when it runs (a superuser).")
@click.option(
    "--server-options", default="", metavar="OPTIONS", help='Its command line: "-p 5433 ...".'
)
@slot_option
@application_name_option
@timeout_option("How long to wait for a quorum, or for progress of the server.")
@qsync_options
@proposer_http_option
@tls_options
@admin_token_option
def restore(**options: Any) -> None:
    """Restore a server from the archive, to the end of the log or to a moment.

    Checks that the target exists, unpacks the newest backup before it, and writes the recovery
    settings. The server recovers when it is started. WAL that is not archived yet is read from
    --safekeepers. Without --promote the result is a copy, which no quorum protects. With --promote
    the server becomes the new primary, with every acknowledged commit, and this process its
    proposer.
    """
    try:
        with closing(RestoreRequest.of(options)) as request:
            (_restore_and_promote if options["promote"] else _restore_copy)(request, options)
    except ServerFailed as error:
        for line in error.log_tail:
            click.echo(f"    {line}", err=True)
        raise


# ---- a copy


def _restore_copy(request: RestoreRequest, options: dict[str, Any]) -> None:
    plan = request.plan()
    if options["dry_run"]:
        return
    request.write(plan, SignalFile.RECOVERY, request.recovery_settings(plan))
    if not options["start"]:
        click.echo(f"{request.data_dir} is ready; start it to recover", err=True)
        return
    server = request.restored_server(plan)
    server.start()
    address = PrimaryAddress(options["server"])
    recovered = server.wait_recovered(address.connect)
    _check_reached(plan, recovered.lsn)
    click.echo(f"restored up to {recovered}")
    _print_prepared(address)


def _print_prepared(address: PrimaryAddress) -> None:
    """Lists the transactions that were prepared at the moment of the target. While the recovery is
    paused, none is listed."""
    with (
        closing(address.connect()) as connection,
        converting_errors("could not read the prepared transactions"),
    ):
        prepared = read_prepared(connection)
    if not prepared:
        return
    click.echo(f"{len(prepared)} transactions were prepared and not yet ended:")
    for each in prepared:
        click.echo(f"    {each}")
    click.echo(
        "they hold their locks. End each in its database: COMMIT PREPARED or ROLLBACK PREPARED. "
        "The primary may have done either since: run sk qsync outcome",
        err=True,
    )


# ---- the new primary


def _restore_and_promote(request: RestoreRequest, options: dict[str, Any]) -> None:
    files = tls_files(options["tls_cert"], options["tls_key"])
    config = ProposerConfig(
        primary=PrimaryAddress(options["server"], options["slot"], options["application_name"]),
        safekeepers=request.addresses,
        timeline=request.timeline,
        configure=True,
        qsync=qsync_config(cast(QsyncValues, options), files, insecure=options["insecure"]),
    )
    replica_conninfo = options["replica_conninfo"]
    if replica_conninfo is None:
        replica_conninfo = request.safekeeper_conninfo
    # Checked first, so that hours of unpacking do not end with "no quorum".
    require_timeline(request.addresses, request.catalog.archive.facts.system_id, request.timeline)
    plan = request.plan()  # also finds the present members
    if options["dry_run"]:
        return
    listener = proposer_listener(
        options["http"],
        files,
        options["http_token_file"],
        options["insecure"],
        options["admin_token_file"],
    )
    request.write(plan, SignalFile.STANDBY, request.standby_settings(replica_conninfo))
    server = request.restored_server(plan)
    server.start()
    failover = Failover(
        config,
        partial(elect_within, options["timeout"]),
        conninfo=replica_conninfo,
        timeout_seconds=options["timeout"],
    )
    _take_over(config, listener, failover, server, options["no_attach"])


def _take_over(
    config: ProposerConfig,
    listener: HttpListener,
    failover: Failover,
    server: RestoredServer,
    no_attach: bool,
) -> None:
    """Promotes as sk promote does, which can be run to continue if this is interrupted."""
    stopping = StopSignal()  # installed later: before the proposer runs, a signal ends the process
    with proposer_with_page(config, listener, stopping) as proposer:
        failover.prepare()
        failover.run()
        recovered = server.wait_recovered(config.primary.connect)
        click.echo(f"restored up to {recovered}: every acknowledged commit")
        if no_attach:
            click.echo("promoted; commits wait until sk attach runs", err=True)
            return
        stopping.install()
        proposer.prepare()
        proposer.run()


def _check_reached(plan: RestorePlan, lsn: int) -> None:
    """Raises CommandError if a recovery to the end of the log ended earlier."""
    if isinstance(plan.target, Latest) and lsn < plan.end.lsn:
        raise CommandError(
            f"the recovery ended at {format_lsn(lsn)}, but the log ends at "
            f"{format_lsn(plan.end.lsn)}",
            "Do not use this server: commits are missing. The reason is in its log.",
        )
