"""Record headers: each check, the checksum, and where a record ends."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from odd_wal import MIB, PAGE, OddWal

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.record import (
    HEADER,
    RecordHeader,
    check_record_crc,
    check_record_header,
    check_record_offset,
    record_crc,
    record_end_lsn,
)
from quorum_wal.pgwal.versions import wal_version

START = 2 * MIB + 64
GOOD = RecordHeader(total_length=100, xid=7, prev_lsn=START - 64, info=0, rmgr_id=10, crc=0)


def changed(**fields: int) -> RecordHeader:
    values = {name: getattr(GOOD, name) for name in GOOD.__slots__}
    return RecordHeader(**(values | fields))


@pytest.mark.parametrize(
    ("header", "prev_lsn", "major", "message"),
    [
        (changed(total_length=0), None, 16, "expected at least 24, got 0"),
        (changed(total_length=23), None, 16, "expected at least 24, got 23"),
        (changed(total_length=1 << 30), None, 16, "expected at most 1073741823, got 1073741824"),
        (changed(rmgr_id=22), None, 16, "invalid resource manager ID 22 at 0/200040"),
        (changed(rmgr_id=128), None, 14, "invalid resource manager ID 128"),
        (changed(prev_lsn=START), None, 16, "record with incorrect prev-link 0/200040"),
        (
            changed(prev_lsn=START - 32),
            START - 64,
            16,
            "record with incorrect prev-link 0/200020 (expected 0/200000) at 0/200040",
        ),
    ],
)
def test_each_check(header: RecordHeader, prev_lsn: int | None, major: int, message: str) -> None:
    with pytest.raises(WalFormatError) as caught:
        check_record_header(header, START, prev_lsn, wal_version(major))
    assert message in str(caught.value)
    assert caught.value.lsn == START


def test_a_good_header() -> None:
    check_record_header(GOOD, START, None, wal_version(13))
    check_record_header(GOOD, START, START - 64, wal_version(18))
    check_record_header(changed(rmgr_id=128), START, None, wal_version(15))


def test_is_xlog_reads_the_upper_bits_of_info() -> None:
    assert changed(rmgr_id=0, info=0x43).is_xlog(0x40)
    assert not changed(rmgr_id=0, info=0x53).is_xlog(0x40)
    assert not changed(rmgr_id=1, info=0x40).is_xlog(0x40)


def test_crc_covers_every_byte_but_its_own() -> None:
    writer = OddWal()
    writer.record(60)
    data = writer.records[0].data
    crc = RecordHeader(*HEADER.unpack_from(data)).crc
    check_record_crc(data, crc, START)
    for at in range(len(data)):
        torn = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if 20 <= at < 24:
            assert record_crc(torn) == crc
            continue
        with pytest.raises(WalFormatError, match="incorrect resource manager data checksum"):
            check_record_crc(torn, crc, START)


@settings(deadline=None)
@given(
    offset=st.integers(0, MIB // 8 - 1).map(lambda number: number * 8),
    length=st.integers(25, 3 * MIB),
)
@example(offset=MIB - 8, length=25)
@example(offset=MIB - 8, length=24 + PAGE)
@example(offset=PAGE - 32, length=32)
@example(offset=PAGE - 32, length=29)
@example(offset=40, length=PAGE - 40)
@example(offset=40, length=PAGE - 40 + PAGE - 24 + 1)
def test_end_is_where_the_writer_ends(offset: int, length: int) -> None:
    page_offset = offset % PAGE
    header = 40 if offset < PAGE else 24
    start_lsn = 2 * MIB + offset
    if page_offset < header:
        start_lsn += header - page_offset
    writer = OddWal(2 * MIB)
    writer.wal += bytes(start_lsn - writer.lsn)
    assert writer.record(length) == start_lsn
    assert record_end_lsn(start_lsn, length, MIB) == writer.lsn


@pytest.mark.parametrize(
    ("before_end", "segments"), [(MIB - 40, 1), (5000, 1), (32, 1), (24, 1), (16, 2), (8, 2)]
)
def test_switch_ends_with_its_segment(before_end: int, segments: int) -> None:
    """A switch whose own bytes reach into the next segment also takes all of that one."""
    start_lsn = 3 * MIB - before_end
    assert record_end_lsn(start_lsn, 24, MIB) == 2 * MIB + segments * MIB


@pytest.mark.parametrize("lsn", [2 * MIB + 8, 2 * MIB + 32, 2 * MIB + PAGE + 16, 2 * MIB + 44])
def test_no_record_starts_there(lsn: int) -> None:
    with pytest.raises(WalFormatError, match="invalid record offset"):
        check_record_offset(lsn, MIB)


@pytest.mark.parametrize("lsn", [0, 2 * MIB, 2 * MIB + 40, 2 * MIB + PAGE, 2 * MIB + PAGE + 24])
def test_a_record_or_a_page_starts_there(lsn: int) -> None:
    check_record_offset(lsn, MIB)
