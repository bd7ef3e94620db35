"""Archiving of several timelines: one whose part of the store hangs, one that sleeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Event, active_count
from weakref import ref

import pytest
from new_timeline import SERVER, first_membership
from timeline_on_disk import HOOKS, Pusher, fill
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.store import Data
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper import archiving
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.archive_workers import ArchiveWorkers
from quorum_wal.safekeeper.archiver import Archiver
from quorum_wal.safekeeper.archiving import Archiving
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timelines import TimelinePolicy, Timelines

TIMEOUT = 30.0
NAMES = [TimelineId(b"t" * 16, bytes([number]) * 16) for number in range(1, 9)]


class HangingStore(LocalStore):
    """Writes for one timeline are not answered until `released`."""

    hangs_for = ""
    released = Event()

    def create(self, key: str, data: Data) -> bool:
        if self.hangs_for and self.hangs_for in key:
            assert self.released.wait(TIMEOUT)
        return super().create(key, data)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingStore]:
    made = HangingStore(str(tmp_path / "archive"))
    made.released = Event()
    monkeypatch.setattr(archiving, "open_store", lambda *_: made)
    monkeypatch.setattr(archiving, "POLL_SECONDS", 0.02)
    yield made
    made.released.set()


@pytest.fixture
def settings(store: HangingStore) -> ArchiveSettings:
    return ArchiveSettings(store.url, {}, partial_interval_seconds=0.1, workers_max=2)


@pytest.fixture
def timelines(tmp_path: Path, settings: ArchiveSettings) -> Iterator[Timelines]:
    directory = DataDirectory(tmp_path / "data", 1)
    made = Timelines(directory, HOOKS, TimelinePolicy(archive=settings))
    yield made
    made.close()
    directory.close()


@pytest.fixture
def running(timelines: Timelines, settings: ArchiveSettings) -> Iterator[Archiving]:
    made = Archiving(settings, timelines)
    yield made
    made.close()


def filled(timelines: Timelines, name: TimelineId, segments: float) -> Pusher:
    timelines.create(name, SERVER, first_membership(1), START_LSN, TimelineHistory(1))
    timelines.activate(name)
    pusher = Pusher(timelines.get(name), 1).lead()
    fill(pusher.log, segments * WAL_SEG_SIZE)
    commit(pusher)
    return pusher


def commit(pusher: Pusher) -> None:
    pusher.push()
    pusher.push(commit_lsn=pusher.log.lsn, truncate_lsn=pusher.log.lsn)


def is_archived(pusher: Pusher) -> bool:
    archive = pusher.timeline.archive
    assert archive is not None
    return archive.is_settled(pusher.log.lsn)


def test_all_of_it_arrives_with_a_bounded_number_of_threads(
    timelines: Timelines, store: HangingStore
) -> None:
    pushers = [filled(timelines, name, 2.5) for name in NAMES]
    settings = ArchiveSettings(store.url, {}, partial_interval_seconds=0.1, workers_max=2)
    before = active_count()
    running = Archiving(settings, timelines)
    counts = [before]

    def are_archived() -> bool:
        counts.append(active_count())
        return all(map(is_archived, pushers))

    try:
        wait_until(are_archived, TIMEOUT, "all to be archived", interval=0.001)
    finally:
        running.close()
    assert max(counts) - before <= 1 + 2 + 2 * 4
    for pusher in pushers:
        archive = TimelineArchive.open(store, pusher.timeline.control.timeline)
        assert archive.archived_lsn(TimelineHistory(1), START_LSN) == pusher.log.lsn


def test_a_hanging_timeline_does_not_delay_others(
    timelines: Timelines, store: HangingStore, running: Archiving
) -> None:
    store.hangs_for = NAMES[0].timeline_id.hex()
    stuck = filled(timelines, NAMES[0], 2.5)
    others = [filled(timelines, name, 2.5) for name in NAMES[1:]]
    wait_until(lambda: all(map(is_archived, others)), TIMEOUT, "the others to be archived")
    assert not is_archived(stuck)
    store.released.set()
    wait_until(lambda: is_archived(stuck), TIMEOUT, "the one that hung")


def test_more_hanging_timelines_than_workers(
    timelines: Timelines,
    store: HangingStore,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while other workers do their work."""
    workers = ArchiveWorkers(settings.workers_max, slow_seconds=0.2)
    monkeypatch.setattr(archiving, "ArchiveWorkers", lambda _: workers)
    store.hangs_for = NAMES[0].tenant_id.hex()
    for name in NAMES[:2]:
        filled(timelines, name, 1.5)
    running = Archiving(settings, timelines)
    try:
        wait_until(lambda: workers.slow_count == 2, TIMEOUT, "both workers to hang")
        store.hangs_for = ""
        other = filled(timelines, NAMES[2], 1.5)
        wait_until(lambda: is_archived(other), TIMEOUT, "the other one to be archived")
        assert workers.slow_count == 2
    finally:
        store.released.set()
        running.close()


def test_a_sleeping_timeline_costs_nothing_until_it_wakes(
    timelines: Timelines, running: Archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Timeline] = []

    class AskedArchiver(Archiver):
        def has_work(self) -> bool:
            asked.append(self._timeline)
            return super().has_work()

    monkeypatch.setattr(archiving, "Archiver", AskedArchiver)
    pusher = filled(timelines, NAMES[0], 1.5)
    wait_until(lambda: is_archived(pusher), TIMEOUT, "all of it to be archived")
    timeline = pusher.timeline
    timeline.disconnect(pusher)
    timeline.sleep.maybe_begin(0)
    assert timeline.sleep.is_asleep
    assert timeline in asked
    other = filled(timelines, NAMES[1], 1.5)
    wait_until(lambda: is_archived(other), TIMEOUT, "another one to be archived")
    assert timeline not in asked[asked.index(other.timeline) :]
    assert timeline.sleep.is_asleep
    again = Pusher(timeline, 2, log=pusher.log, terms=pusher.terms).lead(int(pusher.log.lsn))
    fill(again.log, 3.5 * WAL_SEG_SIZE)
    commit(again)
    wait_until(lambda: is_archived(again), TIMEOUT, "what came after its sleep")


def test_a_deleted_timeline_is_removed(timelines: Timelines, running: Archiving) -> None:
    """Nothing keeps it in memory: no archiver, no reader, no worker."""
    pushers = [filled(timelines, name, 1.5) for name in NAMES[:2]]
    wait_until(lambda: all(map(is_archived, pushers)), TIMEOUT, "both to be archived")
    running.update_readers()
    deleted, kept = (ref(pusher.timeline) for pusher in pushers)
    pushers.clear()
    timelines.delete(NAMES[0])
    running.update_readers()

    def is_gone() -> bool:
        gc.collect()
        return deleted() is None

    wait_until(is_gone, TIMEOUT, "its archiver to go")
    assert kept() is timelines.get(NAMES[1])
