"""The source of a repaired segment: another member's disk, or that member's archive if it has
removed the segment. There is no other source: without it the member stays damaged, reports it, and
gives no vote. Safekeepers and the repair are real; the log is written by hand."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import hand_written_proposer as by_hand
import pytest
from hand_written_proposer import HandWrittenProposer
from wal_log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.messages import Append, Elected, ServerFacts, VoteRequest, VoteResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import segno_of
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.config import SafekeeperConfig
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.retention import RetentionPolicy
from quorum_wal.safekeeper.service import Safekeeper
from quorum_wal.safekeeper.status import damage_of, timeline_status
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.segment_repair import SegmentRepair
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.peer import open_repair

TIMEOUT = 10.0
SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
#: The second member is the first one that archives it.
TIMELINE = TimelineId(b"mending".ljust(16, b"\0"), bytes(7) + b"\1".ljust(9, b"\0"))
BALLOT = NodeId(1, b"written by hand!")
MEMBERSHIP = by_hand.first_membership(1, 2, 3).stamped(Stamp(BALLOT, 1))
PIECE_BYTES = 256 * 1024
KEEP_LITTLE = RetentionPolicy(wal_keep_bytes=0)
#: No client needs the old segment; the late one is the last whole one, which all members keep.
OLD_LSN = START_LSN + WAL_SEG_SIZE
LATE_LSN = START_LSN + 4 * WAL_SEG_SIZE


class OneLook(StopSignal):
    """Lets the repair check all members once."""

    is_set = has_looked = False

    def __init__(self) -> None:
        """It never waits, so no wakeup is needed."""

    def wait(self, timeout_seconds: float | None = None) -> bool:
        has_looked, self.has_looked = self.has_looked, True
        return has_looked


class Cluster:
    """Two of three members: `rotten` keeps its WAL, `donor` archives it and keeps little."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.log = WalLog()
        while self.log.lsn < LATE_LSN + 1.5 * WAL_SEG_SIZE:
            self.log.append("R", 30_000)
        self.store = LocalStore(str(folder / "archive"))
        archive = ArchiveSettings(self.store.url, {})
        local = ("127.0.0.1", 0, "127.0.0.1", 0)
        configs = (
            SafekeeperConfig(1, folder / "1", *local),
            SafekeeperConfig(2, folder / "2", *local, retention=KEEP_LITTLE, archive=archive),
        )
        self.safekeepers = [stack.enter_context(Safekeeper(config)) for config in configs]
        for safekeeper in self.safekeepers:
            self._fill(safekeeper)
        self.rotten, self.donor = (s.timelines.get(TIMELINE) for s in self.safekeepers)
        wait_until(self._is_archived, TIMEOUT, "the log to be archived")
        self.run_housekeeping(1, lambda: self.donor.control.local_start_lsn > OLD_LSN)
        assert self.donor.control.local_start_lsn < LATE_LSN

    def _fill(self, safekeeper: Safekeeper) -> None:
        """Write WAL that is committed, and flushed by all members."""
        by_hand.create_timeline(
            safekeeper.address, TIMELINE, SERVER, members=(1, 2, 3), start_lsn=START_LSN
        )
        log, terms = self.log, TermHistory.initial(START_LSN).extended(BALLOT, START_LSN)
        with greeted(safekeeper) as proposer:
            proposer.ask(VoteRequest(Stamp.FIRST, BALLOT))
            proposer.ask(
                Elected(BALLOT, START_LSN, START_LSN, MEMBERSHIP, terms, TimelineHistory(1))
            )
            for lsn in range(START_LSN, log.lsn, PIECE_BYTES):
                end_lsn = min(lsn + PIECE_BYTES, log.lsn)
                ends = [lsn for lsn in log.ends if lsn <= end_lsn]
                wal = log.read(lsn, end_lsn)
                proposer.ask(Append(1, BALLOT, lsn, end_lsn, max(ends), 0, 0, wal))
            proposer.ask(Append(1, BALLOT, log.lsn, log.lsn, log.lsn, log.lsn, log.lsn, b""))

    def _is_archived(self) -> bool:
        archive = self.donor.archive
        return archive is not None and archive.archived_lsn > LATE_LSN

    def run_housekeeping(self, member: int, is_done: Callable[[], bool]) -> None:
        """Earlier than it would run by itself."""
        self.safekeepers[member].timelines.get(TIMELINE).hooks.wants_housekeeping()
        wait_until(is_done, TIMEOUT, "old WAL to go")

    def look(self) -> None:
        """The check that the proposer makes every few seconds."""
        addresses = [SafekeeperAddress.parse(s.address) for s in self.safekeepers]
        SegmentRepair(lambda: addresses, TIMELINE, WAL_SEG_SIZE, lambda: BALLOT).run(OneLook())

    def archived(self, lsn: int) -> bytes:
        """Raises ObjectNotFound."""
        archive = TimelineArchive.open(self.store, TIMELINE)
        return archive.read_segment(1, segno_of(lsn, WAL_SEG_SIZE))

    def votes(self) -> list[bool]:
        """The members that would vote for the ballot that all have promised."""
        granted = []
        for safekeeper in self.safekeepers:
            with greeted(safekeeper) as proposer:
                vote = proposer.ask(VoteRequest(MEMBERSHIP.stamp, BALLOT))
                assert isinstance(vote, VoteResponse)
                granted.append(vote.granted)
        return granted


@contextmanager
def greeted(safekeeper: Safekeeper) -> Iterator[HandWrittenProposer]:
    status = timeline_status(safekeeper.timelines.get(TIMELINE))
    with HandWrittenProposer(safekeeper.address, TIMELINE) as proposer:
        proposer.ask(by_hand.lawful_greeting(status))
        yield proposer


def rot(timeline: Timeline, lsn: int) -> None:
    """Flip one bit, and let a client read the segment, which gets nothing."""
    (byte,) = timeline.store.read(lsn, 1)
    with timeline.store.newest_file(lsn).open("r+b") as file:
        file.seek(lsn % WAL_SEG_SIZE)
        file.write(bytes([byte ^ 0x10]))
    with pytest.raises(WalDamaged):
        read_wal(timeline, lsn, 100)
    assert len(damage_of(timeline)) == 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


@pytest.mark.parametrize("lsn", [LATE_LSN, OLD_LSN], ids=["its disk", "its archive"])
def test_a_segment_is_repaired_from_another_member(cluster: Cluster, lsn: int) -> None:
    """The other member reads it from its disk, or from its archive if it has removed it."""
    rot(cluster.rotten, lsn + 500_000)
    assert cluster.votes() == [False, True]
    cluster.look()
    assert damage_of(cluster.rotten) == []
    assert read_wal(cluster.rotten, lsn, WAL_SEG_SIZE) == cluster.log.read(lsn, lsn + WAL_SEG_SIZE)
    assert cluster.votes() == [True, True]


def test_without_a_source_a_segment_stays_damaged(cluster: Cluster) -> None:
    """Until retention passes it."""
    archive = TimelineArchive.open(cluster.store, TIMELINE)
    cluster.store.delete(archive.keys.segment(1, segno_of(OLD_LSN, WAL_SEG_SIZE)))
    rot(cluster.rotten, OLD_LSN)
    cluster.look()
    (damage,) = damage_of(cluster.rotten)
    assert "segment 000000010000000000000002 at 0/200000 is damaged" in damage
    assert cluster.votes() == [False, True]
    assert timeline_status(cluster.rotten)["retention"]["held_by"] == "wal_keep"
    cluster.rotten.retention = KEEP_LITTLE
    cluster.run_housekeeping(0, lambda: cluster.votes() == [True, True])
    assert damage_of(cluster.rotten) == []


def test_a_segment_damaged_on_all_members_is_not_taken_from_the_archive(cluster: Cluster) -> None:
    """Each member stays damaged and reports it, although the archive has the segment."""
    for timeline in (cluster.rotten, cluster.donor):
        rot(timeline, LATE_LSN + 100)
    cluster.look()
    assert cluster.archived(LATE_LSN) == cluster.log.read(LATE_LSN, LATE_LSN + WAL_SEG_SIZE)
    for timeline in (cluster.rotten, cluster.donor):
        assert f"segment {timeline.holes.name(timeline.store, 5)}" in damage_of(timeline)[0]
    assert cluster.votes() == [False, False]


def test_other_bytes_are_not_accepted(cluster: Cluster) -> None:
    """The WAL of a repair is decoded before it is written."""
    rot(cluster.rotten, LATE_LSN)
    address = SafekeeperAddress.parse(cluster.safekeepers[0].address)
    wal = bytearray(cluster.log.read(LATE_LSN, LATE_LSN + WAL_SEG_SIZE))
    wal[500_000] ^= 0x10
    copy = CopyConnection(open_repair(address, TIMELINE, LATE_LSN))
    with closing(copy):
        copy.send(bytes(wal))
        while copy.end is None:
            writes = [copy] if copy.wants_write else []
            assert any(select.select([copy], writes, [], TIMEOUT)), "no answer"
            copy.flush()
            assert copy.receive() == []
    assert "is damaged: " in str(copy.end)
    assert len(damage_of(cluster.rotten)) == 1
    assert cluster.votes() == [False, True]
