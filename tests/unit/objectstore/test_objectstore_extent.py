"""How far an archive reaches: gaps, partial objects, timelines, a switch inside a segment."""

from __future__ import annotations

import pytest
from archived_log import SEG_SIZE, TIMELINE, log_facts

from quorum_wal.objectstore.archive import TimelineArchive, find_timelines, require_archive
from quorum_wal.objectstore.errors import ArchiveError
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn

ONE = TimelineHistory(1)
START = 3 * SEG_SIZE


def history(tli: int, *switches: tuple[int, int]) -> TimelineHistory:
    return TimelineHistory(tli, tuple(TimelineSwitch(t, Lsn(lsn), "test") for t, lsn in switches))


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory://")


@pytest.fixture
def archive(store: ObjectStore) -> TimelineArchive:
    return TimelineArchive.create(store, TIMELINE, log_facts(3))


def put(archive: TimelineArchive, tli: int, segno: int, length: int = SEG_SIZE) -> ArchivedWal:
    wal = ArchivedWal(tli, segno, segno * SEG_SIZE + length)
    archive.put_wal(wal, bytes(length))
    return wal


def test_nothing(archive: TimelineArchive) -> None:
    assert archive.extent(ONE, START) == (START, [])
    assert archive.archived_lsn(ONE, START + 100) == START + 100


def test_up_to_the_first_gap(archive: TimelineArchive) -> None:
    chain = [put(archive, 1, segno) for segno in (3, 4, 5)]
    put(archive, 1, 7)
    assert archive.extent(ONE, START) == (6 * SEG_SIZE, chain)
    assert archive.extent(ONE, 4 * SEG_SIZE) == (6 * SEG_SIZE, chain[1:])
    assert archive.extent(ONE, 6 * SEG_SIZE) == (6 * SEG_SIZE, [])
    assert archive.archived_lsn(ONE, 7 * SEG_SIZE) == 8 * SEG_SIZE


def test_from_segment_zero(archive: TimelineArchive) -> None:
    chain = [put(archive, 1, segno) for segno in (0, 1)]
    assert archive.extent(ONE, 0) == (2 * SEG_SIZE, chain)


def test_the_longest_partial_object_ends_it(archive: TimelineArchive) -> None:
    whole = put(archive, 1, 3)
    put(archive, 1, 4, 100)
    longest = put(archive, 1, 4, 5000)
    put(archive, 1, 4, 4000)
    put(archive, 1, 5)
    assert archive.extent(ONE, START) == (4 * SEG_SIZE + 5000, [whole, longest])
    # From inside it: only WAL after it counts.
    assert archive.archived_lsn(ONE, 4 * SEG_SIZE + 4500) == 4 * SEG_SIZE + 5000
    assert archive.extent(ONE, 4 * SEG_SIZE + 5000) == (4 * SEG_SIZE + 5000, [])


def test_the_whole_segment_comes_before_its_partial_objects(archive: TimelineArchive) -> None:
    put(archive, 1, 3, 100)
    chain = [put(archive, 1, 3), put(archive, 1, 4)]
    assert archive.extent(ONE, START) == (5 * SEG_SIZE, chain)


@pytest.mark.parametrize("length", [8, 5000, SEG_SIZE - 8])
def test_a_switch_inside_a_segment(archive: TimelineArchive, length: int) -> None:
    """That segment is stored under its newest timeline."""
    switch_lsn = 5 * SEG_SIZE + length
    two = history(2, (1, switch_lsn))
    chain = [put(archive, 1, 3), put(archive, 1, 4)]
    old = put(archive, 1, 5, length)
    assert archive.extent(two, START) == (switch_lsn, [*chain, old])
    # The deposed primary's further WAL does not belong to this log.
    put(archive, 1, 5)
    put(archive, 1, 6)
    assert archive.extent(two, START) == (switch_lsn, [*chain, old])
    chain += [put(archive, 2, 5), put(archive, 2, 6)]
    assert archive.extent(two, START) == (7 * SEG_SIZE, chain)
    assert archive.archived_lsn(two, switch_lsn) == 7 * SEG_SIZE
    assert archive.archived_lsn(two, switch_lsn - 8) == 7 * SEG_SIZE
    # For a reader that does not know of the switch.
    assert archive.archived_lsn(ONE, START) == 7 * SEG_SIZE


def test_a_partial_object_of_the_newer_timeline(archive: TimelineArchive) -> None:
    two = history(2, (1, 4 * SEG_SIZE + 5000))
    chain = [put(archive, 1, 3)]
    put(archive, 1, 4, 5000)
    newer = put(archive, 2, 4, 6000)
    assert archive.extent(two, START) == (4 * SEG_SIZE + 6000, [*chain, newer])


def test_a_switch_between_two_segments(archive: TimelineArchive) -> None:
    two = history(2, (1, 5 * SEG_SIZE))
    chain = [put(archive, 1, 3), put(archive, 1, 4)]
    assert archive.archived_lsn(two, START) == 5 * SEG_SIZE
    put(archive, 1, 5)
    assert archive.archived_lsn(two, START) == 5 * SEG_SIZE
    chain.append(put(archive, 2, 5))
    assert archive.extent(two, START) == (6 * SEG_SIZE, chain)


def test_two_switches_in_one_segment(archive: TimelineArchive) -> None:
    four = history(4, (1, 4 * SEG_SIZE + 1000), (3, 4 * SEG_SIZE + 2000))
    chain = [put(archive, 1, 3)]
    put(archive, 1, 4, 1000)
    middle = put(archive, 3, 4, 2000)
    assert archive.extent(four, START) == (4 * SEG_SIZE + 2000, [*chain, middle])
    chain += [put(archive, 4, 4), put(archive, 4, 5)]
    assert archive.extent(four, START) == (6 * SEG_SIZE, chain)


def test_histories(archive: TimelineArchive) -> None:
    assert archive.histories() == []
    assert archive.newest_history() == ONE
    two, three = history(2, (1, START)), history(3, (1, START), (2, START + 8))
    for each in (three, two):
        archive.put_history(each)
    archive.store.put(f"{archive.keys.histories}README", b"a stranger's")
    assert archive.histories() == [two, three]
    assert archive.newest_history() == three


def test_partial_objects_are_deleted(archive: TimelineArchive) -> None:
    for length in (100, 200, 300):
        put(archive, 1, 4, length)
    archive.store.put(f"{archive.keys.partials(1, 4)}README", b"")
    archive.drop_partials(1, 4, 4 * SEG_SIZE + 200)
    assert [wal.end_lsn % SEG_SIZE for wal in archive.wal(1)] == [200, 300]
    archive.drop_partials(1, 4, 5 * SEG_SIZE)
    assert list(archive.wal(1)) == []
    assert [info.key for info in archive.store.list(archive.keys.wal)] != []  # the others stay


def test_which_timeline(store: ObjectStore, archive: TimelineArchive) -> None:
    store.put("README", b"")
    store.put("lost+found/x", b"")
    store.put(f"{'0' * 32}/somebody/x", b"")
    assert find_timelines(store) == [TIMELINE]
    assert require_archive(store, None).timeline == TIMELINE
    other = type(TIMELINE)(bytes(16), bytes(16))
    with pytest.raises(ArchiveError, match="has no timeline 0000") as error:
        require_archive(store, other)
    assert error.value.hint
    TimelineArchive.create(store, other, log_facts(3))
    with pytest.raises(ArchiveError, match="has 2 timelines: ") as error:
        require_archive(store, None)
    assert "--timeline" in error.value.hint
    with pytest.raises(ArchiveError, match="has 0 timelines"):
        require_archive(open_store("memory://"), None)
