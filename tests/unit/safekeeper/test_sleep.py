"""An unused timeline sleeps; every user finds it as after a start, also if it comes at the moment
of going to sleep."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from acceptor_steps import A, history
from new_timeline import INSTANCE
from overtaken_lock import OvertakenLock
from timeline_on_disk import (
    Pusher,
    fill,
    filled_timeline,
    flip,
    leading_pusher,
    load_timeline,
    log_of,
    raising,
    segment_file,
    state_of,
)
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiverState, ArchiveSettings
from quorum_wal.safekeeper.control_file import ControlFile
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.replicas import Replica
from quorum_wal.safekeeper.retention import RetentionPolicy
from quorum_wal.safekeeper.scrub import Scrub, ScrubSettings
from quorum_wal.safekeeper.status import damage_of, timeline_status
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.safekeeper.wal_removal import remove_old_wal
from quorum_wal.safekeeper.wal_store import SPARE_NAME, WalStore
from quorum_wal.storage.errors import StorageError

TIMEOUT = 30.0
FAST = ScrubSettings(bytes_per_second=1e12)


def left(folder: Path, segments: float = 2.5) -> Pusher:
    """A proposer that has pushed and committed so much, and has disconnected."""
    pusher = leading_pusher(folder)
    fill(pusher.log, segments * WAL_SEG_SIZE)
    pusher.push()
    pusher.push(commit_lsn=pusher.log.lsn, truncate_lsn=pusher.log.lsn)
    pusher.timeline.disconnect(pusher)
    return pusher


def asleep(folder: Path, segments: float = 2.5) -> Pusher:
    pusher = left(folder, segments)
    pusher.timeline.sleep.maybe_begin(0)
    assert pusher.timeline.sleep.is_asleep
    return pusher


def is_asleep(timeline: Timeline) -> bool:
    """Now, regardless of earlier results."""
    return timeline.sleep.is_asleep


def come_back(pusher: Pusher, number: int = 7) -> Pusher:
    """The proposer continues where it ended."""
    again = Pusher(pusher.timeline, number, log=pusher.log, terms=history((A, START_LSN)))
    return again.lead(int(pusher.log.lsn))


def open_files_below(folder: Path) -> list[str]:
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if link.is_symlink()]
    return [name for name in names if name.startswith(str(folder))]


# ---- asleep


def test_no_file_is_open_and_the_state_is_available(tmp_path: Path) -> None:
    pusher = left(tmp_path)
    timeline = pusher.timeline
    timeline.store.prepare_next_segment()
    before, wal_bytes = timeline.positions, timeline.sleep.wal_bytes
    assert open_files_below(tmp_path)
    timeline.sleep.maybe_begin(0)
    assert timeline.sleep.is_asleep
    assert open_files_below(tmp_path) == []
    assert not (tmp_path / "wal" / SPARE_NAME).exists(), "nobody will take it"
    assert timeline.positions == before
    assert timeline.state is TimelineState.ACTIVE
    status = timeline_status(timeline)
    assert status["asleep"] is True
    assert status["wal_bytes"] == wal_bytes == 3 * WAL_SEG_SIZE
    assert status["last_proposer"] == {"number": 1, "address": "10.0.0.9:40000"}
    assert status["last_leader"] == status["last_proposer"]
    assert timeline.streaming is None


def test_dropped_state_is_on_disk(tmp_path: Path) -> None:
    pusher = asleep(tmp_path)
    loaded = load_timeline(tmp_path)
    assert loaded.positions == pusher.timeline.positions
    assert loaded.control == pusher.timeline.control
    assert len(list((tmp_path / "checksums").iterdir())) == 2, "of the full segments"


def test_a_proposer_wakes_it(tmp_path: Path) -> None:
    pusher = asleep(tmp_path)
    again = come_back(pusher)
    again.log.append("R")
    assert again.push().flush_lsn == again.log.lsn
    assert not is_asleep(pusher.timeline)


def test_a_reader_keeps_it_awake(tmp_path: Path) -> None:
    """Also its tail can be read, whose checksums are not on disk."""
    pusher = asleep(tmp_path)
    timeline = pusher.timeline
    with timeline.sleep.prevented():
        timeline.sleep.maybe_begin(0)
        assert not timeline.sleep.is_asleep
        lsn = pusher.log.lsn - 1000
        assert read_wal(timeline, lsn, 1000) == pusher.log.read(lsn, pusher.log.lsn)
    timeline.sleep.maybe_begin(0)
    assert is_asleep(timeline)


def test_again_and_again(tmp_path: Path) -> None:
    pusher = left(tmp_path)
    for number in range(2, 7):
        pusher.timeline.sleep.maybe_begin(0)
        assert is_asleep(pusher.timeline)
        again = come_back(pusher, number)
        fill(again.log, number * WAL_SEG_SIZE)
        again.push()
        again.push(commit_lsn=again.log.lsn)
        again.timeline.disconnect(again)
    pusher.timeline.sleep.maybe_begin(0)
    assert load_timeline(tmp_path).positions.commit_lsn == pusher.log.lsn


# ---- when it does not sleep


def test_not_before_its_time(tmp_path: Path) -> None:
    timeline = left(tmp_path).timeline
    timeline.sleep.maybe_begin(TIMEOUT)
    assert not timeline.sleep.is_asleep


def test_not_while_a_proposer_is_connected(tmp_path: Path) -> None:
    """Streaming or not."""
    pusher = leading_pusher(tmp_path)
    pusher.timeline.sleep.maybe_begin(0)
    assert not pusher.timeline.sleep.is_asleep


def test_not_while_a_replica_streams(tmp_path: Path) -> None:
    timeline = left(tmp_path).timeline
    timeline.replicas.add(cast(Replica, SimpleNamespace()))
    timeline.sleep.maybe_begin(0)
    assert not timeline.sleep.is_asleep


@pytest.mark.parametrize(
    ("state", "is_archived"),
    [
        (ArchiverState.STARTING, True),
        (ArchiverState.RETRYING, True),
        (ArchiverState.ARCHIVING, False),
    ],
)
def test_not_before_all_of_it_was_found_in_the_archive(
    tmp_path: Path, state: ArchiverState, is_archived: bool
) -> None:
    pusher = left(tmp_path)
    archived_lsn = pusher.log.lsn if is_archived else START_LSN
    archive = ArchiveProgress(ArchiveSettings("memory://", {}), archived_lsn, state)
    pusher.timeline.archive = archive
    pusher.timeline.sleep.maybe_begin(0)
    assert not pusher.timeline.sleep.is_asleep
    archive.state, archive.archived_lsn = ArchiverState.FOLLOWING, pusher.log.lsn
    pusher.timeline.sleep.maybe_begin(0)
    assert is_asleep(pusher.timeline)


def test_not_when_it_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(StorageError):
            pusher.push()
    pusher.timeline.disconnect(pusher)
    pusher.timeline.sleep.maybe_begin(0)
    assert not pusher.timeline.sleep.is_asleep
    assert pusher.timeline.state is TimelineState.STOPPED


# ---- a disk that fails meanwhile


def test_a_failed_flush_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = left(tmp_path).timeline
    monkeypatch.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StorageError, match="could not fdatasync"):
        timeline.sleep.maybe_begin(0)
    assert timeline.state is TimelineState.STOPPED
    assert not timeline.sleep.is_asleep


def test_positions_that_cannot_be_saved_keep_it_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = left(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", raising(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(StorageError):
            pusher.timeline.sleep.maybe_begin(0)
    assert not pusher.timeline.sleep.is_asleep
    assert come_back(pusher).vote().granted


def test_an_unreadable_log_stops_it_on_waking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = asleep(tmp_path).timeline
    monkeypatch.setattr(WalStore, "recover", raising(cast(OSError, StorageError("could not read"))))
    with pytest.raises(TimelineError, match="is stopped: could not read"):
        timeline.connect(Pusher(timeline, 9))
    assert state_of(timeline) is TimelineState.STOPPED


def test_a_failed_wake_up_does_not_keep_it_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That user never calls `allow`."""
    sleep = asleep(tmp_path).timeline.sleep
    with monkeypatch.context() as failing:
        failing.setattr(sleep, "_load", raising(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match="Too many open files"):
            sleep.prevent()
    with sleep.prevented():
        assert not sleep.is_asleep
    sleep.maybe_begin(0)
    assert sleep.is_asleep


# ---- races


def in_thread(run: Callable[[], object]) -> Thread:
    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_user_that_comes_while_it_goes_to_sleep_waits_and_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = left(tmp_path)
    timeline = pusher.timeline
    falling, go_on = Event(), Event()
    real = timeline.store.close

    def close() -> None:
        falling.set()
        assert go_on.wait(TIMEOUT)
        real()

    monkeypatch.setattr(timeline.store, "close", close)
    sleeping = in_thread(lambda: timeline.sleep.maybe_begin(0))
    assert falling.wait(TIMEOUT)
    answers: list[Any] = []
    coming = in_thread(lambda: answers.append(come_back(pusher).vote()))
    assert not answers
    go_on.set()
    sleeping.join(TIMEOUT)
    coming.join(TIMEOUT)
    assert answers[0].granted
    assert answers[0].flush_lsn == pusher.log.lsn
    assert not is_asleep(timeline)


def test_it_stays_awake_for_a_user_that_comes_first(tmp_path: Path) -> None:
    """Housekeeping saw no user, and had to wait for the lock."""
    timeline = left(tmp_path).timeline
    lock = OvertakenLock(timeline.sleep.prevent)
    timeline.lock = cast(Any, lock)
    timeline.sleep.maybe_begin(0)
    assert lock.was_overtaken
    assert not timeline.sleep.is_asleep
    timeline.sleep.allow()
    timeline.sleep.maybe_begin(0)
    assert timeline.sleep.is_asleep


def test_all_users_at_once(tmp_path: Path) -> None:
    """A proposer that comes and goes, a reader, housekeeping: nothing is lost and nothing fails."""
    pusher = left(tmp_path, 0.5)
    timeline, failures, ended = pusher.timeline, list[BaseException](), Event()

    def until_the_end(run: Callable[[], object]) -> Callable[[], None]:
        def loop() -> None:
            try:
                while not ended.is_set():
                    run()
            except BaseException as error:
                failures.append(error)
                raise

        return loop

    def read() -> None:
        with timeline.sleep.prevented():
            end_lsn = timeline.positions.flush_lsn
            assert read_wal(timeline, end_lsn - 500, 500) == pusher.log.read(end_lsn - 500, end_lsn)
        ended.wait(0.005)  # otherwise no other thread would find the timeline unused

    def run_housekeeping() -> None:
        timeline.save_positions()
        remove_old_wal(timeline)
        timeline.sleep.maybe_begin(0)

    threads = [in_thread(until_the_end(run)) for run in (read, run_housekeeping, run_housekeeping)]
    slept = 0
    try:
        for number in range(10, 90):
            slept += is_asleep(timeline)
            again = come_back(pusher, number)
            again.log.append(f"R{number}", 20_000)
            again.push()
            again.push(commit_lsn=again.log.lsn)
            timeline.disconnect(again)
            if number % 4 == 0:
                wait_until(lambda: failures or is_asleep(timeline), TIMEOUT, "a moment of sleep")
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert failures == []
    assert slept > 0
    loaded = load_timeline(tmp_path)
    assert loaded.positions.flush_lsn == pusher.log.lsn
    assert loaded.store.read(START_LSN, 1000) == pusher.log.read(START_LSN, START_LSN + 1000)


def test_a_timeline_that_is_deleted_asleep_is_not_woken(tmp_path: Path) -> None:
    """A user that looked it up before must not create its folder again."""
    timeline = asleep(tmp_path).timeline
    timeline.close("it was deleted")
    with pytest.raises(TimelineError, match="is stopped: it was deleted"):
        timeline.connect(Pusher(timeline, 9))
    with timeline.sleep.prevented():
        assert timeline.state is TimelineState.STOPPED


# ---- other work meanwhile


def scrub_once(timeline: Timeline) -> Scrub:
    timelines = cast(Timelines, SimpleNamespace(all=lambda: [timeline]))
    scrub, stopping = Scrub(timelines, FAST), Event()
    thread = in_thread(lambda: scrub.run(stopping))
    wait_until(lambda: scrub.passes_count, TIMEOUT, "a pass")
    stopping.set()
    thread.join(TIMEOUT)
    return scrub


def test_the_scrub_wakes_it_and_finds_damage(tmp_path: Path) -> None:
    timeline = asleep(tmp_path).timeline
    flip(tmp_path, START_LSN + 8192 + 22)
    assert scrub_once(timeline).damages_count == 1
    assert not is_asleep(timeline)
    assert len(damage_of(timeline)) == 1
    timeline.sleep.maybe_begin(0)
    assert is_asleep(timeline)
    assert len(damage_of(timeline)) == 1, "it is told in its sleep, too"


def test_the_scrub_does_not_wake_it_without_cold_segments(tmp_path: Path) -> None:
    timeline = asleep(tmp_path, 0.5).timeline
    scrub_once(timeline)
    assert timeline.sleep.is_asleep


def test_retention_has_nothing_left_to_do(tmp_path: Path) -> None:
    """WAL was removed before, and no position changes."""
    pusher = left(tmp_path, 8.5)
    timeline = pusher.timeline
    timeline.retention = RetentionPolicy(0)
    remove_old_wal(timeline)
    timeline.sleep.maybe_begin(0)
    before = sorted((tmp_path / "wal").iterdir())
    assert timeline.control.local_start_lsn > START_LSN
    remove_old_wal(timeline)
    assert timeline.sleep.is_asleep
    assert sorted((tmp_path / "wal").iterdir()) == before


# ---- a start without the time for all


def test_a_start_trusts_the_saved_positions_until_the_first_use(tmp_path: Path) -> None:
    log = log_of(1_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    timeline = load_timeline(tmp_path, is_awake=False)
    assert timeline.sleep.is_asleep
    assert not timeline.sleep.is_checked
    assert timeline.positions.flush_lsn == timeline.positions.commit_lsn == log.lsn
    pusher = Pusher(timeline, 2, log=log)
    timeline.connect(pusher)
    assert pusher.vote().flush_lsn == log.lsn
    assert timeline.sleep.is_checked


def test_damage_at_the_end_is_found_before_a_vote(tmp_path: Path) -> None:
    log = log_of(1_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    flip(tmp_path, log.lsn - 100)
    timeline = load_timeline(tmp_path, is_awake=False)
    assert timeline.sleep.is_asleep, "nothing is missing, as far as names and sizes tell"
    pusher = Pusher(timeline, 2, log=log)
    timeline.connect(pusher)
    assert not pusher.vote().granted
    assert len(damage_of(timeline)) == 1


@pytest.mark.parametrize("segment", [0, 1, 2], ids=["the first", "a middle one", "the last"])
@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_lost_segment_is_reported_by_the_start(tmp_path: Path, segment: int, how: str) -> None:
    log = log_of(2_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    path = segment_file(tmp_path, START_LSN + segment * WAL_SEG_SIZE)
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, 8192)
    timeline = load_timeline(tmp_path, is_awake=False)
    assert not timeline.sleep.is_asleep
    assert damage_of(timeline) or timeline.state is TimelineState.DAMAGED


def test_a_loss_that_is_saved_is_reported_by_each_start(tmp_path: Path) -> None:
    log = log_of(1_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    flip(tmp_path, log.lsn - 100)
    lost_lsn = load_timeline(tmp_path).control.lost_lsn
    assert lost_lsn == log.lsn
    again = load_timeline(tmp_path, is_awake=False)
    assert not again.sleep.is_asleep
    assert again.positions.flush_lsn < lost_lsn


def test_the_saved_archive_position_is_trusted_until_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Awake, WAL may be removed: then only WAL found in the archive since the start counts."""
    pusher = leading_pusher(tmp_path)
    fill(pusher.log, WAL_SEG_SIZE)
    pusher.timeline.archive = ArchiveProgress(ArchiveSettings("memory://", {}), pusher.log.lsn)
    pusher.timeline.archive.is_open = True
    pusher.push()
    pusher.push(commit_lsn=pusher.log.lsn)
    pusher.timeline.close("the test goes on")
    settings = ArchiveSettings("memory://", {})
    timeline = Timeline(
        1,
        INSTANCE,
        tmp_path,
        ControlFile.read(tmp_path),
        pusher.timeline.hooks,
        archive=settings,
        is_awake=False,
    )
    assert timeline.archive is not None
    assert timeline.archive.archived_lsn == pusher.log.lsn
    timeline.sleep.wake()
    assert timeline.archive.archived_lsn == START_LSN
