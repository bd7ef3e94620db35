"""The costs of a thousand unused timelines: the start, and then memory, files, threads, CPU.

Each has a few segments of real WAL, of 1 MB, so that a disk has room for all. They are copies of
one timeline. Each start follows a regular end of the process, with the files in the page cache, as
after an upgrade.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.usage import read_usage
from quorum_wal.pg_fixtures.cloned_timelines import clone_timeline, numbered_names
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program
from quorum_wal.safekeeper.data_directory import parse_folder_name

SEGMENT_BYTES = 1 << 20
IDLE_SECONDS = 20
SETTLE_TIMEOUT = 1800.0
OPTIONS = ("--idle-timeout", "5", "--connections-max", "400")


@dataclass(frozen=True, slots=True)
class IdleSample:
    """`start_cpu_seconds`: the CPU time of the start, which does not depend on other work of the
    machine. `settled_seconds`: from the start until all logs have been checked and are asleep
    again."""

    setup: str
    round: int
    timelines: int
    start_seconds: float
    start_cpu_seconds: float
    settled_seconds: float
    rss_mib: float
    files: int
    threads: int
    idle_cpu_percent: float
    list_seconds: float
    metrics_seconds: float
    metrics_kib: float


def crowded_safekeepers(
    binaries: PostgresBinaries, root: Path, count: int
) -> list[SafekeeperProcess]:
    """Three stopped safekeepers of one cluster, each with that many timelines."""
    with QuorumCluster(
        root, binaries=binaries, wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=OPTIONS
    ) as cluster:
        cluster.postgres.execute("CREATE TABLE filling AS SELECT generate_series(1, 5000)")
        cluster.proposer.kill()
        for safekeeper in cluster.safekeepers:
            safekeeper.terminate()
        found = cluster.safekeepers
    for safekeeper in found:
        (folder,) = (safekeeper.data_dir / "timelines").iterdir()
        name = parse_folder_name(folder.name)
        assert name is not None
        clone_timeline(safekeeper.data_dir, name, numbered_names(count - 1))
    os.sync()
    return found


def measure_idle(safekeeper: SafekeeperProcess, rounds: int) -> Iterator[IdleSample]:
    """Starts and stops the safekeeper for each sample."""
    for number in range(rounds):
        begun = time.monotonic()
        safekeeper.start()
        safekeeper.wait_ready()
        start_seconds = time.monotonic() - begun
        start_cpu_seconds = read_usage([safekeeper.pid]).cpu_seconds
        wait_settled(safekeeper)
        settled_seconds = time.monotonic() - begun
        before = read_usage([safekeeper.pid])
        time.sleep(IDLE_SECONDS)  # measures what the process does by itself
        used = read_usage([safekeeper.pid]) - before
        begun = time.monotonic()
        run_program([*SK, "timeline", "list", "--safekeepers", safekeeper.address])
        list_seconds = time.monotonic() - begun
        begun = time.monotonic()
        _, page = http_get(safekeeper.http_address, "/metrics")
        yield IdleSample(
            setup="ours",
            round=number,
            timelines=len(safekeeper.status()["timelines"]),
            start_seconds=start_seconds,
            start_cpu_seconds=start_cpu_seconds,
            settled_seconds=settled_seconds,
            rss_mib=safekeeper.rss_bytes() / (1 << 20),
            files=open_files(safekeeper.pid),
            threads=threads(safekeeper.pid),
            idle_cpu_percent=100 * used.cpu_seconds / IDLE_SECONDS,
            list_seconds=list_seconds,
            metrics_seconds=time.monotonic() - begun,
            metrics_kib=len(page) / 1024,
        )
        safekeeper.terminate()


def wait_settled(safekeeper: SafekeeperProcess) -> None:
    """Waits until all timelines have been checked since the start and are asleep. Asks once a
    second, because the status of a thousand timelines costs CPU time."""
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while not _is_settled(safekeeper):
        if time.monotonic() > deadline:
            raise FixtureError(f"{safekeeper.name} has timelines awake after {SETTLE_TIMEOUT:g} s")
        time.sleep(1)


def _is_settled(safekeeper: SafekeeperProcess) -> bool:
    try:
        statuses = safekeeper.status()["timelines"]
    except TimeoutError:
        return False  # the machine has other work
    return all(status["asleep"] and status["end_checked"] for status in statuses)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
