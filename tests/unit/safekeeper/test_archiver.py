"""An archiver and its store: what is uploaded when, and that no state of a store is assumed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from acceptor_steps import configure
from new_timeline import TIMELINE, first_membership
from timeline_on_disk import leading_pusher
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.consensus.membership import Member, Stamp
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ArchiveError, ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.sealed import seal
from quorum_wal.objectstore.store import Data
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiverState, ArchiveSettings
from quorum_wal.safekeeper.archive_turn import TAKEOVER_SECONDS, rank_of
from quorum_wal.safekeeper.archiver import Archiver
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.retention import RetentionPolicy
from quorum_wal.safekeeper.wal_removal import horizon_of

INTERVAL_SECONDS = 10.0
#: The first and the second in line of a new timeline.
FIRST, SECOND = sorted((1, 2, 3), key=lambda member: rank_of(member, (1, 2, 3), TIMELINE))[:2]
#: The wait of the second of three.
WAIT_SECONDS = TAKEOVER_SECONDS / 2
STEP_SECONDS = 0.1


class BrokenStore(LocalStore):
    """Writes fail while `is_broken`: before they do anything, or after all is done."""

    is_broken = False
    after_all = False

    def create(self, key: str, data: Data) -> bool:
        if self.is_broken and not self.after_all:
            raise ObjectStoreError(f'could not write "{key}": broken', is_transient=True)
        created = super().create(key, data)
        if self.is_broken:
            raise ObjectStoreError(f'could not write "{key}": no answer', is_transient=True)
        return created


class World:
    """A member, the first in line of its timeline, with its log, a store and a clock."""

    def __init__(
        self, folder: Path, pool: ThreadPoolExecutor, store: BrokenStore, safekeeper_id: int = FIRST
    ) -> None:
        self.pusher = leading_pusher(folder, safekeeper_id)
        self.timeline = self.pusher.timeline
        self.store = store
        settings = ArchiveSettings(self.store.url, {}, partial_interval_seconds=INTERVAL_SECONDS)
        self.progress = ArchiveProgress(settings, START_LSN)
        self.timeline.archive = self.progress
        self.seconds = 0.0
        self._pool = pool
        self.archiver = self.new_archiver()

    def new_archiver(self) -> Archiver:
        return Archiver(self.timeline, self.store, self.progress, lambda: self.seconds)

    def commit(self, segments: float, generation: int = 1) -> int:
        """Commits so much more; returns the end."""
        end_lsn = self.pusher.log.lsn + int(segments * WAL_SEG_SIZE)
        while self.pusher.log.lsn < end_lsn:
            self.pusher.log.append("R", 30_000)
        return self.commit_all(generation)

    def commit_all(self, generation: int = 1) -> int:
        """Commits all of its log."""
        end_lsn = self.pusher.log.lsn
        self.pusher.push(generation=generation)
        self.pusher.push(commit_lsn=end_lsn, truncate_lsn=end_lsn, generation=generation)
        return end_lsn

    def step(self) -> None:
        self.archiver.step(self._pool)

    def step_without_wal(self) -> None:
        """Takes a turn with nothing to upload, for any member in the line."""
        assert not self.archiver.step(self._pool)

    def take_turn(self) -> bool:
        return self.archiver.take_turn(self._pool)

    def archive(self) -> TimelineArchive:
        return TimelineArchive.open(self.store, self.timeline.control.timeline)

    def reached_lsn(self) -> int:
        """How far a reader of the store finds WAL."""
        return self.archive().archived_lsn(self.timeline.control.tli_history, START_LSN)

    def objects(self) -> list[str]:
        archive = self.archive()
        return [
            info.key.removeprefix(archive.keys.wal) for info in self.store.list(archive.keys.wal)
        ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ThreadPoolExecutor(4) as pool:
        yield World(tmp_path / "timeline", pool, BrokenStore(str(tmp_path / "archive")))


@pytest.fixture
def follower(tmp_path: Path, world: World) -> Iterator[World]:
    """Another member with the same log and the same store. It has looked once, and waits."""
    with ThreadPoolExecutor(4) as pool:
        made = World(tmp_path / "follower", pool, world.store, SECOND)
        made.pusher.log = world.pusher.log
        world.commit(2.1)
        made.commit_all()
        made.step_without_wal()
        world.step()
        made.seconds += WAIT_SECONDS
        made.step_without_wal()
        assert made.progress.archived_lsn == world.progress.archived_lsn > START_LSN
        yield made


def test_whole_segments_are_uploaded_at_once_and_the_rest_after_a_while(world: World) -> None:
    end_lsn = world.commit(3.5)
    world.step()
    assert world.progress.archived_lsn == world.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE
    world.seconds += INTERVAL_SECONDS
    world.step()
    assert world.progress.archived_lsn == world.reached_lsn() == end_lsn
    assert [".partial/" in key for key in world.objects()] == [False, False, False, True]


def test_a_partial_segment_is_uploaded_again_when_it_has_grown(world: World) -> None:
    for _ in range(3):
        end_lsn = world.commit(0.3)
        world.step()
        world.seconds += INTERVAL_SECONDS
        world.step()
        assert world.reached_lsn() == end_lsn
        assert len(world.objects()) == 1
    world.commit(0.5)
    world.step()
    world.seconds += INTERVAL_SECONDS
    world.step()
    assert [".partial/" in key for key in world.objects()] == [False, True]


def test_nothing_new_costs_no_request(world: World) -> None:
    world.commit(1.5)
    world.step()
    world.seconds += INTERVAL_SECONDS
    world.step()
    world.store.is_broken = True
    world.store.list = None  # type: ignore[method-assign,assignment]
    world.seconds += 100 * INTERVAL_SECONDS
    world.step()


def test_only_what_is_committed_is_uploaded(world: World) -> None:
    end_lsn = world.commit(1.2)
    world.pusher.log.append("R", 2 * WAL_SEG_SIZE)
    world.pusher.push()
    assert world.timeline.positions.flush_lsn > end_lsn + WAL_SEG_SIZE
    world.seconds += INTERVAL_SECONDS
    for _ in range(3):
        world.step()
        world.seconds += INTERVAL_SECONDS
    assert world.reached_lsn() == end_lsn


@pytest.mark.parametrize("after_all", [False, True])
def test_a_failed_upload_is_not_assumed_to_be_stored(world: World, after_all: bool) -> None:
    world.commit(0.5)
    world.step()
    before_lsn = world.progress.archived_lsn
    world.store.is_broken, world.store.after_all = True, after_all
    end_lsn = world.commit(5)
    with pytest.raises(ObjectStoreError, match="could not write"):
        world.step()
    assert world.progress.archived_lsn == before_lsn
    world.timeline.retention = RetentionPolicy(0, 0)
    assert horizon_of(world.timeline).holder == "archive"
    assert horizon_of(world.timeline).lsn <= before_lsn

    world.store.is_broken = False
    for _ in range(3):
        world.seconds += INTERVAL_SECONDS
        world.step()
    assert world.progress.archived_lsn == world.reached_lsn() == end_lsn


def test_a_bug_does_not_end_the_archiver(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    world.commit(1)
    monkeypatch.setattr(Archiver, "step", fail)
    for pause_seconds in (1.0, 2.0):
        assert world.archiver.has_work()
        assert not world.take_turn()
        assert not world.archiver.has_work(), "it pauses"
        assert world.progress.retry_seconds == pause_seconds
        world.seconds += pause_seconds
    assert world.progress.failures_count == 2
    assert world.progress.state is ArchiverState.RETRYING
    assert "unexpected KeyError" in world.progress.error


def test_another_log_under_the_same_name_is_never_replaced(world: World) -> None:
    world.commit(0.5)
    world.step()
    archive = world.archive()
    segno = START_LSN // WAL_SEG_SIZE
    wal = ArchivedWal(1, segno, (segno + 1) * WAL_SEG_SIZE)
    archive.put_wal(wal, b"x" * WAL_SEG_SIZE)
    world.commit(2)
    with pytest.raises(ArchiveError, match="exists with other content"):
        world.step()
    assert world.progress.archived_lsn <= START_LSN
    assert archive.read(wal) == b"x" * WAL_SEG_SIZE


def test_an_upload_that_was_truncated_is_repeated(world: World) -> None:
    world.commit(0.5)
    world.step()
    archive = world.archive()
    segno = START_LSN // WAL_SEG_SIZE
    world.store.put(archive.keys.segment(1, segno), seal(b"x" * WAL_SEG_SIZE)[:-20])
    end_lsn = world.commit(1)
    world.step()
    assert world.progress.archived_lsn == end_lsn - end_lsn % WAL_SEG_SIZE
    assert archive.read_segment(1, segno) == world.timeline.store.read(START_LSN, WAL_SEG_SIZE)


def test_damaged_wal_is_not_archived(world: World) -> None:
    """Also if the damage is behind bytes that are packed already: no object is created."""
    world.commit(1.5)
    (path,) = (world.timeline.directory / "wal").glob(format_segment_name(1, 1, WAL_SEG_SIZE))
    with path.open("r+b") as file:
        file.seek(WAL_SEG_SIZE - 1000)
        file.write(b"rot")
    with pytest.raises(WalDamaged, match="its bytes are not the bytes that were written"):
        world.step()
    assert world.objects() == []
    assert list(world.store.root.rglob(".tmp-*")) == []
    assert world.progress.archived_lsn == START_LSN


def test_a_new_archiver_learns_from_the_store_alone(world: World) -> None:
    end_lsn = world.commit(3.5)
    world.seconds += INTERVAL_SECONDS
    world.step()
    world.seconds += INTERVAL_SECONDS
    world.step()
    world.progress.archived_lsn = START_LSN
    world.archiver = world.new_archiver()
    world.step()
    assert world.progress.archived_lsn == end_lsn
    assert world.progress.state is ArchiverState.STARTING  # `take_turn` changes it, not `step`


def test_what_was_pruned_is_not_uploaded_again(world: World) -> None:
    end_lsn = world.commit(4)
    world.step()
    world.timeline.maintain_files()  # saves how far it was archived
    archive = world.archive()
    first = START_LSN // WAL_SEG_SIZE
    for segno in (first, first + 1):
        world.store.delete(archive.keys.segment(1, segno))
    world.archiver = world.new_archiver()
    world.step()
    assert world.progress.archived_lsn == end_lsn - end_lsn % WAL_SEG_SIZE
    with pytest.raises(ObjectNotFound):
        archive.read_segment(1, first)


def test_a_follower_does_not_upload_again_what_was_pruned(world: World, follower: World) -> None:
    """It has checked the store before the prune, and checks again after it."""
    end_lsn = world.commit(4)
    follower.commit_all()
    world.step()
    archive = world.archive()
    first = START_LSN // WAL_SEG_SIZE
    for segno in range(first, first + 4):
        world.store.delete(archive.keys.segment(1, segno))
    follower.step_without_wal()
    follower.seconds += WAIT_SECONDS
    follower.step_without_wal()
    assert follower.progress.archived_lsn == end_lsn - end_lsn % WAL_SEG_SIZE
    assert archive.first_lsn(world.timeline.control.tli_history, 0) == (first + 4) * WAL_SEG_SIZE


def test_a_follower_fills_the_hole_that_a_dead_archiver_left(world: World, follower: World) -> None:
    """Several segments are uploaded at once."""
    known_lsn = follower.progress.archived_lsn
    end_lsn = world.commit(3)
    follower.commit_all()
    world.step()
    world.store.delete(world.archive().keys.segment(1, known_lsn // WAL_SEG_SIZE))
    follower.step_without_wal()
    assert follower.reached_lsn() == follower.progress.archived_lsn == known_lsn
    follower.seconds += WAIT_SECONDS
    follower.step()
    assert follower.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE
    assert follower.progress.archived_lsn == follower.reached_lsn()


def test_the_line_has_both_sets_and_changes_with_them(world: World) -> None:
    timeline = world.timeline
    for number, new in enumerate(((4, 5, 6), (1, 9), (7, 8)), 2):
        stamp = Stamp(world.pusher.node_id, number)
        membership = first_membership(1, 2, 3).joint_with(stamp, tuple(map(Member, new)))
        world.pusher.send(configure(membership))
        world.step_without_wal()
        members = timeline.control.membership.all_members
        assert set(members) == {1, 2, 3, *new}
        rank = rank_of(FIRST, members, timeline.control.timeline)
        end_lsn, begun = world.commit(1, number), world.seconds
        while world.progress.archived_lsn < end_lsn - end_lsn % WAL_SEG_SIZE:
            world.seconds += STEP_SECONDS
            assert world.seconds < begun + 2 * TAKEOVER_SECONDS, "its wait begins again and again"
            world.step()
        expected = begun + STEP_SECONDS + TAKEOVER_SECONDS * rank / (len(members) - 1)
        assert world.seconds == pytest.approx(expected, abs=1.5 * STEP_SECONDS)


def test_wal_that_is_missing_in_the_store_is_uploaded_again(world: World) -> None:
    end_lsn = world.commit(3)
    world.step()
    archive = world.archive()
    world.store.delete(archive.keys.segment(1, START_LSN // WAL_SEG_SIZE + 1))
    world.archiver = world.new_archiver()
    world.step()
    world.step()
    assert world.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE
    with pytest.raises(ObjectNotFound):
        archive.history(2)


def test_an_archive_that_is_not_mounted_gets_no_wal(world: World) -> None:
    """An empty folder is there instead: nothing is written into it, also not after a restart."""
    world.commit(2)
    assert world.take_turn()
    archived_lsn = world.progress.archived_lsn
    world.timeline.maintain_files()  # saves how far it was archived
    away = world.store.root.rename(world.store.root.with_name("away"))
    world.store.root.mkdir()
    end_lsn = world.commit(2)
    for archiver in (world.archiver, world.new_archiver()):
        world.archiver = archiver
        assert not world.take_turn()
        assert "is its file system mounted" in world.progress.error
        assert list(world.store.root.iterdir()) == []
        assert world.progress.archived_lsn <= archived_lsn
        world.seconds += INTERVAL_SECONDS
    world.store.root.rmdir()
    away.rename(world.store.root)
    assert world.take_turn()
    assert world.progress.error == ""
    assert world.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE


def test_the_operator_may_begin_another_archive(world: World, tmp_path: Path) -> None:
    end_lsn = world.commit(2)
    world.step()
    world.timeline.maintain_files()
    world.store = BrokenStore(str(tmp_path / "another"))
    world.archiver = world.new_archiver()
    with pytest.raises(ArchiveError, match="does not have the archive of timeline"):
        world.step()
    world.progress.settings = replace(world.progress.settings, may_begin=True)
    world.step()
    assert world.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE


def test_a_first_archive_may_begin_after_a_restart(world: World) -> None:
    """The store failed, and the safekeeper restarted: nothing was archived yet."""
    end_lsn = world.commit(2)
    world.store.is_broken = True
    assert not world.take_turn()
    world.timeline.maintain_files()
    world.store.is_broken = False
    world.archiver = world.new_archiver()
    assert world.take_turn()
    assert world.reached_lsn() == end_lsn - end_lsn % WAL_SEG_SIZE
