"""`bulk`: the time and memory of one large transaction, with all copies and with one stopped.

It shows a quorum that cannot keep up: the primary writes WAL as fast as one process can, and the
commit waits for the last byte. The stopped safekeeper then catches up from another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bulk_load
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.setups import (
    CONTROL,
    LOCAL,
    OTHER,
    OURS,
    PEER,
    LocalOnly,
    ReceiveWalQuorum,
    SafekeeperQuorum,
    Setup,
    attached,
)
from benchmarks.usage import rss_peak_bytes
from quorum_wal.pg_fixtures.cluster import flush_lsn
from quorum_wal.pg_fixtures.waiting import wait_until

ONE_STOPPED = "ours, one stopped"
COLUMNS = (
    "setup",
    "seconds",
    "MB/s",
    "seconds / peer",
    "proposer MB",
    "safekeeper MB",
    "catch-up s",
    "catch-up MB/s",
)
SECONDS_RATIO_MAX = 1.0
PROPOSER_RSS_MB_MAX = 200
SAFEKEEPER_RSS_MB_MAX = 150
CATCH_UP_TIMEOUT = 600.0  # seconds
# Each request for a safekeeper's position takes its time, so there is a pause between them.
CATCH_UP_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class BulkSample:
    """One load. Memory is the peak since the start of each process, only of our processes.
    `catch_up_seconds` count from the start of the process that was stopped."""

    setup: str
    round: int
    wal_bytes: int
    seconds: float
    proposer_rss_bytes: int = 0
    safekeeper_rss_bytes: int = 0
    catch_up_seconds: float = 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.seconds / (1 << 20)

    @property
    def catch_up_megabytes_per_second(self) -> float:
        return self.wal_bytes / self.catch_up_seconds / (1 << 20)


def setups(checkout: Path | None) -> list[Setup]:
    """In the order of the table. With `checkout`, also the quorum of that checkout."""
    return [
        SafekeeperQuorum(OURS),
        SafekeeperQuorum(ONE_STOPPED),
        ReceiveWalQuorum(PEER),
        ReceiveWalQuorum(CONTROL),
        LocalOnly(LOCAL),
        *([SafekeeperQuorum(OTHER, checkout)] if checkout is not None else []),
    ]


def measure(
    primary: Primary, directory: Path, measured: Sequence[Setup], rounds: int, megabytes: int
) -> Iterator[BulkSample]:
    """Yields each sample when it is taken. All WAL is removed before each of them."""
    bulk_load.create_tables(primary)
    for number, setup in interleaved(measured, rounds):
        bulk_load.remove_wal(primary)
        with attached(primary, setup, directory / "copies"):
            yield _sample(primary, setup, number, megabytes)
    bulk_load.remove_wal(primary)


def _sample(primary: Primary, setup: Setup, number: int, megabytes: int) -> BulkSample:
    if not isinstance(setup, SafekeeperQuorum):
        load = bulk_load.load(primary, megabytes)
        return BulkSample(setup.name, number, load.wal_bytes, load.seconds)
    stopped = setup.safekeepers[-1] if setup.name == ONE_STOPPED else None
    if stopped is not None:
        stopped.kill()
    load = bulk_load.load(primary, megabytes)
    begun = time.perf_counter()
    if stopped is not None:
        stopped.start()
    wait_until(
        lambda: min(map(flush_lsn, setup.safekeepers)) >= load.end_lsn,
        CATCH_UP_TIMEOUT,
        "all safekeepers to have all WAL",
        interval=CATCH_UP_POLL_SECONDS,
    )
    caught_up_seconds = time.perf_counter() - begun
    assert setup.proposer is not None
    return BulkSample(
        setup=setup.name,
        round=number,
        wal_bytes=load.wal_bytes,
        seconds=load.seconds,
        proposer_rss_bytes=rss_peak_bytes(setup.proposer.pid),
        safekeeper_rss_bytes=max(rss_peak_bytes(s.pid) for s in setup.safekeepers),
        catch_up_seconds=caught_up_seconds if stopped is not None else 0.0,
    )


def table(samples: Sequence[BulkSample]) -> list[list[str]]:
    """Medians of each setup; for memory the peak of all rounds."""
    rows = [list(COLUMNS)]
    for setup in dict.fromkeys(s.setup for s in samples):
        own = samples_of(samples, setup)
        seconds = Spread.of([s.seconds for s in own]).median
        rate = Spread.of([s.megabytes_per_second for s in own]).median
        ratio = paired_ratios(samples, "seconds", setup, PEER).format(2)
        row = [setup, f"{seconds:.1f}", f"{rate:.0f}", ratio]
        row += _memory(own) + _catch_up(own)
        rows.append(row)
    return rows


def _memory(samples: Sequence[BulkSample]) -> list[str]:
    peaks = (
        max(s.proposer_rss_bytes for s in samples),
        max(s.safekeeper_rss_bytes for s in samples),
    )
    return [f"{peak / (1 << 20):.0f}" if peak else "" for peak in peaks]


def _catch_up(samples: Sequence[BulkSample]) -> list[str]:
    if not all(s.catch_up_seconds for s in samples):
        return ["", ""]
    seconds = Spread.of([s.catch_up_seconds for s in samples]).median
    rate = Spread.of([s.catch_up_megabytes_per_second for s in samples]).median
    return [f"{seconds:.1f}", f"{rate:.0f}"]


def verdicts(samples: Sequence[BulkSample]) -> list[Verdict]:
    """The time compared with the peer, and the limits of memory."""
    control = paired_ratios(samples, "seconds", CONTROL, PEER)
    found = [
        Verdict(
            f"time <= peer, {setup}",
            paired_ratios(samples, "seconds", setup, PEER),
            SECONDS_RATIO_MAX,
            False,
            control,
        )
        for setup in (OURS, ONE_STOPPED)
    ]
    ours = [s for s in samples if s.setup in (OURS, ONE_STOPPED)]
    for who, limit, values in (
        ("proposer", PROPOSER_RSS_MB_MAX, [s.proposer_rss_bytes for s in ours]),
        ("safekeeper", SAFEKEEPER_RSS_MB_MAX, [s.safekeeper_rss_bytes for s in ours]),
    ):
        # The peak, not the median: a limit of memory must always hold.
        peak = Spread.of([max(values) / (1 << 20)])
        found.append(Verdict(f"{who} < {limit} MB", peak, limit, False, unit=" MB"))
    return found
