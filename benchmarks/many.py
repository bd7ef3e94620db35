"""`many`: a thousand unused timelines and ten in use, on one set of three safekeepers.

First the costs of the unused ones (`idle_timelines.py`). Then ten primaries at once under pgbench,
beside the unused ones, against ten native setups: three pg_receivewal for each primary, of which
two must have flushed. Then the same while the first primary writes as much as it can: the rates of
the nine others show how fairly disk and processors are shared. The idle time of the processors
shows which was scarce: if there is none, it was not the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Event

import psycopg

from benchmarks import pgbench
from benchmarks.idle_timelines import (
    IdleSample,
    crowded_safekeepers,
    measure_idle,
    open_files,
    threads,
    wait_settled,
)
from benchmarks.pgbench import PgbenchResult
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import CONTROL, OURS, PEER, ReceiveWalQuorum, Setup, attached
from benchmarks.usage import idle_seconds, read_usage
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

CLIENTS = 2
SCALE = 2
FOLLOW_TIMEOUT = 60.0
FLOODED_OURS, FLOODED_PEER = "ours, one floods", "peer, one floods"
COLUMNS = (
    "setup",
    "TPS of all",
    "TPS / peer",
    "p99 ms",
    "p99 / peer",
    "least share",
    "flood MB/s",
    "copies' CPU %",
    "idle CPU %",
    "RSS MiB",
    "files",
    "threads",
)
RSS_MIB_MAX, FILES_MAX, START_SECONDS_MAX, IDLE_CPU_MAX = 1024, 2000, 5.0, 5.0
TPS_RATIO_MIN = 0.8

_names = count(1)


@dataclass(frozen=True, slots=True)
class ManySample:
    """All primaries that run pgbench together. `least_share`: the TPS of the slowest / the mean.
    `flood_mb_per_s`: the rate of the flooding primary. `copies_cpu_percent`: the CPU time, of one
    core, of the processes that transfer and store the copies. `idle_cpu_percent`: the idle time of
    all cores. The last three are of the first safekeeper."""

    setup: str
    round: int
    tps: float
    p50_ms: float
    p99_ms: float
    least_share: float
    flood_mb_per_s: float = 0.0
    copies_cpu_percent: float = 0.0
    idle_cpu_percent: float = 0.0
    rss_mib: float = 0.0
    files: int = 0
    threads: int = 0


class SharedQuorum(Setup):
    """A proposer for one primary, with safekeepers that others also use."""

    standby_names = "walproposer"

    def __init__(self, safekeepers: Sequence[SafekeeperProcess]) -> None:
        super().__init__(OURS)
        self._safekeepers = safekeepers
        self._proposer: ProposerProcess | None = None

    def start(self, primary: Primary, directory: Path) -> None:
        """Creates a new timeline each time."""
        name = TimelineId(b"working".ljust(16, b"\0"), next(_names).to_bytes(16, "big"))
        addresses = [safekeeper.address for safekeeper in self._safekeepers]
        create = ["timeline", "create", "--primary", primary.postgres.dsn(), "--timeline", name]
        run_program([*SK, *map(str, create), "--safekeepers", ",".join(addresses)])
        self._proposer = ProposerProcess(
            primary.remote_dsn(),
            addresses,
            log_path=directory / "proposer.log",
            arguments=["--timeline", str(name)],
        )
        self._proposer.start()

    def wait_ready(self, primary: Primary) -> None:
        proposer = self._proposer
        assert proposer is not None
        wait_until(
            lambda: all(
                peer["connected"] and not peer["lag_bytes"]
                for peer in proposer.status()["safekeepers"]
            ),
            FOLLOW_TIMEOUT,
            "all safekeepers to follow",
        )

    @property
    def processes(self) -> list[ServiceProcess]:
        return [] if self._proposer is None else [self._proposer]


def measure(
    binaries: PostgresBinaries,
    directory: Path,
    rounds: int,
    seconds: int,
    timelines: int,
    primaries: int,
) -> Iterator[IdleSample | ManySample]:
    safekeepers = crowded_safekeepers(binaries, directory / "crowd", timelines)
    yield from measure_idle(safekeepers[0], rounds)
    with ExitStack() as stack:
        for safekeeper in safekeepers:
            stack.enter_context(safekeeper)
        for safekeeper in safekeepers:
            wait_settled(safekeeper)
        servers = [
            stack.enter_context(Primary(binaries, directory / f"server-{number}"))
            for number in range(primaries)
        ]
        for server in servers:
            pgbench.initialize(server.postgres, SCALE)
        yield from _measure_load(servers, safekeepers, directory, rounds, seconds)


def _measure_load(
    servers: Sequence[Primary],
    safekeepers: Sequence[SafekeeperProcess],
    directory: Path,
    rounds: int,
    seconds: int,
) -> Iterator[ManySample]:
    names = [OURS, PEER, CONTROL]
    if len(servers) > 1:
        names += [FLOODED_OURS, FLOODED_PEER]
    for number, name in interleaved(names, rounds):
        is_ours = name in (OURS, FLOODED_OURS)
        with ExitStack() as stack:
            copies: list[ServiceProcess] = [*safekeepers] if is_ours else []
            for index, server in enumerate(servers):
                setup: Setup = SharedQuorum(safekeepers) if is_ours else ReceiveWalQuorum(name)
                folder = directory / f"attached-{index}"
                stack.enter_context(attached(server, setup, folder))
                copies += setup.processes
            measured = list(servers)
            flooded = None
            if name in (FLOODED_OURS, FLOODED_PEER):
                flooded = measured.pop(0)
                stack.enter_context(_flood(flooded))
            before = _Meter.read(copies, flooded)
            results = _run(measured, seconds)
            after = _Meter.read(copies, flooded)
            sample = _sample(name, number, results, safekeepers[0] if is_ours else None)
            yield replace(sample, **after.rates_since(before))


@dataclass(frozen=True, slots=True)
class _Meter:
    """The usage up to a moment, in seconds and bytes."""

    at: float
    copies_seconds: float
    idle_seconds: float
    flooded_lsn: int

    @classmethod
    def read(cls, copies: Sequence[ServiceProcess], flooded: Primary | None) -> _Meter:
        return cls(
            time.monotonic(),
            read_usage([process.pid for process in copies]).cpu_seconds,
            idle_seconds(),
            0 if flooded is None else flooded.insert_lsn(),
        )

    def rates_since(self, earlier: _Meter) -> dict[str, float]:
        """The rates, by field of ManySample."""
        seconds = self.at - earlier.at
        idle = self.idle_seconds - earlier.idle_seconds
        return {
            "flood_mb_per_s": (self.flooded_lsn - earlier.flooded_lsn) / 1e6 / seconds,
            "copies_cpu_percent": 100 * (self.copies_seconds - earlier.copies_seconds) / seconds,
            "idle_cpu_percent": 100 * idle / seconds / (os.cpu_count() or 1),
        }


def _run(servers: Sequence[Primary], seconds: int) -> list[PgbenchResult]:
    """Runs pgbench on all servers at once."""
    with ThreadPoolExecutor(len(servers)) as pool:
        return list(
            pool.map(lambda server: pgbench.run(server.postgres, CLIENTS, seconds), servers)
        )


@contextmanager
def _flood(server: Primary) -> Iterator[None]:
    """Inside the block the server writes as much as it can, in transactions of about 10 MB."""
    ended = Event()
    server.execute("CREATE TABLE IF NOT EXISTS flood (t text)")
    server.execute("TRUNCATE flood")

    def write() -> None:
        with server.postgres.connect() as connection:
            while not ended.is_set():
                connection.execute(
                    "INSERT INTO flood SELECT repeat('x', 1000) FROM generate_series(1, 10000)"
                )

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            ended.set()
            try:
                writing.result()
            except psycopg.OperationalError:
                pass  # its setup has failed, which `attached` reports


def _sample(
    name: str,
    number: int,
    results: Sequence[PgbenchResult],
    safekeeper: SafekeeperProcess | None,
) -> ManySample:
    tps = [result.tps for result in results]
    return ManySample(
        setup=name,
        round=number,
        tps=sum(tps),
        p50_ms=sum(result.p50_ms for result in results) / len(results),
        p99_ms=sum(result.p99_ms for result in results) / len(results),
        least_share=min(tps) * len(tps) / sum(tps),
        rss_mib=0.0 if safekeeper is None else safekeeper.rss_bytes() / (1 << 20),
        files=0 if safekeeper is None else open_files(safekeeper.pid),
        threads=0 if safekeeper is None else threads(safekeeper.pid),
    )


# ---- tables and verdicts


def table(samples: Sequence[IdleSample | ManySample]) -> list[list[str]]:
    measured = [sample for sample in samples if isinstance(sample, ManySample)]
    rows = [list(COLUMNS)]
    for setup in dict.fromkeys(sample.setup for sample in measured):
        own = samples_of(measured, setup)
        peer = FLOODED_PEER if setup == FLOODED_OURS else PEER
        is_compared = setup in (OURS, CONTROL, FLOODED_OURS)
        ratios = [
            paired_ratios(measured, figure, setup, peer).format(2) if is_compared else ""
            for figure in ("tps", "p99_ms")
        ]
        rows.append(
            [
                setup,
                Spread.of([s.tps for s in own]).format(0),
                ratios[0],
                Spread.of([s.p99_ms for s in own]).format(1),
                ratios[1],
                Spread.of([s.least_share for s in own]).format(2),
                Spread.of([s.flood_mb_per_s for s in own]).format(1),
                Spread.of([s.copies_cpu_percent for s in own]).format(0),
                Spread.of([s.idle_cpu_percent for s in own]).format(0),
                *(_greatest(own, figure) for figure in ("rss_mib", "files", "threads")),
            ]
        )
    return rows


def _greatest(samples: Sequence[ManySample], figure: str) -> str:
    value = max(getattr(sample, figure) for sample in samples)
    return f"{value:.0f}" if value else ""


def idle_table(samples: Sequence[IdleSample | ManySample]) -> list[list[str]]:
    idle = [sample for sample in samples if isinstance(sample, IdleSample)]
    figures = {
        "timelines": ("timelines", 0),
        "start s": ("start_seconds", 2),
        "start CPU s": ("start_cpu_seconds", 2),
        "all checked and asleep s": ("settled_seconds", 0),
        "RSS MiB": ("rss_mib", 0),
        "files": ("files", 0),
        "threads": ("threads", 0),
        "idle CPU %": ("idle_cpu_percent", 2),
        "sk timeline list s": ("list_seconds", 2),
        "/metrics s": ("metrics_seconds", 2),
        "/metrics KiB": ("metrics_kib", 0),
    }
    spreads = [
        Spread.of([getattr(sample, figure) for sample in idle]).format(decimals)
        for figure, decimals in figures.values()
    ]
    return [list(figures), spreads]


def verdicts(samples: Sequence[IdleSample | ManySample]) -> list[Verdict]:
    idle = [sample for sample in samples if isinstance(sample, IdleSample)]
    load = [sample for sample in samples if isinstance(sample, ManySample)]
    ours = [sample for sample in load if sample.setup in (OURS, FLOODED_OURS)]
    everywhere = [*idle, *ours]
    rss = Spread.of([sample.rss_mib for sample in everywhere])
    files = Spread.of([sample.files for sample in everywhere])
    starts = Spread.of([sample.start_seconds for sample in idle])
    cpu = Spread.of([sample.idle_cpu_percent for sample in idle])
    return [
        Verdict("memory", rss, RSS_MIB_MAX, at_least=False, unit=" MiB"),
        Verdict("open files", files, FILES_MAX, at_least=False),
        Verdict("start", starts, START_SECONDS_MAX, at_least=False, unit=" s"),
        Verdict("idle CPU, of one core", cpu, IDLE_CPU_MAX, at_least=False, unit=" %"),
        Verdict(
            "TPS of all primaries / native",
            paired_ratios(load, "tps", OURS, PEER),
            TPS_RATIO_MIN,
            at_least=True,
            control=paired_ratios(load, "tps", CONTROL, PEER),
        ),
    ]
