"""`archive`: what archiving costs the commits, and whether it keeps up with the WAL.

The same quorum with and without a local archive. First small commits; then WAL as fast as the
primary writes it, until its last segment is in the archive:

    written     |=====|=====|=====| .. |=====|
    archived     lag   |=====|=====| .. |=====|      the rate is from the first to the last
                       ^ first                ^ last

The lag is the time from the end of the load to the end of archiving; a low rate makes it grow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import bulk_load, pgbench
from benchmarks.bulk_load import BulkLoad
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import SafekeeperQuorum, attached
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pgwal.lsn import Lsn

CLIENTS = 8
ARCHIVED, PLAIN, CONTROL = "archived", "not archived", "not archived, again"
OTHER = "archived, other"
COLUMNS = ("setup", "TPS", "TPS / not archived", "p99 ms", "load MB/s", "archived MB/s", "lag s")
TPS_RATIO_MIN = 0.9
ARCHIVED_MB_MIN = 100
ARCHIVE_TIMEOUT = 600.0
ARCHIVE_POLL_SECONDS = 0.25  # a request takes milliseconds from what is measured


@dataclass(frozen=True, slots=True)
class ArchiveSample:
    """`archived_mb_per_s`: from the first archived segment of the load to the last one."""

    setup: str
    round: int
    tps: float
    p99_ms: float
    load_mb_per_s: float
    archived_mb_per_s: float = 0.0
    lag_seconds: float = 0.0


def measure(
    primary: Primary,
    directory: Path,
    against: Path | None,
    rounds: int,
    seconds: int,
    megabytes: int,
) -> Iterator[ArchiveSample]:
    """Yields each sample when it is taken. With `against`, that checkout takes turns."""
    copies = directory / "copies"
    archive = [f"--archive={copies / 'archive'}"]
    setups = [
        SafekeeperQuorum(ARCHIVED, arguments=archive),
        SafekeeperQuorum(PLAIN),
        SafekeeperQuorum(CONTROL),
    ]
    if against is not None:
        setups.append(SafekeeperQuorum(OTHER, against, archive))
    pgbench.initialize(primary.postgres, scale=20)
    bulk_load.create_tables(primary)
    pgbench.run(primary.postgres, CLIENTS, seconds)
    for number, setup in interleaved(setups, rounds):
        bulk_load.remove_wal(primary)
        with attached(primary, setup, copies):
            yield _sample(primary, setup, number, seconds, megabytes)


def _sample(
    primary: Primary, setup: SafekeeperQuorum, number: int, seconds: int, megabytes: int
) -> ArchiveSample:
    pgbench.run(primary.postgres, CLIENTS, 1)
    result = pgbench.run(primary.postgres, CLIENTS, seconds)
    begin_lsn = primary.insert_lsn()
    with ThreadPoolExecutor(1) as pool:
        begun = time.perf_counter()
        loading = pool.submit(bulk_load.load, primary, megabytes)
        seen = list(_watch(setup, loading)) if setup.name in (ARCHIVED, OTHER) else []
        load = loading.result()
    sample = ArchiveSample(setup.name, number, result.tps, result.p99_ms, load.megabytes_per_second)
    if not seen:
        return sample
    first_at, first_lsn = next((at, lsn) for at, lsn in seen if lsn > begin_lsn)
    last_at, last_lsn = seen[-1]
    return replace(
        sample,
        archived_mb_per_s=(last_lsn - first_lsn) / (1 << 20) / (last_at - first_at),
        lag_seconds=last_at - begun - load.seconds,
    )


def _watch(setup: SafekeeperQuorum, loading: Future[BulkLoad]) -> Iterator[tuple[float, int]]:
    """(time, archived_lsn) until all segments of the load are archived. Raises FixtureError."""
    deadline = time.perf_counter() + ARCHIVE_TIMEOUT
    while (now := time.perf_counter()) < deadline:
        lsn = archived_lsn(setup)
        yield now, lsn
        if loading.done() and lsn // WAL_SEG_SIZE >= loading.result().end_lsn // WAL_SEG_SIZE:
            return
        time.sleep(ARCHIVE_POLL_SECONDS)
    raise FixtureError(f"the WAL is not archived after {ARCHIVE_TIMEOUT:.0f} s")


def archived_lsn(setup: SafekeeperQuorum) -> int:
    """The position that the archiving safekeeper reports."""
    timelines = [safekeeper.timeline() for safekeeper in setup.safekeepers]
    return max(Lsn.parse(t["archive"]["archived_lsn"]) for t in timelines if t is not None)


def table(samples: Sequence[ArchiveSample]) -> list[list[str]]:
    """Medians, and the spread of the ratios to the setup without an archive in the same round."""
    rows = [list(COLUMNS)]
    for setup in dict.fromkeys(s.setup for s in samples):
        own = samples_of(samples, setup)
        tps, p99, load, archived, lag = (
            Spread.of([getattr(s, name) for s in own]).median
            for name in ("tps", "p99_ms", "load_mb_per_s", "archived_mb_per_s", "lag_seconds")
        )
        ratio = paired_ratios(samples, "tps", setup, PLAIN).format(2)
        rows.append(
            [setup, f"{tps:.0f}", ratio, f"{p99:.2f}", f"{load:.0f}",
             f"{archived:.0f}" if archived else "-", f"{lag:.1f}" if archived else "-"]
        )  # fmt: skip
    return rows


def verdicts(samples: Sequence[ArchiveSample]) -> list[Verdict]:
    """The cost of archiving, and its rate."""
    rates = Spread.of([s.archived_mb_per_s for s in samples_of(samples, ARCHIVED)])
    control = paired_ratios(samples, "tps", CONTROL, PLAIN)
    return [
        Verdict(
            f"TPS >= {TPS_RATIO_MIN} x without an archive at {CLIENTS} clients",
            paired_ratios(samples, "tps", ARCHIVED, PLAIN), TPS_RATIO_MIN, True, control,
        ),
        Verdict(f"archives >= {ARCHIVED_MB_MIN} MB/s", rates, ARCHIVED_MB_MIN, True, None),
    ]  # fmt: skip
