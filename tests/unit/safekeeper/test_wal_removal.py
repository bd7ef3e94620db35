"""WAL that is not needed is removed, in an order that a crash may interrupt anywhere."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from timeline_on_disk import Pusher, leading_pusher, load_timeline, raising, state_of
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiveSettings
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.retention import Horizon, RetentionPolicy
from quorum_wal.safekeeper.status import damage_of
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.trim_rule import Trim
from quorum_wal.safekeeper.wal_removal import horizon_of, remove_old_wal
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

SEGMENTS = 8


def segments_of(folder: Path) -> list[int]:
    """Their numbers."""
    names = sorted(p.name for p in (folder / "wal").iterdir() if len(p.name) == 24)
    return [int(name[16:], 16) for name in names]


@pytest.fixture
def pusher(tmp_path: Path) -> Pusher:
    """Of a log of eight segments and a bit, all of it committed and known to all members."""
    pusher = leading_pusher(tmp_path)
    pusher.timeline.retention = RetentionPolicy(0, 4 * WAL_SEG_SIZE)
    while pusher.log.lsn < START_LSN + SEGMENTS * WAL_SEG_SIZE:
        pusher.log.append("R", 30_000)
    pusher.push()
    pusher.push(commit_lsn=pusher.log.lsn, truncate_lsn=pusher.log.lsn)
    assert segments_of(tmp_path) == list(range(1, SEGMENTS + 2))
    pusher.timeline.maintain_files()
    return pusher


def test_the_tail_stays_and_the_rest_is_removed(pusher: Pusher, tmp_path: Path) -> None:
    remove_old_wal(pusher.timeline)
    assert segments_of(tmp_path) == [7, 8, 9]
    assert pusher.timeline.control.local_start_lsn == 7 * WAL_SEG_SIZE
    pusher.log.append("R", 30_000)
    pusher.push()
    again = load_timeline(tmp_path)
    assert again.state is TimelineState.ACTIVE
    assert again.positions.flush_lsn == pusher.log.lsn
    assert again.control.local_start_lsn == 7 * WAL_SEG_SIZE


@pytest.mark.parametrize(
    ("lsn", "has_checksums", "at_read"),
    [(START_LSN, True, 1), (START_LSN, False, 1), (7 * WAL_SEG_SIZE, False, 5)],
    ids=["gone", "gone, without checksums", "the one before is gone, without checksums"],
)
def test_wal_that_is_removed_while_it_is_read_is_not_damaged(
    pusher: Pusher, tmp_path: Path, lsn: int, has_checksums: bool, at_read: int
) -> None:
    """The removal overtakes a slow reader, or the scrub. Without checksums these also decode the
    segment before. The member keeps its vote, and the WAL that it still has can be read."""
    timeline = pusher.timeline
    if not has_checksums:
        for path in (tmp_path / "checksums").iterdir():
            path.unlink()
        timeline = load_timeline(tmp_path)
        timeline.retention = pusher.timeline.retention
    read, numbers = timeline.store.read, count(1)

    def overtaken(lsn: int, length: int) -> bytes:
        if next(numbers) == at_read:
            remove_old_wal(timeline)
        return read(lsn, length)

    timeline.store.read = overtaken  # type: ignore[method-assign]
    expected = b"" if lsn == START_LSN else pusher.log.read(lsn, lsn + 1000)
    assert read_wal(timeline, lsn, 1000) == expected
    assert timeline.control.local_start_lsn == 7 * WAL_SEG_SIZE
    assert damage_of(timeline) == []
    reader = Pusher(timeline, number=2)
    timeline.connect(reader)
    assert reader.vote().granted


def test_a_promise_after_the_removal_keeps_the_start_of_the_log(
    pusher: Pusher, tmp_path: Path
) -> None:
    """The acceptor's copy of the control state is older."""
    remove_old_wal(pusher.timeline)
    pusher.vote()
    pusher.timeline.close("the test goes on")
    assert load_timeline(tmp_path).control.local_start_lsn == 7 * WAL_SEG_SIZE


def test_a_slot_holds_its_wal_until_its_limit(pusher: Pusher, tmp_path: Path) -> None:
    timeline = pusher.timeline
    slot = timeline.slots.create("s", 6 * WAL_SEG_SIZE + 5)
    assert horizon_of(timeline) == Horizon(6 * WAL_SEG_SIZE, "slot s")
    remove_old_wal(timeline)
    assert segments_of(tmp_path) == [6, 7, 8, 9]
    assert not slot.is_lost
    timeline.retention = RetentionPolicy(0, 2 * WAL_SEG_SIZE)
    remove_old_wal(timeline)
    assert segments_of(tmp_path) == [7, 8, 9]
    assert slot.is_lost
    assert load_timeline(tmp_path).slots.all()[0].is_lost


def test_a_pageserver_holds_what_it_has_not_made_durable(pusher: Pusher, tmp_path: Path) -> None:
    """Also after a restart, up to the limit; a newer one does not get removed WAL back."""
    timeline = pusher.timeline
    timeline.slots.register(7)
    timeline.slots.report(7, 6 * WAL_SEG_SIZE + 5)
    assert horizon_of(timeline) == Horizon(6 * WAL_SEG_SIZE, "pageserver")
    remove_old_wal(timeline)
    assert segments_of(tmp_path) == [6, 7, 8, 9]
    pusher.timeline.close("the test goes on")
    again = load_timeline(tmp_path)
    again.retention = timeline.retention
    assert again.slots.trim == Trim(7, 6 * WAL_SEG_SIZE + 5)
    again.slots.register(8)
    again.slots.report(8, 3 * WAL_SEG_SIZE)
    assert horizon_of(again) == Horizon(6 * WAL_SEG_SIZE, "pageserver")
    again.retention = RetentionPolicy(0, 2 * WAL_SEG_SIZE)
    remove_old_wal(again)
    assert segments_of(tmp_path) == [7, 8, 9]
    again.slots.forget_pageserver()
    assert horizon_of(again).holder == "tail"


@pytest.mark.parametrize("holder", ["slot", "archive"])
def test_dropping_a_slot_frees_space_on_a_full_disk(
    pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    """A stopped timeline resumes with the space of its own old WAL."""
    timeline = pusher.timeline
    if holder == "slot":
        timeline.slots.create("s", 3 * WAL_SEG_SIZE)
        timeline.retention = RetentionPolicy(0)
    else:
        timeline.archive = ArchiveProgress(ArchiveSettings("/a", {}), 3 * WAL_SEG_SIZE)
    pusher.log.append("R", 2 * WAL_SEG_SIZE)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "free_bytes", lambda _: 0)
        with pytest.raises(StorageError):
            pusher.push()
    remove_old_wal(timeline)
    assert segments_of(tmp_path)[0] == 3
    if timeline.archive is None:
        timeline.slots.drop("s", session=1)
    else:
        timeline.archive.archived_lsn = timeline.positions.commit_lsn
    remove_old_wal(timeline)
    assert segments_of(tmp_path)[0] == 7
    assert timeline.state is TimelineState.STOPPED
    timeline.maybe_resume(1 << 40)
    assert state_of(timeline) is TimelineState.ACTIVE
    assert timeline.control.local_start_lsn == 7 * WAL_SEG_SIZE


def test_nothing_is_removed_after_another_failure(
    pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that cannot be trusted are evidence."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", raising(OSError(errno.EIO, "Input/output error")))
        pusher.log.append("R")
        with pytest.raises(StorageError):
            pusher.push()
    remove_old_wal(pusher.timeline)
    assert segments_of(tmp_path)[0] == 1


def test_an_unsaved_position_does_not_hold_wal_and_is_saved_first(
    pusher: Pusher, tmp_path: Path
) -> None:
    timeline = pusher.timeline
    slot = timeline.slots.create("s", 2 * WAL_SEG_SIZE)
    timeline.slots.advance(slot, 8 * WAL_SEG_SIZE)
    remove_old_wal(timeline)
    again = load_timeline(tmp_path).slots.all()[0]
    assert again.restart_lsn == 8 * WAL_SEG_SIZE
    assert not again.is_lost


@pytest.mark.parametrize("operation", ["replace_file", "remove_file", "sync_directory"])
@pytest.mark.parametrize("nth", range(1, 4))
def test_an_interrupted_removal_is_finished_by_the_next(
    pusher: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, nth: int
) -> None:
    """At every failure: the WAL that the control file names exists."""
    timeline = pusher.timeline
    timeline.slots.create("s", 3 * WAL_SEG_SIZE)
    real, count = getattr(durable, operation), 0

    def fail(*arguments: object) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise StorageError("pulled")
        real(*arguments)

    monkeypatch.setattr(durable, operation, fail)
    with suppress(StorageError):  # not every operation occurs so often
        remove_old_wal(timeline)
    monkeypatch.undo()
    again = load_timeline(tmp_path)
    again.retention = timeline.retention
    assert again.state is TimelineState.ACTIVE
    first = again.control.local_start_lsn // WAL_SEG_SIZE
    assert set(segments_of(tmp_path)) >= set(range(first, SEGMENTS + 2))
    for _ in range(2):  # the slot is lost, and then holds nothing
        remove_old_wal(again)
    assert again.slots.all()[0].is_lost
    assert again.control.local_start_lsn == 7 * WAL_SEG_SIZE
    assert segments_of(tmp_path) == [7, 8, 9]


def test_a_member_that_lags_holds_the_wal(tmp_path: Path, pusher: Pusher) -> None:
    other = leading_pusher(tmp_path / "other")
    other.timeline.retention = RetentionPolicy(0, 0)
    other.log = pusher.log
    other.push()
    other.push(commit_lsn=other.log.lsn, truncate_lsn=3 * WAL_SEG_SIZE + 9)
    assert horizon_of(other.timeline) == Horizon(3 * WAL_SEG_SIZE, "members")
    remove_old_wal(other.timeline)
    assert segments_of(tmp_path / "other") == [3, 4, 5, 6, 7, 8, 9]
