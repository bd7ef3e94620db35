"""Damaged bytes on the safekeeper that archives: none of them is archived, the status reports it,
and the right bytes come from another member, or from the same one when it is repaired."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest
from new_timeline import TIMELINE
from socket_client import SocketClient
from timeline_on_disk import leading_pusher
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.messages import CopyData, Query
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiverState, ArchiveSettings
from quorum_wal.safekeeper.archive_turn import TAKEOVER_SECONDS, rank_of
from quorum_wal.safekeeper.archiver import Archiver
from quorum_wal.safekeeper.segment_repair import MENDED, SegmentRepair
from quorum_wal.safekeeper.status import timeline_status

SECOND_LSN = START_LSN + WAL_SEG_SIZE
DAMAGE = "is damaged: its bytes are not the bytes that were written"
TIMEOUT_SECONDS = 10.0
#: Of a new timeline.
MEMBERS = (1, 2, 3)


class Member:
    """A safekeeper that has the log, and archives in its turn: `rank`-th in line."""

    def __init__(self, folder: Path, store: LocalStore, log: WalLog, rank: int) -> None:
        line = sorted(MEMBERS, key=lambda member: rank_of(member, MEMBERS, TIMELINE))
        pusher = leading_pusher(folder, line[rank])
        pusher.log = log
        pusher.push()
        pusher.push(commit_lsn=log.lsn, truncate_lsn=log.lsn)
        self.timeline = pusher.timeline
        settings = ArchiveSettings(store.url, {}, partial_interval_seconds=0)
        self.progress = self.timeline.archive = ArchiveProgress(settings, START_LSN)
        self.seconds = 0.0
        self.archiver = Archiver(self.timeline, store, self.progress, lambda: self.seconds)

    def archive(self) -> None:
        """One turn."""
        with ThreadPoolExecutor(1) as pool:
            self.archiver.take_turn(pool)

    def rot(self, lsn: int) -> None:
        path = self.timeline.store.newest_file(lsn)
        content = bytearray(path.read_bytes())
        content[lsn % WAL_SEG_SIZE] ^= 0x10
        path.write_bytes(content)

    def mend(self, lsn: int, segment: bytes) -> None:
        """As a proposer does with the bytes of a member that has them."""
        client = SocketClient()
        session = client.start()
        client.send(Query("MEND_SEGMENT"))
        session.read_command()
        mending = Thread(target=SegmentRepair(self.timeline, lsn).run, args=(session,))
        mending.start()
        client.receive_until(State.COPY_BOTH)
        client.send(CopyData(segment))
        assert client.receive() == CopyData(MENDED)
        client.close()
        mending.join(TIMEOUT_SECONDS)
        session.close()


@pytest.fixture
def log() -> WalLog:
    log = WalLog()
    while log.lsn < START_LSN + 3.5 * WAL_SEG_SIZE:
        log.append("R", 30_000)
    return log


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "archive"))


@pytest.fixture
def first(tmp_path: Path, store: LocalStore, log: WalLog) -> Member:
    return Member(tmp_path / "first", store, log, rank=0)


def archived_lsn(store: LocalStore, log: WalLog) -> int:
    """How far the archive can be replayed; checks that its bytes are the right ones."""
    archive = TimelineArchive.open(store, TIMELINE)
    for info in store.list(archive.keys.wal):
        wal = archive.keys.parse_wal(info.key)
        assert wal is not None
        assert archive.read(wal) == log.read(wal.segno * WAL_SEG_SIZE, wal.end_lsn)
    return archive.archived_lsn(TimelineHistory(1), START_LSN)


def test_a_damaged_segment_is_not_uploaded_and_the_status_reports_it(
    first: Member, store: LocalStore, log: WalLog
) -> None:
    first.rot(SECOND_LSN + 500_000)
    first.archive()
    assert archived_lsn(store, log) == first.progress.archived_lsn == SECOND_LSN
    status = timeline_status(first.timeline)
    assert status["archive"]["state"] == ArchiverState.RETRYING.value
    assert DAMAGE in status["archive"]["error"]
    assert "segment 000000010000000000000002 at 0/200000 is damaged" in status["damage"][0]


def test_damage_in_the_last_segment_is_not_uploaded_either(
    first: Member, store: LocalStore, log: WalLog
) -> None:
    """The end of the log is lost then, and nothing above it is archived until it is repaired."""
    first.rot(log.starts[-3] + 1000)
    for error in (DAMAGE, "None"):
        first.archive()
        status = timeline_status(first.timeline)
        assert error in str(status["archive"]["error"])
        assert "WAL was flushed up to" in status["damage"][0]
        assert archived_lsn(store, log) == START_LSN + 3 * WAL_SEG_SIZE


def test_another_member_archives_a_segment_that_is_damaged_here(
    tmp_path: Path, first: Member, store: LocalStore, log: WalLog
) -> None:
    """It sees that nothing arrives, and uploads when its wait ends."""
    second = Member(tmp_path / "second", store, log, rank=1)
    first.rot(SECOND_LSN)
    for member in (first, second):
        member.archive()
    assert archived_lsn(store, log) == SECOND_LSN
    for _ in range(3):
        second.seconds += TAKEOVER_SECONDS
        second.archive()
    assert archived_lsn(store, log) == log.lsn
    assert timeline_status(second.timeline)["archive"]["error"] is None


def test_a_member_that_is_repaired_archives_it_itself(
    first: Member, store: LocalStore, log: WalLog
) -> None:
    first.rot(SECOND_LSN + WAL_SEG_SIZE - 1)
    first.archive()
    assert archived_lsn(store, log) == SECOND_LSN
    first.mend(SECOND_LSN, log.read(SECOND_LSN, SECOND_LSN + WAL_SEG_SIZE))
    first.archive()
    assert archived_lsn(store, log) == first.progress.archived_lsn == log.lsn
    status = timeline_status(first.timeline)
    assert (status["archive"]["error"], status["damage"]) == (None, [])
    assert status["archive"]["state"] == ArchiverState.ARCHIVING.value
