"""`sk promote`: failover. A standby becomes the primary, and this process becomes its proposer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Unpack

import click

from quorum_wal.cli.attach import (
    admin_token_option,
    proposer_http_option,
    proposer_listener,
    proposer_with_page,
)
from quorum_wal.cli.chain_options import chain_options, chain_rule
from quorum_wal.cli.elect import elect_within
from quorum_wal.cli.listening import tls_files, tls_options
from quorum_wal.cli.parameters import (
    Dsn,
    application_name_option,
    safekeepers_option,
    slot_option,
    timeline_option,
    timeout_option,
    with_conninfo,
)
from quorum_wal.cli.qsync_options import QsyncValues, qsync_config, qsync_options
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.attachment import Attachment
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.failover.failover import Failover
from quorum_wal.walproposer.failover.log_view import LogView
from quorum_wal.walproposer.failover.promotion import FailoverState, Step, plan
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

#: The effect on a proposer that streams.
FENCES = "the election fences it, and its primary can acknowledge no further commit"


@click.command()
@click.option(
    "--standby", type=Dsn(), required=True, help="DSN of the standby to promote (a superuser)."
)
@safekeepers_option
@click.option(
    "--replica-conninfo",
    type=Dsn(),
    help="libpq settings with which the standby connects to safekeepers (user, sslmode, passfile, "
    "...), if its primary_conninfo must be changed.  [default: --safekeeper-conninfo]",
)
@timeline_option
@slot_option
@application_name_option
@click.option("--dry-run", is_flag=True, help="Print the steps; change nothing.")
@click.option(
    "--no-promote",
    is_flag=True,
    help="Exit when the standby has the whole log, without promoting it.",
)
@click.option(
    "--no-attach",
    is_flag=True,
    help="Exit when it is promoted; its commits wait until sk attach runs.",
)
@click.option(
    "--no-configure",
    is_flag=True,
    help="Do not change synchronous_standby_names of the standby. If it is empty, commits of the "
    "new primary do not wait for the quorum; transactions of qsync do.",
)
@click.option(
    "--keep-ahead",
    is_flag=True,
    help="Promote a standby that has WAL beyond the end of the quorum's log, and keep that WAL. "
    "It streamed from the old primary directly. No commit in that WAL was acknowledged.",
)
@timeout_option("How long to wait for a quorum, or for progress of the standby.")
@chain_options
@qsync_options
@proposer_http_option
@tls_options
@admin_token_option
def promote(
    standby: str,
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    replica_conninfo: str | None,
    timeline: TimelineId | None,
    slot: str,
    application_name: str,
    dry_run: bool,
    no_promote: bool,
    no_attach: bool,
    no_configure: bool,
    keep_ahead: bool,
    timeout: float,
    via: tuple[tuple[int, int], ...],
    via_sites: bool,
    site: str,
    http: tuple[str, int],
    tls_cert: Path | None,
    tls_key: Path | None,
    http_token_file: Path | None,
    insecure: bool,
    admin_token_file: Path | None,
    **qsync: Unpack[QsyncValues],
) -> None:
    """Fail over: promote a standby that has every acknowledged commit, and run its proposer.

    Wins an election, which FENCES the proposer of the old primary. Waits until the standby has
    replayed the log to its end. Promotes the standby, configured so that its commits wait for the
    quorum (except with --no-configure). Then runs in the foreground as sk attach does. After a
    crash, run it again: it skips the steps that are done.
    """
    files = tls_files(tls_cert, tls_key)
    config = ProposerConfig(
        primary=PrimaryAddress(standby, slot, application_name),
        safekeepers=with_conninfo(safekeepers, safekeeper_conninfo),
        timeline=timeline,
        configure=not no_configure,
        chains=chain_rule(via, site, via_sites=via_sites),
        qsync=qsync_config(qsync, files, insecure=insecure),
    )
    failover = Failover(
        config,
        partial(elect_within, timeout),
        conninfo=safekeeper_conninfo if replica_conninfo is None else replica_conninfo,
        timeout_seconds=timeout,
        configures=not no_configure,
        keeps_ahead=keep_ahead,
    )
    attaches = not (no_promote or no_attach)
    if dry_run:
        _print_plan(*failover.prepare(attaches=attaches))
        return
    listener = proposer_listener(http, files, http_token_file, insecure, admin_token_file)
    stopping = StopSignal()  # installed later: before the proposer runs, a signal ends the process
    with proposer_with_page(config, listener, stopping) as proposer:
        found, view, state = failover.prepare(attaches=attaches)
        click.echo(f"timeline {found.timeline}")
        if view.proposer:
            click.echo(f"warning: {view.proposer}; {FENCES}", err=True)
        failover.run(Step.PROMOTE if no_promote else Step.ATTACH)
        if no_promote and state.standby.in_recovery:
            click.echo("the standby has the whole log: promote it, then run sk attach", err=True)
            return
        if not attaches:
            click.echo("promoted; commits wait until sk attach runs", err=True)
            return
        stopping.install()
        Attachment(proposer, stopping).run()


def _print_plan(found: FoundTimeline, view: LogView, state: FailoverState) -> None:
    standby, members = state.standby, len(found.membership.members)
    click.echo(f"timeline {found.timeline}")
    click.echo(
        f"the quorum's log ends at {format_lsn(view.flush_lsn)} or later "
        f"({view.answering} of {members} safekeepers answer)"
    )
    role = "a standby" if standby.in_recovery else "a primary"
    sources = ", ".join(standby.sources) or "no server"
    click.echo(
        f"the server is {role}, has received {format_lsn(standby.received_lsn)} and replayed "
        f"{format_lsn(standby.replayed_lsn)}, follows {sources}"
    )
    click.echo(f"{view.proposer}; {FENCES}" if view.proposer else "no proposer streams now")
    for number, step in enumerate(plan(state), 1):
        click.echo(f"{number}. {step.value}")
