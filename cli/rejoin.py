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
    type=click.Path(path_type=Path, exists=True, file_okay=False),
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
    help="postgresql.conf, when it is not in the data directory (Postgres 15 or newer).",
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
    """Make a standby of a deposed primary, by pg_rewind.

    What it wrote and no quorum has is undone; nobody was told that it is committed. Transactions of
    qsync that only it had prepared are listed: they are rolled back with it. Afterwards it follows
    the safekeepers, and starts as any standby does. Where pg_rewind cannot be used, says why a new
    base backup is needed. Run it as the owner of the data directory.
    """
    address = PrimaryAddress(new_primary)
    server, history = _ask_new_primary(address)
    given = with_conninfo(safekeepers, safekeeper_conninfo)
    _, found = require_timeline(given, server.system_id, timeline)
    addresses = found.addresses
    settings = safekeeper_conninfo if replica_conninfo is None else replica_conninfo
    conninfo = safekeepers_conninfo(addresses, found.timeline, settings)
    old = OldPrimary.at(old_primary)
    way_out = base_backup_hint(str(old_primary), conninfo)
    old.check_rewindable(server.system_id, way_out)
    undone = () if old.is_standby_of(history) else old.undone_prepares(history)
    if old.is_standby_of(history):
        click.echo("it is a standby of this timeline already")
    elif old.rewind(new_primary, config_file, history.tli, way_out):
        click.echo("pg_rewind has undone what it wrote alone")
    else:
        click.echo("nothing to undo")
    _print_undone(undone)
    old.cut_lost_tails(history, server.wal_seg_size)
    old.become_standby(conninfo, slot, found.timeline)
    click.echo(f"{old_primary} is a standby that follows {', '.join(map(str, addresses))}")
    # Asked again: pg_rewind may have taken hours, and retention went on.
    members, _ = require_timeline(addresses, server.system_id, found.timeline)
    logs = statuses_of(found.timeline, members)
    oldest_lsns = [Lsn.parse(log["local_start_lsn"]) for log in logs]
    needed_lsn = old.needed_lsn(history, server.wal_seg_size)
    problem = missing_wal_problem(needed_lsn, oldest_lsns, way_out)
    if problem is not None and not old.has_restore_command(config_file):
        raise Refusal(problem.text, hint=problem.hint)
    if problem is not None:
        click.echo(f"{problem.text}: its restore_command must bring the rest", err=True)
    click.echo("start it; its configuration is now that of the new primary", err=True)


def _print_undone(undone: tuple[Gid, ...]) -> None:
    if undone:
        click.echo(f"{len(undone)} transactions of qsync were prepared here alone, and are undone:")
    for gid in undone:
        click.echo(f"    {gid} rolled_back")


def _ask_new_primary(address: PrimaryAddress) -> tuple[ServerFacts, TimelineHistory]:
    """What it is, and its timeline's history; pg_rewind before 16 knows that by a checkpoint."""
    with closing(address.connect()) as connection:
        server = read_server_facts(connection)
        try:
            connection.execute("CHECKPOINT")
        except psycopg.Error as error:
            raise Refusal(f"the new primary refused a checkpoint: {error}") from error
    history, _ = StandbyServer(address).read_history()
    return server, history
