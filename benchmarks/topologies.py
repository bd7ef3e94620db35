"""`topologies`: members at several sites: what a commit waits for, and which losses are survived.

Three layouts (layout.py), in network namespaces with a delay for each pair of sites. First pgbench
beside the primary, without and with a fault. Then each loss is simulated under the ledger
(losses.py), with a separate cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pgbench
from benchmarks.layout import LAYOUTS, Layout
from benchmarks.losses import LossSample, Scenario, drill, lose, lose_packets, separate_primary
from benchmarks.rounds import Spread, Verdict, interleaved
from benchmarks.site_cluster import SiteCluster
from benchmarks.sites import open_sites
from quorum_wal.pg_server.binaries import PostgresBinaries

SCALE = 2
SETTLE_SECONDS = 1
LOSS_PERCENT = 1.0
MORE_MS_MAX = 3.0  # above the round trip, for the median commit of one client

NO_FAULT = "no fault"


@dataclass(frozen=True, slots=True)
class Condition:
    """Members that do not answer, because they are stopped or their site is cut off; packet loss; a
    daisy chain at each other site."""

    name: str
    down: tuple[int, ...] = ()
    cut_off: tuple[str, ...] = ()
    loss_percent: float = 0
    chained: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LatencySample:
    """`round_trip_ms`: between the primary's site and the last member that a commit waits for.
    `sent_per_wal_byte`: from there to other sites, including headers of packets and messages."""

    layout: str
    condition: str
    round_trip_ms: float
    clients: int
    round: int
    tps: float
    p50_ms: float
    p99_ms: float
    sent_per_wal_byte: float


def conditions(layout: Layout) -> list[Condition]:
    beside, nearest = layout.members_at(layout.placement.primary)[0], layout.nearest_site
    chains = [Condition("a daisy chain at each site", chained=layout.chained)]
    return [
        Condition(NO_FAULT),
        *(chains if layout.chained else []),
        Condition(f"{LOSS_PERCENT:g} % of packets lost", loss_percent=LOSS_PERCENT),
        Condition("a member beside the primary stopped", down=(beside,)),
        Condition(f"{nearest} cut off", down=layout.members_at(nearest), cut_off=(nearest,)),
    ]


def scenarios(layout: Layout) -> list[Scenario]:
    """The loss of each site, of all other sites if there are several, a partition, lost packets."""
    others = layout.other_sites
    several = [lose(*others)] if len(others) > 1 else []
    return [*map(lose, layout.sites), *several, separate_primary, lose_packets]


# ---- measurements


def measure_latencies(
    binaries: PostgresBinaries, directory: Path, clients: Sequence[int], rounds: int, seconds: int
) -> Iterator[LatencySample]:
    """Yields each sample when it is taken."""
    for layout in LAYOUTS:
        folder = directory / f"latencies-{LAYOUTS.index(layout)}"
        folder.mkdir()
        with _filled(layout, folder, binaries) as cluster:
            for number, condition in interleaved(conditions(layout), rounds):
                with _applied(cluster, condition):
                    for count in clients:
                        yield _sample(cluster, layout, condition, count, number, seconds)


@contextmanager
def _filled(layout: Layout, directory: Path, binaries: PostgresBinaries) -> Iterator[SiteCluster]:
    """A cluster with the tables of pgbench, which were created before its log."""
    with ExitStack() as stack:
        sites = stack.enter_context(open_sites(layout.sites, layout.delays, directory))
        cluster = SiteCluster(sites, layout.placement, directory, binaries)
        stack.callback(cluster.primary.crash)
        cluster.primary.start()
        with sites.at(cluster.primary.site):
            pgbench.initialize(cluster.primary, SCALE)
        yield stack.enter_context(cluster)
        sites.check()


@contextmanager
def _applied(cluster: SiteCluster, condition: Condition) -> Iterator[None]:
    sites = cluster.sites
    if condition.chained:
        with cluster.chained(*condition.chained):
            yield
        return
    sites.repair(condition.loss_percent)
    if condition.cut_off:
        sites.cut_off(*condition.cut_off)
    else:
        for id in condition.down:
            cluster.members[id - 1].kill()
    yield
    sites.repair()
    cluster.start_members()
    cluster.wait_all_follow(cluster.proposer)


def _sample(
    cluster: SiteCluster,
    layout: Layout,
    condition: Condition,
    clients: int,
    number: int,
    seconds: int,
) -> LatencySample:
    sites, primary = cluster.sites, cluster.primary
    with sites.at(primary.site):
        pgbench.run(primary, clients, SETTLE_SECONDS)
        sent_bytes, begin_lsn = sites.sent_bytes(primary.site), primary.flush_lsn()
        result = pgbench.run(primary, clients, seconds)
        sent_bytes = sites.sent_bytes(primary.site) - sent_bytes
        wal_bytes = primary.flush_lsn() - begin_lsn
    return LatencySample(
        layout.name,
        condition.name,
        layout.commit_round_trip_ms(condition.down),
        clients,
        number,
        result.tps,
        result.p50_ms,
        result.p99_ms,
        sent_bytes / wal_bytes,
    )


def run_scenarios(binaries: PostgresBinaries, directory: Path) -> Iterator[LossSample]:
    """Yields each sample when it is taken."""
    for layout in LAYOUTS:
        for number, run in enumerate(scenarios(layout)):
            folder = directory / f"loss-{LAYOUTS.index(layout)}-{number}"
            with drill(layout, folder, binaries) as prepared:
                yield run(prepared)


# ---- tables and verdicts


def description() -> str:
    """The delays of the networks."""
    return "One way: " + "; ".join(
        f"{layout.name} "
        + ", ".join(f"{one} to {other} {ms:g} ms" for (one, other), ms in layout.delays.items())
        for layout in LAYOUTS
    )


def _place(sample: LatencySample) -> tuple[int, int, int]:
    """The order in the table; the conditions were measured in turns."""
    layout = next(layout for layout in LAYOUTS if layout.name == sample.layout)
    names = [condition.name for condition in conditions(layout)]
    return LAYOUTS.index(layout), names.index(sample.condition), sample.clients


def latency_table(samples: Sequence[LatencySample]) -> list[list[str]]:
    rows = [["layout", "condition", "round trip ms", "clients", "p50 ms", "p99 ms", "TPS",
             "sent / WAL"]]  # fmt: skip
    keys = dict.fromkeys(
        (s.layout, s.condition, s.round_trip_ms, s.clients) for s in sorted(samples, key=_place)
    )
    for layout, condition, round_trip_ms, clients in keys:
        own = [
            s for s in samples if (s.layout, s.condition, s.clients) == (layout, condition, clients)
        ]
        rows.append(
            [
                layout,
                condition,
                f"{round_trip_ms:g}",
                str(clients),
                Spread.of([s.p50_ms for s in own]).format(1),
                Spread.of([s.p99_ms for s in own]).format(1),
                Spread.of([s.tps for s in own]).format(0),
                Spread.of([s.sent_per_wal_byte for s in own]).format(2),
            ]
        )
    return rows


def loss_table(samples: Sequence[LossSample]) -> list[list[str]]:
    header = [
        "layout",
        "event",
        "commits",
        "seconds without",
        "acknowledged",
        "of these lost",
    ]
    return [
        header,
        *(
            [
                sample.layout,
                sample.loss,
                sample.ending.value,
                f"{sample.seconds:.2f}",
                str(sample.report.acknowledged),
                str(len(sample.report.lost)),
            ]
            for sample in samples
        ),
    ]


def verdicts(latencies: Sequence[LatencySample], losses: Sequence[LossSample]) -> list[Verdict]:
    more = [
        s.p50_ms - s.round_trip_ms for s in latencies if s.clients == 1 and s.condition == NO_FAULT
    ]
    claim = f"the median commit of one client takes the round trip plus < {MORE_MS_MAX:g} ms"
    wrong = [len(s.report.lost + s.report.damaged + s.report.foreign) for s in losses]
    return [
        *([Verdict(claim, Spread.of(more), MORE_MS_MAX, False, unit=" ms")] if more else []),
        Verdict("rows lost, damaged or foreign: none", Spread.of(wrong), 0, False),
    ]
