"""`sk rejoin`: a deposed primary becomes a standby that follows the safekeepers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import psycopg

from quorum_wal.cli.parameters import (
    Dsn,
    safekeepers_option,
    slot_option,
    timeline_option,
    with_conninfo,
)
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.failover.old_primary import OldPrimary
from quorum_wal.walproposer.failover.rewind import base_backup_hint, missing_wal_problem
from quorum_wal.walproposer.failover.standby import StandbyServer, safekeepers_conninfo
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.server_facts import read_server_facts
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.survey import statuses_of
from quorum_wal.walproposer.timelines.timeline_creation import require_timeline


@click.command()
@click.option(
    "--old-primary",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DATA_DIR",
    required=True,
    help="Data directory of the deposed primary, which must be stopped.",
)
@click.option(
    "--new-primary", type=Dsn(), required=True, help="DSN of the new primary (a superuser)."
)
@safekeepers_option
@click.option(
    "--replica-conninfo",
    type=Dsn(),
    help="libpq settings with which the standby connects to safekeepers (user, sslmode, passfile, "
    "...).  [default: --safekeeper-conninfo]",
)
@timeline_option
@slot_option
@click.option(
    "--config-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="postgresql.conf, if it is not in the data directory (Postgres 15 or newer).",
)
def rejoin(
    old_primary: Path,
    new_primary: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    replica_conninfo: str | None,
    timeline: TimelineId | None,
    slot: str,
    config_file: Path | None,
) -> None:
    """Turn a deposed primary into a standby, with pg_rewind.

    Undoes WAL that the old primary wrote and no quorum has; no commit in it was acknowledged. Lists
    the transactions of qsync that were prepared only there, which are rolled back. Afterwards the
    server follows the safekeepers, and can be started as any standby. If pg_rewind cannot be used,
    reports why a new base backup is needed. Run it as the owner of the data directory.
    """
    address = PrimaryAddress(new_primary)
    server, history = _ask_new_primary(address)
    given = with_conninfo(safekeepers, safekeeper_conninfo)
    _, found = require_timeline(given, server.system_id, timeline)
    addresses = found.addresses
    settings = safekeeper_conninfo if replica_conninfo is None else replica_conninfo
    conninfo = safekeepers_conninfo(addresses, found.timeline, settings)
    exists = old_primary.exists()
    way_out = base_backup_hint(str(old_primary), conninfo, exists=exists)
    if not exists:
        raise Refusal(f'data directory "{old_primary}" does not exist', hint=way_out)
    old = OldPrimary.at(old_primary)
    old.check_rewindable(server.system_id, way_out)
    undone = () if old.is_standby_of(history) else old.undone_prepares(history)
    if old.is_standby_of(history):
        click.echo("it is already a standby of this timeline")
    elif old.rewind(new_primary, config_file, history.tli, way_out):
        click.echo("pg_rewind has undone the WAL that no quorum has")
    else:
        click.echo("nothing to undo")
    _print_undone(undone)
    old.cut_lost_tails(history, server.wal_seg_size)
    old.become_standby(conninfo, slot, found.timeline)
    click.echo(f"{old_primary} is a standby that follows {', '.join(map(str, addresses))}")
    # Asked again: pg_rewind may have taken hours, and safekeepers may have removed WAL since.
    members, _ = require_timeline(addresses, server.system_id, found.timeline)
    logs = statuses_of(found.timeline, members)
    oldest_lsns = [Lsn.parse(log["local_start_lsn"]) for log in logs]
    needed_lsn = old.needed_lsn(history, server.wal_seg_size)
    problem = missing_wal_problem(needed_lsn, oldest_lsns, way_out)
    if problem is not None and not old.has_restore_command(config_file):
        raise Refusal(problem.text, hint=problem.hint)
    if problem is not None:
        click.echo(f"{problem.text}: its restore_command must fetch the rest", err=True)
    click.echo("start it; it now has the configuration of the new primary", err=True)


def _print_undone(undone: tuple[Gid, ...]) -> None:
    if undone:
        click.echo(f"{len(undone)} transactions of qsync were prepared only here, and are undone:")
    for gid in undone:
        click.echo(f"    {gid} rolled_back")


def _ask_new_primary(address: PrimaryAddress) -> tuple[ServerFacts, TimelineHistory]:
    """The facts and the timeline history of the server. Also runs a checkpoint, without which
    pg_rewind before version 16 does not see the new timeline."""
    with closing(address.connect()) as connection:
        server = read_server_facts(connection)
        try:
            connection.execute("CHECKPOINT")
        except psycopg.Error as error:
            raise Refusal(f"the new primary refused a checkpoint: {error}") from error
    history, _ = StandbyServer(address).read_history()
    return server, history
