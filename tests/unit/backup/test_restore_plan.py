"""The end of the log, the transactions that end in it, and restores that are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from odd_wal import MIB, OddWal
from wal_log import SYSTEM_ID

from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.replayable_log import POSTGRES_EPOCH
from quorum_wal.backup.restore_plan import LiveLog, RestorePlanner
from quorum_wal.backup.target import AtLsn, AtTime, AtXid, Latest
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

MAJOR = 16
START_LSN = 2 * MIB
NOW = datetime(2026, 11, 21, tzinfo=UTC)
COMMIT, ABORT, COMMIT_PREPARED, HAS_INFO = 0x00, 0x20, 0x30, 0x80


def main_data(data: bytes) -> bytes:
    """The body of a record that has only main data."""
    assert len(data) < 256
    return struct.pack("<BB", 255, len(data)) + data


@dataclass
class World:
    """A log with one transaction per second; `commit` writes one, `filler` the WAL between them."""

    writer: OddWal = field(default_factory=lambda: OddWal(START_LSN, major=MAJOR))
    seconds: int = 0

    def filler(self, until_lsn: int) -> None:
        while self.writer.lsn < until_lsn:
            self.writer.record(4000)

    def end_of_transaction(self, xid: int, info: int = COMMIT, rest: bytes = b"") -> int:
        """Returns the end of its record."""
        self.seconds += 1
        microseconds = (self.time - POSTGRES_EPOCH) // timedelta(microseconds=1)
        body = main_data(struct.pack("<q", microseconds) + rest)
        self.writer.write(body, rmgr_id=1, info=info, xid=xid)
        return self.writer.lsn

    @property
    def time(self) -> datetime:
        """The time of the last transaction."""
        return NOW + timedelta(seconds=self.seconds)

    def segment(self, segno: int, end_lsn: int) -> bytes:
        begin = segno * MIB - START_LSN
        return bytes(self.writer.wal[begin : min(begin + MIB, end_lsn - START_LSN)])


@dataclass
class LiveSource:
    """A WalSource of all WAL that the world has written."""

    world: World
    server: ServerFacts | None = None

    def history(self, tli: int) -> bytes | None:
        return None

    def segment(self, name: str) -> bytes:
        for segno in range(START_LSN // MIB, self.world.writer.lsn // MIB + 1):
            if format_segment_name(1, segno, MIB) == name:
                return self.world.segment(segno, self.world.writer.lsn)
        return b""


Archiving = Callable[[World, int], TimelineArchive]


@pytest.fixture
def archived(tmp_path: Path) -> Archiving:
    """The archive of a world's log up to a position."""

    def make(world: World, end_lsn: int) -> TimelineArchive:
        facts = ArchivedTimeline(SYSTEM_ID, MAJOR * 10000, MIB, 1, START_LSN)
        timeline = TimelineId(bytes(16), bytes(16))
        archive = TimelineArchive.create(LocalStore(str(tmp_path)), timeline, facts)
        for segno in range(START_LSN // MIB, (end_lsn - 1) // MIB + 1):
            wal = ArchivedWal(1, segno, min(end_lsn, (segno + 1) * MIB))
            archive.put_wal(wal, world.segment(segno, end_lsn))
        return archive

    return make


def live(world: World, begin_lsn: int = START_LSN) -> LiveLog:
    return LiveLog(LiveSource(world), begin_lsn, world.writer.lsn, TimelineHistory(1))


def backup(start_lsn: int, stop_lsn: int, at: datetime = NOW) -> Backup:
    return Backup(
        backup_id=format_backup_id(at, start_lsn),
        label="",
        system_id=SYSTEM_ID,
        pg_version=MAJOR * 10000,
        start_lsn=start_lsn,
        start_tli=1,
        stop_lsn=stop_lsn,
        stop_tli=1,
        started_at=at,
        stopped_at=at,
        from_standby=False,
        archives=(),
    )


def test_the_end_and_the_last_commit(archived: Archiving) -> None:
    """The last commit is in the last segment, long before, or across the end of a segment. Aborts,
    and records after the commit, do not count."""
    world = World()
    world.end_of_transaction(700)
    world.filler(START_LSN + 5 * MIB - 20_000)
    world.writer.fill_page_to(24)
    while world.writer.lsn % MIB < MIB - 8192:
        world.writer.fill_page_to(24)
    last_lsn = world.end_of_transaction(701)
    last_at = world.time
    assert (last_lsn - 1) // MIB != world.writer.records[-1].start_lsn // MIB
    world.end_of_transaction(702, ABORT)
    world.filler(world.writer.lsn + 3 * MIB)
    end_lsn = world.writer.lsn
    first = backup(START_LSN, START_LSN + 100)
    planned = RestorePlanner(archived(world, end_lsn)).plan([first], Latest())
    assert planned.end.lsn == end_lsn
    assert planned.end.last_commit is not None
    assert planned.end.last_commit.time == last_at
    assert planned.end.last_commit.end_lsn == last_lsn


def test_a_record_that_is_not_whole_does_not_count(archived: Archiving) -> None:
    """The archive ends with a segment inside of a record."""
    world = World()
    world.end_of_transaction(700)
    world.filler(START_LSN + MIB + 1)
    last = world.writer.records[-1]
    assert last.start_lsn < START_LSN + MIB < last.end_lsn
    planner = RestorePlanner(archived(world, START_LSN + MIB))
    end = planner.plan([backup(START_LSN, START_LSN + 100)], Latest()).end
    assert (end.lsn, end.last_record_lsn) == (last.start_lsn, last.prev_lsn)


def test_a_transaction_is_found_even_if_it_was_prepared(archived: Archiving) -> None:
    world = World()
    stops = []
    for number in range(3):
        stops.append(world.end_of_transaction(800 + number))
        world.filler(world.writer.lsn + MIB // 2)
    # flags: subtransactions, relations, dropped statistics, invalidations, two-phase
    rest = struct.pack("<I", 0x02 | 0x04 | 0x08 | 0x10 | 0x100)
    rest += struct.pack("<I", 2) + bytes(8) + struct.pack("<I", 1) + bytes(12)
    rest += struct.pack("<I", 1) + bytes(12) + struct.pack("<I", 3) + bytes(48)
    rest += struct.pack("<I", 900)
    world.end_of_transaction(0, COMMIT_PREPARED | HAS_INFO, rest)
    world.end_of_transaction(999)
    backups = [
        backup(START_LSN, stop_lsn, NOW + timedelta(days=n)) for n, stop_lsn in enumerate(stops)
    ]
    planner = RestorePlanner(archived(world, world.writer.lsn))
    for xid, expected in ((801, 0), (802, 1), (900, 2), (999, 2)):
        assert planner.plan(backups, AtXid(xid)).backup == backups[expected], xid
    for xid in (800, 1000):
        with pytest.raises(BackupError, match=f"no end of transaction {xid}"):
            planner.plan(backups, AtXid(xid))


def test_safekeepers_have_wal_that_is_not_archived(archived: Archiving) -> None:
    world = World()
    world.filler(START_LSN + MIB)
    archive = archived(world, world.writer.lsn)
    archived_lsn = world.writer.lsn
    world.end_of_transaction(700)
    world.filler(world.writer.lsn + MIB)
    first, second = backup(START_LSN, START_LSN + 100), backup(archived_lsn, world.writer.lsn)
    both = [first, second]
    assert RestorePlanner(archive).plan(both, Latest()).backup == first
    planned = RestorePlanner(archive, live(world)).plan(both, Latest())
    assert planned.backup == second
    assert planned.end.lsn == world.writer.lsn
    with pytest.raises(BackupError, match=r"but WAL after .* is missing"):
        RestorePlanner(archive, live(world, archived_lsn + 8)).plan([first], Latest())
    with pytest.raises(BackupError, match="the log does not reach"):
        RestorePlanner(archive).plan([second], Latest())


def test_a_gap_behind_the_backup(archived: Archiving) -> None:
    """Newer backups can be restored; an older one only up to the gap."""
    world = World()
    world.end_of_transaction(700)
    world.filler(START_LSN + 4 * MIB)
    world.end_of_transaction(701)
    world.filler(START_LSN + 5 * MIB)
    archive = archived(world, world.writer.lsn)
    archive.store.delete(archive.keys.segment(1, START_LSN // MIB + 2))
    older = backup(START_LSN, START_LSN + 100)
    newer = backup(START_LSN + 3 * MIB, START_LSN + 3 * MIB + 100, NOW + timedelta(days=1))
    planner = RestorePlanner(archive)
    assert planner.plan([older, newer], Latest()).backup == newer
    assert planner.plan([older, newer], AtLsn(START_LSN + MIB)).backup == older
    with pytest.raises(BackupError, match="is not before the end of the log: 0/3FF"):
        planner.plan([older, newer], AtLsn(START_LSN + 2 * MIB))
    for target, wanted in ((AtTime(NOW), None), (Latest(), older)):
        with pytest.raises(BackupError, match="the log is complete only up to 0/400000"):
            planner.plan([older, newer], target, wanted)
    with pytest.raises(BackupError, match=r"up to 0/70.*, but WAL after 0/3FF... is missing"):
        planner.plan([older], Latest())


def test_a_backup_of_a_deposed_server(archived: Archiving) -> None:
    """It ended after the switch, on the old timeline, so no WAL of the log can be replayed on it,
    wherever the log ends."""
    world = World()
    world.filler(START_LSN + 2 * MIB)
    archive = archived(world, world.writer.lsn)
    switch_lsn = START_LSN + MIB // 2
    archive.put_history(TimelineHistory(2, (TimelineSwitch(1, Lsn(switch_lsn), "promoted"),)))
    for segno in (2, 3):
        wal = ArchivedWal(2, segno, (segno + 1) * MIB)
        archive.put_wal(wal, world.segment(segno, world.writer.lsn))
    good, stray = backup(START_LSN, switch_lsn), backup(START_LSN, switch_lsn + 8)
    planner = RestorePlanner(archive)
    assert planner.plan([good, stray], Latest()).backup == good
    for backups, wanted in (([stray], None), ([good, stray], stray)):
        with pytest.raises(BackupError, match=r"there is no backup|cannot be used: it ends at"):
            planner.plan(backups, Latest(), wanted)


def test_no_backup(archived: Archiving) -> None:
    world = World()
    world.filler(START_LSN + MIB)
    with pytest.raises(BackupError, match="there is no backup"):
        RestorePlanner(archived(world, world.writer.lsn)).plan([], Latest())
