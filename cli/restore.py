"""`sk restore`: a server out of a backup, the archive and the safekeepers that are left."""

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
    help="Where the server shall be: a folder that is empty, or not there.",
)
@click.option(
    "--tablespace",
    multiple=True,
    metavar="OLD=NEW",
    help="Where a tablespace shall be, if not where it was (repeatable).",
)
@click.option("--target", type=click.Choice(["latest"]), help="Everything there is (the default).")
@click.option("--target-lsn", metavar="LSN", help="What was written below this position.")
@click.option("--target-time", metavar="TIME", help="What was committed until then.")
@click.option(
    "--target-xid",
    type=click.IntRange(1, 2**32 - 1),
    metavar="N",
    help="What was committed until this transaction, itself included.",
)
@click.option(
    "--target-action",
    type=click.Choice(["promote", "pause", "shutdown"]),
    default="promote",
    show_default=True,
    help="What the server does when it has reached such a target.",
)
@click.option("--backup", "backup_id", metavar="NAME", help="Begin with this one.")
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
    help="The programs of the Postgres that shall run it.  [default: the newest that fits]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be restored; write nothing.")
@click.option("--no-sync", is_flag=True, help="Leave the files to the kernel; for tests.")
@click.option("--start", is_flag=True, help="Start it, wait for the end of its recovery, check it.")
@click.option(
    "--promote",
    is_flag=True,
    help="Take the cluster over: fence the old primary, start this one, be its proposer.",
)
@click.option("--no-attach", is_flag=True, help="With --promote: end then; sk attach goes on.")
@click.option("--server", type=Dsn(), help="DSN of the restored server once it runs (a superuser).")
@click.option(
    "--server-options", default="", metavar="OPTIONS", help='For its command line: "-p 5433 ...".'
)
@slot_option
@application_name_option
@timeout_option("How long to wait for a quorum, and for a server that makes no progress.")
@qsync_options
@proposer_http_option
@tls_options
@admin_token_option
def restore(**options: Any) -> None:
    """Restore a server from the archive, up to its end or to a moment.

    Checks that the target exists, unpacks the newest backup before it, and writes the recovery
    settings; whoever starts the server then has it recover. What is not archived yet comes from
    --safekeepers. Without --promote the result is a copy, which no quorum protects. With it, it is
    the new primary, with every commit that was ever acknowledged, and this process its proposer.
    """
    request = RestoreRequest.of(options)
    try:
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
    """A moment between a PREPARE and its end is restored as it was; none is listed while it is
    paused there."""
    with (
        closing(address.connect()) as connection,
        converting_errors("could not read what is prepared"),
    ):
        prepared = read_prepared(connection)
    if not prepared:
        return
    click.echo(f"{len(prepared)} transactions were prepared then, and neither end had come:")
    for each in prepared:
        click.echo(f"    {each}")
    click.echo(
        "they hold their locks; end each in its database: COMMIT PREPARED or ROLLBACK PREPARED. "
        "The primary may have done either since: sk qsync outcome",
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
    # Hours of unpacking are not to end with "no quorum".
    require_timeline(request.addresses, request.catalog.archive.facts.system_id, request.timeline)
    plan = request.plan()  # which finds the present members, too
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
    """As sk promote does, which can be run again should this break off."""
    stopping = StopSignal()  # until there is a proposer, a signal just ends this process
    with proposer_with_page(config, listener, stopping) as proposer:
        failover.prepare()
        failover.run()
        recovered = server.wait_recovered(config.primary.connect)
        click.echo(f"restored up to {recovered}: all that was acknowledged")
        if no_attach:
            click.echo("promoted; clients wait until sk attach", err=True)
            return
        stopping.install()
        proposer.prepare()
        proposer.run()


def _check_reached(plan: RestorePlan, lsn: int) -> None:
    """Raises CommandError: a recovery to the latest must have come to the end that was known."""
    if isinstance(plan.target, Latest) and lsn < plan.end.lsn:
        raise CommandError(
            f"the recovery ended at {format_lsn(lsn)}, but the log ends at "
            f"{format_lsn(plan.end.lsn)}",
            "Do not use this server: commits are missing. Its log says why it ended there.",
        )
