"""`serve`: the same WAL to the same `pg_receivewal`, from a safekeeper and from the primary.

The receiver does not sync, so its disk does not limit the rate. Both servers read from the page
cache, as they do for a replica that follows closely.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bulk_load
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import OTHER, OURS, SafekeeperQuorum, attached, checkouts
from quorum_wal.pg_fixtures.cluster import flush_lsn
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name, segno_of

#: for each checkout: its safekeeper, and the primary's walsender twice
NAMES = {
    OURS: ("safekeeper", "walsender", "walsender again"),
    OTHER: ("other: safekeeper", "other: walsender", "other: walsender again"),
}
COLUMNS = ("server", "seconds", "MB/s", "rate / walsender")
RATE_RATIO_MIN = 1.0
SETTLE_TIMEOUT = 120.0  # seconds
RECEIVE_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class ServeSample:
    """One run of `pg_receivewal`, from its start to its end."""

    setup: str
    round: int
    wal_bytes: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.seconds / (1 << 20)


def measure(
    primary: Primary, directory: Path, against: Path | None, rounds: int, megabytes: int
) -> Iterator[ServeSample]:
    """Yields each sample when it is taken. Each checkout has its own WAL."""
    bulk_load.create_tables(primary)
    for name, checkout in checkouts(against).items():
        quorum = SafekeeperQuorum(name, checkout)
        with attached(primary, quorum, directory / "copies"):
            yield from _measure(primary, quorum, directory, rounds, megabytes)


def _measure(
    primary: Primary, quorum: SafekeeperQuorum, directory: Path, rounds: int, megabytes: int
) -> Iterator[ServeSample]:
    begin_lsn = primary.insert_lsn()
    load = bulk_load.load(primary, megabytes)
    bulk_load.load(primary, 2 * WAL_SEG_SIZE >> 20)  # the receiver ends only if more WAL follows
    end_lsn = primary.insert_lsn()
    wait_until(
        lambda: min(map(flush_lsn, quorum.safekeepers)) >= end_lsn,
        SETTLE_TIMEOUT,
        "all safekeepers to have all WAL",
    )
    safekeeper, walsender, control = NAMES[quorum.name]
    servers = {
        safekeeper: replica_conninfo([quorum.safekeepers[0].address]),
        walsender: primary.postgres.dsn(),
        control: primary.postgres.dsn(),
    }
    for number, name in interleaved(list(servers), rounds):
        target = directory / "received"
        yield _receive(primary, name, number, servers, target, begin_lsn, load.end_lsn)
        shutil.rmtree(target)


def _receive(
    primary: Primary,
    name: str,
    number: int,
    servers: Mapping[str, str],
    target: Path,
    begin_lsn: Lsn,
    end_lsn: Lsn,
) -> ServeSample:
    """Receives the whole segments of [begin_lsn, end_lsn)."""
    first, last = (segno_of(lsn, WAL_SEG_SIZE) for lsn in (begin_lsn, end_lsn))
    target.mkdir()
    # It begins after the last segment that it finds.
    with open(target / format_segment_name(1, first, WAL_SEG_SIZE), "wb") as found:
        found.truncate(WAL_SEG_SIZE)
    begun = time.perf_counter()
    run_program(
        [
            primary.postgres.binaries.program("pg_receivewal"),
            f"--dbname={servers[name]}",
            f"--directory={target}",
            f"--endpos={Lsn(last * WAL_SEG_SIZE)}",
            "--no-sync",
            "--no-loop",
        ],
        timeout=RECEIVE_TIMEOUT,
    )
    seconds = time.perf_counter() - begun
    return ServeSample(name, number, (last - first - 1) * WAL_SEG_SIZE, seconds)


def table(samples: Sequence[ServeSample]) -> list[list[str]]:
    """Medians of each server."""
    rows = [list(COLUMNS)]
    for names in NAMES.values():
        for name in names:
            if own := samples_of(samples, name):
                rows.append(
                    [
                        name,
                        f"{Spread.of([s.seconds for s in own]).median:.2f}",
                        f"{Spread.of([s.megabytes_per_second for s in own]).median:.0f}",
                        paired_ratios(samples, "megabytes_per_second", name, names[1]).format(2),
                    ]
                )
    return rows


def verdicts(samples: Sequence[ServeSample]) -> list[Verdict]:
    safekeeper, walsender, control = NAMES[OURS]
    return [
        Verdict(
            "rate >= the primary's walsender",
            paired_ratios(samples, "megabytes_per_second", safekeeper, walsender),
            RATE_RATIO_MIN,
            True,
            paired_ratios(samples, "megabytes_per_second", control, walsender),
        )
    ]
