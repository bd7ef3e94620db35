"""`bulk`: one large transaction, and what it costs in memory; with all copies, and with one away.

A quorum that cannot keep up shows here: the primary writes WAL as fast as one process can, and the
commit waits for the last byte. The safekeeper that was away catches up from another one.
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
from pg_fixtures.cluster import flush_lsn
from pg_fixtures.waiting import wait_until

ONE_AWAY = "ours, one away"
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
# Asking the safekeeper for its position costs it time, so not as often as it can answer.
CATCH_UP_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class BulkSample:
    """One load. Memory is the greatest since the start of each process, for ours only;
    `catch_up_seconds` are from the start of the process of the one that was away."""

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
    """In the order of the table. With `checkout`, ours of that one too."""
    return [
        SafekeeperQuorum(OURS),
        SafekeeperQuorum(ONE_AWAY),
        ReceiveWalQuorum(PEER),
        ReceiveWalQuorum(CONTROL),
        LocalOnly(LOCAL),
        *([SafekeeperQuorum(OTHER, checkout)] if checkout is not None else []),
    ]


def measure(
    primary: Primary, directory: Path, measured: Sequence[Setup], rounds: int, megabytes: int
) -> Iterator[BulkSample]:
    """Samples as they are taken. Between two of them all WAL is removed everywhere."""
    bulk_load.create_tables(primary)
    for number, setup in interleaved(measured, rounds):
        bulk_load.forget(primary)
        with attached(primary, setup, directory / "copies"):
            yield _sample(primary, setup, number, megabytes)
    bulk_load.forget(primary)


def _sample(primary: Primary, setup: Setup, number: int, megabytes: int) -> BulkSample:
    if not isinstance(setup, SafekeeperQuorum):
        load = bulk_load.load(primary, megabytes)
        return BulkSample(setup.name, number, load.wal_bytes, load.seconds)
    away = setup.safekeepers[-1] if setup.name == ONE_AWAY else None
    if away is not None:
        away.kill()
    load = bulk_load.load(primary, megabytes)
    begun = time.perf_counter()
    if away is not None:
        away.start()
    wait_until(
        lambda: min(map(flush_lsn, setup.safekeepers)) >= load.end_lsn,
        CATCH_UP_TIMEOUT,
        "all safekeepers to have everything",
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
        catch_up_seconds=caught_up_seconds if away is not None else 0.0,
    )


def table(samples: Sequence[BulkSample]) -> list[list[str]]:
    """Medians of each setup; of memory, the greatest of all rounds."""
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
    """Time against the peer, and the limits on memory."""
    control = paired_ratios(samples, "seconds", CONTROL, PEER)
    found = [
        Verdict(
            f"time <= peer, {setup}",
            paired_ratios(samples, "seconds", setup, PEER),
            SECONDS_RATIO_MAX,
            False,
            control,
        )
        for setup in (OURS, ONE_AWAY)
    ]
    ours = [s for s in samples if s.setup in (OURS, ONE_AWAY)]
    for who, limit, values in (
        ("proposer", PROPOSER_RSS_MB_MAX, [s.proposer_rss_bytes for s in ours]),
        ("safekeeper", SAFEKEEPER_RSS_MB_MAX, [s.safekeeper_rss_bytes for s in ours]),
    ):
        # The greatest, not the median: memory has no excuse.
        peak = Spread.of([max(values) / (1 << 20)])
        found.append(Verdict(f"{who} < {limit} MB", peak, limit, False, unit=" MB"))
    return found
