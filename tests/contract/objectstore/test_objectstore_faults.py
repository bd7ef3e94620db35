"""An archive on a faulty store: with retries, the result is the same as on a correct store."""

from __future__ import annotations

import random
import secrets
import threading
from functools import partial

import pytest
from archived_log import SEG_SIZE, TIMELINE, log_facts, log_of
from faulty_store import FaultyStore, insist

from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ArchiveError, ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn

SEGMENTS = range(3, 9)
HISTORY = TimelineHistory(1)


@pytest.fixture
def seed() -> int:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return seed


def fill(archive: TimelineArchive, seed: int) -> None:
    """As an archiver does: partial segments now and then, whole segments, removal of partial
    ones."""
    moments = random.Random(seed)
    for segno in SEGMENTS:
        content = log_of(segno)
        for length in sorted(moments.sample(range(8, SEG_SIZE, 8), 2)):
            wal = ArchivedWal(1, segno, segno * SEG_SIZE + length)
            insist(partial(archive.put_wal, wal, content[:length]))
            insist(partial(archive.drop_partials, 1, segno, wal.end_lsn))
        whole = ArchivedWal(1, segno, (segno + 1) * SEG_SIZE)
        insist(partial(archive.put_wal, whole, content))
        insist(partial(archive.drop_partials, 1, segno, whole.end_lsn))


def assert_whole(archive: TimelineArchive) -> None:
    begin_lsn, end_lsn = SEGMENTS.start * SEG_SIZE, SEGMENTS.stop * SEG_SIZE
    assert archive.archived_lsn(HISTORY, begin_lsn) == end_lsn
    for segno in SEGMENTS:
        assert archive.read_segment(1, segno) == log_of(segno)
    assert [wal.segno for wal in archive.wal(1)] == list(SEGMENTS)  # and no other object


def test_an_archiver_on_a_faulty_store(durable_store: ObjectStore, seed: int) -> None:
    faulty = FaultyStore(durable_store, seed)
    archive = insist(lambda: TimelineArchive.create(faulty, TIMELINE, log_facts(SEGMENTS.start)))
    for beginning in range(2):  # the second of them finds all objects
        fill(archive, seed + beginning)
    switch = TimelineSwitch(1, Lsn(SEGMENTS.stop * SEG_SIZE), "no reason")
    insist(lambda: archive.put_history(TimelineHistory(2, (switch,))))
    assert faulty.faults > 10
    good = TimelineArchive.open(durable_store, TIMELINE)
    assert_whole(good)
    assert good.newest_history().entries == (switch,)


def test_two_archivers_on_a_faulty_store(durable_store: ObjectStore, seed: int) -> None:
    """At the same time, as when one was deposed and does not know it yet."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            faulty = FaultyStore(durable_store, seed + number)
            facts = log_facts(SEGMENTS.start)
            fill(insist(lambda: TimelineArchive.create(faulty, TIMELINE, facts)), seed + number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_whole(TimelineArchive.open(durable_store, TIMELINE))


def test_a_reader_on_a_faulty_store(durable_store: ObjectStore, seed: int) -> None:
    """It gets the written content, or an error; never a part."""
    archive = TimelineArchive.create(durable_store, TIMELINE, log_facts(SEGMENTS.start))
    for segno in SEGMENTS:
        archive.put_wal(ArchivedWal(1, segno, (segno + 1) * SEG_SIZE), log_of(segno))
    faulty = FaultyStore(durable_store, seed, truncates=0.3)
    reader = TimelineArchive(faulty, TIMELINE, archive.facts)
    damaged = 0
    for segno in [*SEGMENTS] * 5:
        try:
            assert insist(partial(reader.read_segment, 1, segno)) == log_of(segno)
        except ObjectDamaged:
            damaged += 1
    assert 0 < damaged < 5 * len(SEGMENTS)
    end_lsn = insist(lambda: reader.archived_lsn(HISTORY, SEGMENTS.start * SEG_SIZE))
    assert end_lsn == SEGMENTS.stop * SEG_SIZE


def test_other_content_is_refused(durable_store: ObjectStore) -> None:
    """With any compression; equal content is accepted."""
    archive = TimelineArchive.create(durable_store, TIMELINE, log_facts(3))
    wal = ArchivedWal(1, 3, 4 * SEG_SIZE)
    assert archive.put_wal(wal, log_of(3)) is True
    raw = TimelineArchive(durable_store, TIMELINE, archive.facts, level=None)
    assert raw.put_wal(wal, log_of(3)) is False
    with pytest.raises(ArchiveError, match="exists with other content") as error:
        archive.put_wal(wal, log_of(4))
    assert not error.value.is_transient
    assert archive.read_segment(1, 3) == log_of(3)


def test_a_truncated_object_is_written_again(durable_store: ObjectStore) -> None:
    archive = TimelineArchive.create(durable_store, TIMELINE, log_facts(3))
    wal = ArchivedWal(1, 3, 4 * SEG_SIZE)
    for left in (b"", b"x", b"x" * 100):
        durable_store.put(archive.keys.key(wal), left)
        assert archive.put_wal(wal, log_of(3)) is True
        assert archive.read_segment(1, 3) == log_of(3)


def test_the_archive_of_another_server(durable_store: ObjectStore) -> None:
    TimelineArchive.create(durable_store, TIMELINE, log_facts(3))
    assert TimelineArchive.create(durable_store, TIMELINE, log_facts(3)).facts == log_facts(3)
    with pytest.raises(ArchiveError, match="of another server") as error:
        TimelineArchive.create(durable_store, TIMELINE, log_facts(4))
    assert error.value.hint


def test_missing_objects(durable_store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        TimelineArchive.open(durable_store, TIMELINE)
    archive = TimelineArchive.create(durable_store, TIMELINE, log_facts(3))
    for read in (
        lambda: archive.read_segment(1, 3),
        lambda: archive.read_beginning(1, 3),
        lambda: archive.history(2),
    ):
        with pytest.raises(ObjectNotFound):
            read()
