"""`sk elect`: an election without a primary, the first step of a failover."""

from __future__ import annotations

from threading import Thread

import click

from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.cli.parameters import (
    safekeepers_option,
    timeline_option,
    timeout_option,
    with_conninfo,
)
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.service import elect as run_election
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline, require_timeline


@click.command()
@safekeepers_option
@timeline_option
@timeout_option("How long to wait for a quorum.")
def elect(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    timeline: TimelineId | None,
    timeout: float,
) -> None:
    """Win an election without a primary, and print the end of the log.

    All acknowledged commits are below the printed LSN, on a quorum, and the safekeepers serve them.
    A standby that has replayed up to that LSN may be promoted. FENCES the proposer that runs now:
    commits of its primary wait from then on.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    _, found = require_timeline(addresses, None, timeline)
    config = ProposerConfig(PrimaryAddress(""), addresses, found.timeline)
    click.echo(format_lsn(elect_within(timeout, config, found)))


def elect_within(timeout: float, config: ProposerConfig, found: FoundTimeline) -> int:
    """Runs the election in a daemon thread, because an election waits for a quorum forever.

    Raises CommandError after `timeout` seconds, and the errors of the election.
    """
    results: list[int | Exception] = []

    def run() -> None:
        try:
            results.append(run_election(config, found))
        except Exception as error:
            results.append(error)

    thread = Thread(target=run, name="election", daemon=True)
    thread.start()
    thread.join(timeout)
    if not results:
        raise CommandError(
            f"no quorum answered within {timeout:g} s",
            "Run sk status to see which safekeepers do not answer.",
            ExitCode.UNREACHABLE,
        )
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]
