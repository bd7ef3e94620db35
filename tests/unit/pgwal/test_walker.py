"""RecordWalker: every kind of record, all splits of the bytes, and every kind of damage."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from odd_wal import MIB, PAGE, OddWal, Written, random_log
from wal_log import SYSTEM_ID

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker

RANDOM_LOGS = 20


def walker_of(writer: OddWal, *, start_lsn: int | None = None, **options: bool) -> RecordWalker:
    return RecordWalker(
        writer.start_lsn if start_lsn is None else start_lsn,
        wal_seg_size=writer.wal_seg_size,
        version_major=writer.major,
        system_id=SYSTEM_ID,
        **options,
    )


def drain(walker: RecordWalker) -> list[Record]:
    records = []
    while (record := walker.next()) is not NEED_DATA:
        records.append(record)
    return records


def walk(walker: RecordWalker, pieces: Iterable[bytes | bytearray | memoryview]) -> list[Record]:
    records = []
    for piece in pieces:
        walker.feed(piece)
        records += drain(walker)
    return records


def as_written(record: Record) -> Written:
    assert record.total_length == len(record.data)
    return Written(
        record.start_lsn,
        record.end_lsn,
        record.prev_lsn,
        record.xid,
        record.rmgr_id,
        record.info,
        record.data,
    )


def small_log(major: int = 16) -> OddWal:
    """Every kind, in little more than a segment."""
    writer = OddWal(3 * MIB - 20 * PAGE, major=major)
    writer.record(60)
    writer.record(PAGE)
    writer.fill_page_to(0)
    writer.fill_page_to(8)
    writer.record(100)
    writer.abandon(3 * PAGE, 2)
    writer.record(3 * PAGE)
    writer.switch()
    writer.record(50)
    return writer


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_whole(major: int) -> None:
    writer = small_log(major)
    walker = walker_of(writer)
    records = walk(walker, [bytes(writer.wal)])
    assert [as_written(record) for record in records] == writer.records
    assert walker.record_end_lsn == writer.lsn == walker.fed_lsn
    assert walker.last_record_lsn == writer.records[-1].start_lsn


def test_byte_by_byte() -> None:
    writer = small_log()
    records = walk(walker_of(writer), (writer.wal[at : at + 1] for at in range(len(writer.wal))))
    assert [as_written(record) for record in records] == writer.records


def test_a_record_comes_with_its_last_byte() -> None:
    """Not before; it does not wait for the padding, except that of a switch."""
    writer = small_log()
    walker = walker_of(writer)
    due = {}
    for record in writer.records:
        rest = record.end_lsn - (-len(record.data) % 8)
        due[record.end_lsn if record.data[16:18] == b"\x40\0" else rest] = record
    for at in range(len(writer.wal)):
        walker.feed(writer.wal[at : at + 1])
        records = drain(walker)
        expected = due.get(writer.start_lsn + at + 1)
        assert [as_written(record) for record in records] == ([expected] if expected else [])


def test_trailing_data() -> None:
    """Half a record behind the last whole one changes nothing; its rest completes it."""
    writer = small_log()
    whole = len(writer.wal)
    writer.record(PAGE + 500)
    walker = walker_of(writer)
    records = walk(walker, [bytes(writer.wal[: whole + 300])])
    assert [as_written(record) for record in records] == writer.records[:-1]
    assert walker.record_end_lsn == writer.start_lsn + whole
    (last,) = walk(walker, [memoryview(writer.wal)[whole + 300 :]])
    assert as_written(last) == writer.records[-1]


def test_random_logs_in_random_pieces() -> None:
    for seed in random.Random(1).sample(range(1 << 30), RANDOM_LOGS):
        rng = random.Random(seed)
        writer = random_log(rng, 2 * MIB)
        pieces, at = [], 0
        while at < len(writer.wal):
            size = rng.choice([1, 30, 1000, PAGE, 100_000])
            pieces.append(bytes(writer.wal[at : at + size]))
            at += size
        records = walk(walker_of(writer), pieces)
        assert [as_written(record) for record in records] == writer.records, f"seed {seed}"


def test_skipping_sees_the_same_as_reading() -> None:
    writer = small_log()
    reader, skipper = walker_of(writer), walker_of(writer)
    for at in range(0, len(writer.wal), 1000):
        for walker in (reader, skipper):
            walker.feed(writer.wal[at : at + 1000])
        drain(reader)
        skipper.skip_records()
        assert skipper.record_end_lsn == reader.record_end_lsn
        assert skipper.last_record_lsn == reader.last_record_lsn


def test_reading_after_skipping() -> None:
    writer = small_log()
    walker = walker_of(writer)
    walker.feed(writer.wal[:70_000])
    walker.skip_records()
    passed = writer.boundaries.index(walker.record_end_lsn)
    records = walk(walker, [bytes(writer.wal[70_000:])])
    assert [as_written(record) for record in records] == writer.records[passed:]


def test_skipping_after_reading() -> None:
    """Also from the middle of a page."""
    writer = OddWal()
    for _ in range(5):
        writer.record(60)
    walker = walker_of(writer)
    walker.feed(bytes(writer.wal))
    for record in writer.records[:2]:
        found = walker.next()
        assert found is not NEED_DATA
        assert as_written(found) == record
    walker.skip_records()
    assert walker.record_end_lsn == writer.lsn


@pytest.mark.parametrize("index", range(9))
def test_start_at_any_record(index: int) -> None:
    """At the record's own address, and at the boundary before it."""
    writer = small_log()
    record = writer.records[index]
    for start_lsn in (record.start_lsn, writer.boundaries[index]):
        # The record behind a lost continuation begins at its own address only.
        if index == 5 and start_lsn != record.start_lsn:
            continue
        walker = walker_of(writer, start_lsn=start_lsn)
        records = walk(walker, [bytes(writer.wal[start_lsn - writer.start_lsn :])])
        assert [as_written(found) for found in records] == writer.records[index:]


def test_start_inside_a_record_skips_the_rest_of_it() -> None:
    """At every page: the first record behind the rest is the first one returned."""
    writer = random_log(random.Random(2), MIB)
    starts = [record.start_lsn for record in writer.records]
    for page_lsn in range(writer.start_lsn, writer.lsn - 3 * PAGE, PAGE):
        if any(r.start_lsn < page_lsn < r.end_lsn and len(r.data) == 24 for r in writer.records):
            continue  # behind a switch the bytes may be anything
        walker = walker_of(writer, start_lsn=page_lsn, skip_continuation=True)
        records = walk(walker, [bytes(writer.wal[page_lsn - writer.start_lsn :])])
        first = next(index for index, start in enumerate(starts) if start >= page_lsn)
        assert [as_written(record) for record in records] == writer.records[first:]


def test_a_log_that_starts_inside_a_record_ends_where_that_record_does() -> None:
    writer = OddWal()
    writer.record(3 * PAGE)
    page_lsn = writer.start_lsn + PAGE
    walker = walker_of(writer, start_lsn=page_lsn, skip_continuation=True)
    walker.feed(writer.wal[PAGE : 2 * PAGE])
    assert drain(walker) == []
    assert walker.record_end_lsn == page_lsn
    walker.feed(writer.wal[2 * PAGE :])
    assert drain(walker) == []
    assert walker.record_end_lsn == writer.lsn
    assert walker.last_record_lsn is None


def test_start_inside_a_record_whose_rest_was_lost() -> None:
    writer = OddWal()
    writer.abandon(5 * PAGE, 3)
    writer.record(60)
    start_lsn = writer.start_lsn + PAGE
    walker = walker_of(writer, start_lsn=start_lsn, skip_continuation=True)
    walker.feed(writer.wal[PAGE : 3 * PAGE + 30])
    assert drain(walker) == []
    assert walker.record_end_lsn == writer.records[0].start_lsn, "a record begins there"
    walker.feed(writer.wal[3 * PAGE + 30 : 3 * PAGE + 100])
    assert [as_written(record) for record in drain(walker)] == writer.records[:1]


def test_start_inside_a_record_that_is_damaged() -> None:
    writer = OddWal()
    writer.record(5 * PAGE)
    writer.wal[3 * PAGE + 16] ^= 1
    walker = walker_of(writer, start_lsn=writer.start_lsn + PAGE, skip_continuation=True)
    walker.feed(writer.wal[PAGE:])
    with pytest.raises(WalFormatError, match="invalid contrecord length"):
        walker.next()
    assert walker.record_end_lsn == writer.start_lsn + PAGE


def test_start_inside_a_record_is_refused_without_skipping() -> None:
    writer = OddWal()
    writer.record(2 * PAGE)
    walker = walker_of(writer, start_lsn=writer.start_lsn + PAGE)
    walker.feed(writer.wal[PAGE:])
    with pytest.raises(WalFormatError, match="contrecord is requested by 0/202018"):
        walker.next()


def test_start_where_no_record_can_be() -> None:
    with pytest.raises(WalFormatError, match="invalid record offset at 0/200010"):
        walker_of(OddWal(), start_lsn=2 * MIB + 16)


def failure_of(writer: OddWal) -> tuple[list[Record], WalFormatError]:
    """What is returned before the failure, which must then be permanent."""
    walker = walker_of(writer)
    walker.feed(bytes(writer.wal))
    records: list[Record] = []
    error = None
    while error is None:
        try:
            record = walker.next()
        except WalFormatError as caught:
            error = caught
        else:
            assert record is not NEED_DATA, "no failure"
            records.append(record)
    walker.feed(b"\0" * PAGE)
    with pytest.raises(WalFormatError) as again:
        walker.next()
    assert again.value is error
    with pytest.raises(WalFormatError):
        walker.skip_records()
    assert walker.record_end_lsn == (records[-1].end_lsn if records else writer.start_lsn)
    return records, error


@pytest.mark.parametrize(
    ("offset", "byte", "message"),
    [
        (0, 10, "invalid record length at 0/200068: expected at least 24, got 10"),
        (3, 0xFF, "expected at most 1073741823"),
        (8, 1, "record with incorrect prev-link 0/200001 (expected 0/200028) at 0/200068"),
        (17, 22, "invalid resource manager ID 22 at 0/200068"),
        (20, 1, "incorrect resource manager data checksum in record at 0/200068"),
        (50, 0, "incorrect resource manager data checksum in record at 0/200068"),
    ],
)
def test_damaged_record(offset: int, byte: int, message: str) -> None:
    writer = OddWal()
    for length in (60, 200, 60):
        writer.record(length)
    writer.wal[writer.records[1].start_lsn - writer.start_lsn + offset] = byte
    records, error = failure_of(writer)
    assert len(records) == 1
    assert message in str(error)
    assert error.lsn == writer.records[1].start_lsn


def test_resource_manager_that_does_not_exist() -> None:
    """Even if the CRC is valid."""
    writer = OddWal()
    writer.record(60)
    writer.record(60, rmgr_id=22)
    records, error = failure_of(writer)
    assert len(records) == 1
    assert "invalid resource manager ID 22 at 0/200068" in str(error)


def test_another_database_system() -> None:
    writer = OddWal()
    writer.record(60)
    writer.wal[24] ^= 1
    _, error = failure_of(writer)
    assert "different database system" in str(error)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"\0\0", "invalid magic number 0000"),
        (2, b"\0\0", "disagrees with info bits 0000"),
        (8, b"\0\x40\x20", "unexpected pageaddr 0/204000"),
        (16, b"\1", "invalid contrecord length"),
    ],
)
def test_damaged_page_inside_a_record(offset: int, value: bytes, message: str) -> None:
    writer = OddWal()
    writer.record(60)
    writer.record(2 * PAGE)
    writer.wal[PAGE + offset : PAGE + offset + len(value)] = value
    records, error = failure_of(writer)
    assert len(records) == 1
    assert message in str(error)
    assert error.lsn == writer.start_lsn + PAGE


def test_continuation_that_does_not_come() -> None:
    """The next page is valid, but starts a record of its own."""
    writer, other = OddWal(), OddWal()
    writer.record(60)
    writer.record(PAGE)
    other.fill_page_to(0)
    other.record(60)
    writer.wal[PAGE:] = other.wal[PAGE:]
    _, error = failure_of(writer)
    assert "there is no contrecord flag at 0/202000" in str(error)


def test_timeline_does_not_decrease() -> None:
    writer = OddWal(tli=2)
    writer.fill_page_to(0)
    writer.tli = 3
    writer.fill_page_to(0)
    writer.tli = 2
    writer.record(60)
    records, error = failure_of(writer)
    assert len(records) == 2
    assert "out-of-sequence timeline ID 2 (after 3)" in str(error)


@pytest.mark.parametrize(
    ("rmgr_id", "info", "body", "message"),
    [
        (0, 0xD0, b"\xff\x10" + bytes(16), "expected 0/200068, got 0/0"),
        (0, 0xD0, b"", "expected 0/200068, got no such record"),
        (10, 0, bytes(26), "expected 0/200068, got no such record"),
    ],
)
def test_a_lost_continuation_must_be_named(
    rmgr_id: int, info: int, body: bytes, message: str
) -> None:
    writer = OddWal()
    writer.record(60)
    writer.abandon(3 * PAGE, 1)
    del writer.wal[PAGE + 24 :], writer.starts[1:], writer.ends[1:]
    writer.write(body, rmgr_id=rmgr_id, info=info)
    records, error = failure_of(writer)
    assert len(records) == 1
    assert "mismatching overwritten LSN at 0/202018" in str(error)
    assert message in str(error)


def test_crc_check_can_be_turned_off() -> None:
    writer = OddWal()
    for length in (60, 60, PAGE):
        writer.record(length)
    for record in writer.records:
        writer.wal[record.start_lsn - writer.start_lsn + 40] ^= 1
    assert len(walk(walker_of(writer, check_crc=False), [bytes(writer.wal)])) == 3
    failure_of(writer)


def test_custom_resource_managers_are_read() -> None:
    writer = OddWal()
    for rmgr_id in (10, 128, 255, 10):
        writer.record(60, rmgr_id=rmgr_id)
    records = walk(walker_of(writer), [bytes(writer.wal)])
    assert [record.rmgr_name(16) for record in records] == [
        "Heap",
        "custom128",
        "custom255",
        "Heap",
    ]
