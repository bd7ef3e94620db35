"""`sk archive verify` and `prune`, on archives that are wrong in one place each."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from archived_log import FIRST_SEGNO, LAST_SEGNO, SEG_SIZE, TIMELINE, log, log_facts, log_of
from wal_log import SYSTEM_ID, WalLog

from quorum_wal.backup.archived_log import Gap, archived_log, stored_wal
from quorum_wal.backup.prune import plan_pruning
from quorum_wal.backup.verify import ArchiveAddress, Verdict, check_segment, verify, verify_fast
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn

ONE = TimelineHistory(1)
SEGNOS = range(FIRST_SEGNO, FIRST_SEGNO + 4)
BEGIN_LSN = FIRST_SEGNO * SEG_SIZE


@pytest.fixture
def archive(tmp_path: Path) -> TimelineArchive:
    """Four segments."""
    made = TimelineArchive.create(open_store(str(tmp_path)), TIMELINE, log_facts())
    for segno in SEGNOS:
        put(made, log_of(segno), segno)
    return made


def put(archive: TimelineArchive, content: bytes, segno: int, tli: int = 1) -> None:
    wal = ArchivedWal(tli, segno, segno * SEG_SIZE + len(content))
    archive.store.delete(archive.keys.key(wal))
    archive.put_wal(wal, content)


def verified(
    archive: TimelineArchive, begin_lsn: int = BEGIN_LSN, history: TimelineHistory = ONE
) -> Verdict:
    address = ArchiveAddress(archive.store.url, {}, archive.timeline, archive.facts)
    return verify(address, archived_log(archive, history, begin_lsn), jobs=1)


def fast(archive: TimelineArchive) -> Verdict:
    return verify_fast(archive.store, archived_log(archive, ONE, BEGIN_LSN), SEG_SIZE)


def damaged_segnos(verdict: Verdict) -> list[int]:
    return [int(each.key[-2:], 16) for each in verdict.damages]


def test_a_sound_archive(archive: TimelineArchive) -> None:
    done: list[int] = []
    address = ArchiveAddress(archive.store.url, {}, archive.timeline, archive.facts)
    verdict = verify(address, archived_log(archive, ONE, BEGIN_LSN + 5000), done.append, jobs=2)
    assert verdict.is_sound
    assert (verdict.begin_lsn, verdict.end_lsn) == (BEGIN_LSN, SEGNOS.stop * SEG_SIZE)
    assert (verdict.objects, verdict.content_bytes) == (4, 4 * SEG_SIZE)
    assert done == [SEG_SIZE] * 4
    assert fast(archive) == verdict


def test_the_end_inside_of_a_segment(archive: TimelineArchive) -> None:
    end_lsn = log().boundary_after(SEGNOS.stop * SEG_SIZE + 50_000)
    put(archive, log().read(SEGNOS.stop * SEG_SIZE, end_lsn), SEGNOS.stop)
    verdict = verified(archive)
    assert verdict.is_sound
    assert verdict.end_lsn == end_lsn


def test_every_gap_is_reported(archive: TimelineArchive) -> None:
    put(archive, log_of(10), 10)
    put(archive, log_of(11)[:8192], 11)
    put(archive, log_of(12), 12)
    for verdict in (verified(archive, 2 * SEG_SIZE), fast(archive)):
        assert not verdict.is_sound
        assert verdict.damages == ()
        assert verdict.gaps[-2:] == (
            Gap(SEGNOS.stop * SEG_SIZE, 10 * SEG_SIZE),
            Gap(11 * SEG_SIZE + 8192, 12 * SEG_SIZE),
        )
    assert verified(archive, 2 * SEG_SIZE).gaps[0] == Gap(2 * SEG_SIZE, BEGIN_LSN)
    assert str(Gap(2 * SEG_SIZE, BEGIN_LSN)) == "0/200000 to 0/300000"
    log = archived_log(archive, ONE, BEGIN_LSN, 15 * SEG_SIZE)
    assert log.gaps[-1] == Gap(13 * SEG_SIZE, 15 * SEG_SIZE)
    assert archived_log(archive, ONE, 12 * SEG_SIZE, 13 * SEG_SIZE).gaps == ()


@pytest.mark.parametrize("segno", [SEGNOS[0], SEGNOS[1], SEGNOS[-1]])
@pytest.mark.parametrize("place", [10, 60, SEG_SIZE // 2, SEG_SIZE - 100])
def test_a_changed_byte(archive: TimelineArchive, segno: int, place: int) -> None:
    """With a valid seal, as if it had been written so: in a page header, in a record, in a record
    that continues in the next segment."""
    content = bytearray(log_of(segno))
    content[place] ^= 0x40
    put(archive, bytes(content), segno)
    found = damaged_segnos(verified(archive))
    is_torn = place == SEG_SIZE - 100
    if is_torn and segno == SEGNOS[-1]:
        assert found == []  # in a record whose end is not archived yet
    else:
        # The error is found in the next segment, where the record ends.
        assert found == ([segno + 1] if is_torn else [segno])
    assert fast(archive).is_sound


def test_every_damage_is_reported(archive: TimelineArchive) -> None:
    keys = [archive.keys.segment(1, segno) for segno in SEGNOS]
    archive.store.put(keys[0], archive.store.get(keys[0])[:-1])
    archive.store.put(keys[2], b"")
    put(archive, log_of(9), SEGNOS[3])
    assert damaged_segnos(verified(archive)) == [SEGNOS[0], SEGNOS[2], SEGNOS[3]]
    assert [each.key for each in fast(archive).damages] == [keys[0], keys[2]]


def test_segments_of_different_logs(archive: TimelineArchive) -> None:
    """Each segment is sound; the second one follows another first segment."""
    other = WalLog(FIRST_SEGNO * SEG_SIZE)
    number = 0
    while other.lsn <= SEGNOS.stop * SEG_SIZE:
        other.append(f"other {number}", 4000)
        number += 1
    for segno in SEGNOS[2:]:
        put(archive, other.read(segno * SEG_SIZE, (segno + 1) * SEG_SIZE), segno)
    assert damaged_segnos(verified(archive)) == [SEGNOS[2]]


def test_a_record_over_many_segments(tmp_path: Path) -> None:
    """The segments in the middle contain no start of a record."""
    builder = WalLog(FIRST_SEGNO * SEG_SIZE)
    builder.append("small", 100)
    builder.append("great", 3 * SEG_SIZE)
    builder.append("behind", 2 * SEG_SIZE)
    archive = TimelineArchive.create(open_store(str(tmp_path)), TIMELINE, log_facts())
    for segno in range(FIRST_SEGNO, builder.lsn // SEG_SIZE):
        put(archive, builder.read(segno * SEG_SIZE, (segno + 1) * SEG_SIZE), segno)
    assert verified(archive).is_sound
    middle = bytearray(log_of(FIRST_SEGNO))
    middle[:] = builder.read(5 * SEG_SIZE, 6 * SEG_SIZE)
    middle[500_000] ^= 1
    put(archive, bytes(middle), 5)
    assert damaged_segnos(verified(archive)) == [6]  # the segment in which that record ends


@pytest.mark.parametrize("is_right", [True, False])
def test_a_switch_of_timelines(archive: TimelineArchive, *, is_right: bool) -> None:
    """The pages after it have the new timeline; records continue."""
    at = log().boundary_after(4 * SEG_SIZE + 100_000)
    newer = log().cut(at, tli=2 if is_right else 1)
    while newer.lsn <= 6 * SEG_SIZE:
        newer.append("n", 3000)
    two = TimelineHistory(2, (TimelineSwitch(1, Lsn(at), "test"),))
    for segno in (4, 5):
        put(archive, newer.read(segno * SEG_SIZE, (segno + 1) * SEG_SIZE), segno, tli=2)
    verdict = verified(archive, history=two)
    assert verdict.gaps == ()
    assert verdict.end_lsn == 6 * SEG_SIZE  # later WAL of timeline 1 is another log
    assert damaged_segnos(verdict) == ([] if is_right else [4, 5])


def test_of_another_server(archive: TimelineArchive) -> None:
    content = bytearray(log_of(4))
    struct.pack_into("<Q", content, 24, SYSTEM_ID + 1)
    put(archive, bytes(content), 4)
    (stored,) = [each for each in stored_wal(archive) if each.wal.segno == 4]
    address = ArchiveAddress(archive.store.url, {}, archive.timeline, archive.facts)
    assert "different database system" in check_segment(address, ONE, stored).damage


# ---- prune


def test_the_wal_to_remove(archive: TimelineArchive) -> None:
    for length in (8192, 16384):
        put(archive, log_of(5)[:length], 5)
        put(archive, log_of(7)[:length], 7)
    stored = list(stored_wal(archive))
    pruning = plan_pruning(stored, ONE, 5 * SEG_SIZE + 5000, SEG_SIZE)
    assert pruning.horizon_lsn == 5 * SEG_SIZE
    assert [each.wal.segno for each in pruning.below] == [3, 4]
    assert [(each.wal.segno, each.wal.end_lsn % SEG_SIZE) for each in pruning.replaced] == [
        (5, 8192),
        (5, 16384),
        (7, 8192),
    ]
    for each in pruning.all:
        archive.store.delete(each.info.key)
    verdict = verified(archive, 5 * SEG_SIZE)
    assert verdict.is_sound
    assert verdict.end_lsn == 7 * SEG_SIZE + 16384
    again = plan_pruning(list(stored_wal(archive)), ONE, 5 * SEG_SIZE, SEG_SIZE)
    assert again.all == ()


def test_the_oldest_is_removed_first(archive: TimelineArchive) -> None:
    """Over all timelines: an interrupted pruning leaves no gap."""
    put(archive, log_of(3), 3, tli=2)
    put(archive, log_of(4)[:8192], 4, tli=2)
    two = TimelineHistory(2, (TimelineSwitch(1, Lsn(3 * SEG_SIZE + 8), "test"),))
    pruning = plan_pruning(list(stored_wal(archive)), two, LAST_SEGNO * SEG_SIZE, SEG_SIZE)
    segnos = [each.wal.segno for each in pruning.below]
    assert segnos == sorted(segnos)
    assert len(segnos) == 6


def test_a_beginning_is_replaced_meanwhile(archive: TimelineArchive) -> None:
    """Between the listing and the read: by a longer one, or by the whole segment."""
    put(archive, log_of(7)[:16384], 7)
    log = archived_log(archive, ONE, BEGIN_LSN)
    address = ArchiveAddress(archive.store.url, {}, archive.timeline, archive.facts)
    for length in (24576, SEG_SIZE):
        put(archive, log_of(7)[:length], 7)
        archive.drop_partials(1, 7, 7 * SEG_SIZE + length)
        assert check_segment(address, ONE, log.pieces[-1]).damage == ""
        assert verify_fast(archive.store, log, SEG_SIZE).is_sound
