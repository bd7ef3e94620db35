"""The metrics of many timelines: bounded, with all timelines that have problems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from new_timeline import SERVER, first_membership
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from timeline_on_disk import HOOKS, Pusher, fill
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.access.access import TRUST, Access
from quorum_wal.access.refusal_log import RefusalLog
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.metrics import StateCollector
from quorum_wal.safekeeper.scrub import DEFAULT_SCRUB, Scrub
from quorum_wal.safekeeper.timelines import TimelinePolicy, Timelines

NAMES = [TimelineId(b"t" * 16, bytes([number]) * 16) for number in range(1, 9)]


@pytest.fixture
def timelines(tmp_path: Path) -> Iterator[Timelines]:
    """Eight that sleep."""
    directory = DataDirectory(tmp_path, 1)
    for start_seconds in (60.0, 0.0):
        made = Timelines(directory, HOOKS, TimelinePolicy(start_seconds=start_seconds))
        for name in NAMES:
            made.create(name, SERVER, first_membership(1), START_LSN, TimelineHistory(1))
            if start_seconds:
                made.activate(name)
        if start_seconds:
            made.close()
    yield made
    made.close()
    directory.close()


def scrape(timelines: Timelines, timelines_max: int) -> list[str]:
    registry = CollectorRegistry()
    admission = Access(TRUST).admission
    scrub = Scrub(timelines, DEFAULT_SCRUB)
    registry.register(
        StateCollector(
            timelines.data_directory,
            timelines,
            admission,
            scrub,
            RefusalLog(),
            lambda: {},
            timelines_max,
        )
    )
    return cast(bytes, generate_latest(registry)).decode().splitlines()


def with_series(lines: list[str]) -> set[int]:
    """The numbers of the timelines that have series."""
    found = [line for line in lines if line.startswith("sk_timeline_flush_lsn{")]
    return {int(line.partition('timeline_id="')[2][:2], 16) for line in found}


def test_few_have_all_their_series_asleep_or_not(timelines: Timelines) -> None:
    lines = scrape(timelines, 8)
    assert with_series(lines) == set(range(1, 9))
    assert "sk_timelines_without_series 0.0" in lines
    assert 'sk_timelines{state="asleep"} 8.0' in lines
    assert timelines.awake() == [], "a scrape wakes nobody"


def test_of_many_those_with_problems_come_first_then_those_awake(timelines: Timelines) -> None:
    timelines.get(NAMES[6]).sleep.wake()
    rotten = Pusher(timelines.get(NAMES[4])).lead()
    fill(rotten.log, 2.5 * WAL_SEG_SIZE)
    rotten.push()
    rotten.push(commit_lsn=rotten.log.lsn)
    rotten.timeline.holes.add(rotten.timeline.store, 1, "a test")
    rotten.timeline.disconnect(rotten)
    rotten.timeline.sleep.maybe_begin(0)
    assert rotten.timeline.sleep.is_asleep
    assert with_series(scrape(timelines, 1)) == {5}
    lines = scrape(timelines, 2)
    assert with_series(lines) == {5, 7}
    assert "sk_timelines_without_series 6.0" in lines
    assert 'sk_timelines{state="asleep"} 7.0' in lines
    assert 'sk_timelines{state="active"} 1.0' in lines


def test_without_any_series_they_are_counted(timelines: Timelines) -> None:
    timelines.damaged["folder"] = "a test"
    lines = scrape(timelines, 0)
    assert with_series(lines) == set()
    assert 'sk_timelines{state="damaged"} 1.0' in lines
    del timelines.damaged["folder"]
