"""Losses of sites, simulated under the ledger: the effect on commits and on rows.

Each scenario has its own cluster. It ends when everything is running again, all members follow, and
every acknowledged row has been looked up on the present primary. The expectations come from the
layout (`Layout.survives`), and `sk status` must agree; otherwise the scenario fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.layout import Layout
from benchmarks.site_cluster import TIMEOUT, SiteCluster, SitePostgres
from benchmarks.sites import open_sites
from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.ledger import Ledger, LedgerReport
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

CLIENTS = 8
STUBBORN_CLIENTS = 2
ROWS = 100  # before, during and after a loss
SILENCE_SECONDS = 2.0  # without a commit: then commits wait
LOSS_PERCENT = 5.0
NO_QUORUM = "An election needs a quorum"  # the message of sk promote


class Ending(Enum):
    """Why commits continue."""

    NOTHING = "commits continue"
    PROMOTION = "`sk promote`"
    RETURN = "commits wait until it is back"


@dataclass(frozen=True, slots=True)
class LossSample:
    """`seconds` without a commit; with RETURN, from the return of what was lost."""

    layout: str
    loss: str
    ending: Ending
    seconds: float
    report: LedgerReport


class Drill:
    """A cluster at its sites, its standby, and clients outside that commit."""

    def __init__(self, layout: Layout, cluster: SiteCluster, standby: SitePostgres) -> None:
        self.layout = layout
        self.cluster = cluster
        self.standby = standby
        self.ledger = Ledger(cluster.primary.dsn(), clients=CLIENTS, pause_seconds=0)

    def sample(self, loss: str, ending: Ending, seconds: float, server: SitePostgres) -> LossSample:
        """The sample, taken when everything is running again."""
        self.ledger.wait_for_progress(ROWS, TIMEOUT)
        self.ledger.pause()
        self.ledger.wait_idle(TIMEOUT)
        report = self.ledger.verify(server.dsn())
        return LossSample(self.layout.name, loss, ending, seconds, report)

    @contextmanager
    def promoted(self) -> Iterator[ProposerProcess]:
        """Inside the block the standby is the primary, and the clients use it."""
        with self.cluster.promotion(self.standby) as promotion:
            promotion.wait_streaming(TIMEOUT)
            self.ledger.redirect(self.standby.dsn())
            self.ledger.wait_for_progress(ROWS, TIMEOUT)
            yield promotion


@contextmanager
def drill(
    layout: Layout, directory: Path, binaries: PostgresBinaries, template: Path | None = None
) -> Iterator[Drill]:
    """Inside the block clients commit."""
    directory.mkdir()
    with ExitStack() as stack:
        sites = stack.enter_context(open_sites(layout.sites, layout.delays, directory))
        cluster = SiteCluster(sites, layout.placement, directory, binaries, template)
        stack.enter_context(cluster)
        prepared = Drill(layout, cluster, stack.enter_context(cluster.with_standby()))
        _check_status(layout, cluster)
        ledger = stack.enter_context(prepared.ledger)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        yield prepared
        sites.check()


def _check_status(layout: Layout, cluster: SiteCluster) -> None:
    """Waits until `sk status` reports the expected losses as survivable: a member may just have
    connected."""
    expected = {s for s in layout.sites if layout.survives(s)}
    what = f"sk status to say that {sorted(expected)} may be lost"
    wait_until(lambda: cluster.survived_sites() == expected, TIMEOUT, what)


Scenario = Callable[[Drill], LossSample]


# ---- scenarios


def lose(*sites: str) -> Scenario:
    """These sites are lost at once, with all processes there."""

    def run(drill: Drill) -> LossSample:
        name = f"{' and '.join(sites)} lost"
        drill.cluster.lose(*sites)
        if not drill.layout.survives(*sites):
            return _wait_for_return(drill, name)
        if drill.cluster.primary.site in sites:
            return _promote(drill, name)
        drill.ledger.wait_for_progress(ROWS, TIMEOUT)
        return _continue(drill, name)

    return run


def _continue(drill: Drill, name: str) -> LossSample:
    seconds = drill.ledger.longest_silence()
    drill.cluster.sites.repair()
    drill.cluster.start_members()
    drill.cluster.wait_all_follow(drill.cluster.proposer)
    return drill.sample(name, Ending.NOTHING, seconds, drill.cluster.primary)


def _promote(drill: Drill, name: str) -> LossSample:
    with drill.promoted() as promotion:
        seconds = drill.ledger.longest_silence()
        drill.cluster.sites.repair()
        drill.cluster.start_members()
        drill.cluster.wait_all_follow(promotion)
        return drill.sample(name, Ending.PROMOTION, seconds, drill.standby)


def _wait_for_return(drill: Drill, name: str) -> LossSample:
    cluster, ledger = drill.cluster, drill.ledger
    wait_until(lambda: ledger.last_ack_age > SILENCE_SECONDS, TIMEOUT, "commits to wait")
    if not cluster.primary.is_running:
        said = cluster.promote_refused(drill.standby)
        if NO_QUORUM not in said:
            raise FixtureError(f'expected "{NO_QUORUM}" from sk promote, got: {said}')
    begun = time.monotonic()
    cluster.sites.repair()
    if not cluster.primary.is_running:
        cluster.primary.start()
    cluster.start_members()
    if not cluster.proposer.alive:
        cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)
    # One more than the number of answers that the network may have delayed.
    ledger.wait_for_progress(CLIENTS + 1, TIMEOUT)
    seconds = time.monotonic() - begun
    cluster.wait_all_follow(cluster.proposer)
    return drill.sample(name, Ending.RETURN, seconds, cluster.primary)


def separate_primary(drill: Drill) -> LossSample:
    """The primary's site and the others are disconnected from each other. Clients reach all sites,
    and two of them stay with the old primary."""
    cluster = drill.cluster
    site = cluster.primary.site
    name = f"{site} separated from the others"
    stubborn = Ledger(
        cluster.primary.dsn(), clients=STUBBORN_CLIENTS, table="stubborn", pause_seconds=0
    )
    with stubborn:
        stubborn.wait_for_progress(1, TIMEOUT)
        cluster.sites.separate(site)
        if drill.layout.survives(*drill.layout.other_sites):
            drill.ledger.wait_for_progress(ROWS, TIMEOUT)
            return _continue(drill, name)
        with drill.promoted() as promotion:
            seconds = drill.ledger.longest_silence()
            cluster.sites.repair()
            code = cluster.proposer.wait(TIMEOUT)
            if code != ExitCode.FENCED:
                raise FixtureError(f"expected a fenced old proposer, got exit code {code}")
            cluster.wait_all_follow(promotion)
            sample = drill.sample(name, Ending.PROMOTION, seconds, drill.standby)
            _check_stubborn(stubborn, drill.standby)
            return sample


def _check_stubborn(ledger: Ledger, server: SitePostgres) -> None:
    """Checks that all commits of the old primary are on the new one. Raises FixtureError."""
    report = ledger.verify(server.dsn())
    if not report.ok:
        raise FixtureError(f"the new primary lacks commits that the old one acknowledged: {report}")


def lose_packets(drill: Drill) -> LossSample:
    """Loses one of twenty packets between sites."""
    drill.cluster.sites.repair(LOSS_PERCENT)
    drill.ledger.wait_for_progress(5 * ROWS, TIMEOUT)
    return _continue(drill, f"{LOSS_PERCENT:g} % of packets lost")
