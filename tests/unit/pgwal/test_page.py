"""Page headers: each check, and positions without headers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from odd_wal import MIB, PAGE, OddWal
from wal_log import SYSTEM_ID

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.page import (
    PageFlag,
    PageHeader,
    check_page_header,
    end_lsn_of_position,
    parse_page_header,
    usable_position,
)
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS, wal_version

FIRST = 2 * MIB
SECOND = FIRST + PAGE

lsns = st.integers(0, 1 << 40).map(lambda number: number * 8)
sizes = st.sampled_from([MIB, 16 * MIB, 1024 * MIB])


def header_at(lsn: int, *, major: int = 16) -> bytes:
    """The bytes of the header at FIRST or SECOND, in a log with a record across both."""
    writer = OddWal(FIRST, major=major)
    writer.record(10_000)
    return bytes(writer.wal[lsn - FIRST : lsn - FIRST + 40])


def check(
    page: bytes,
    lsn: int,
    *,
    major: int = 16,
    seg_size: int = MIB,
    system_id: int | None = SYSTEM_ID,
    tli_min: int = 0,
) -> PageHeader:
    header = parse_page_header(page)
    assert header is not None
    check_page_header(
        header,
        lsn,
        version=wal_version(major),
        wal_seg_size=seg_size,
        system_id=system_id,
        tli_min=tli_min,
    )
    return header


@pytest.mark.parametrize("major", SUPPORTED_MAJORS)
def test_long_and_short(major: int) -> None:
    long = check(header_at(FIRST, major=major), FIRST, major=major)
    assert (long.size, long.tli, long.is_contrecord, long.remaining_length) == (40, 1, False, 0)
    short = check(header_at(SECOND, major=major), SECOND, major=major)
    assert (short.size, short.is_contrecord) == (24, True)
    assert short.remaining_length == 10_000 - (PAGE - 40)


@pytest.mark.parametrize(("lsn", "size"), [(FIRST, 40), (SECOND, 24)])
def test_too_few_bytes(lsn: int, size: int) -> None:
    page = header_at(lsn)
    assert all(parse_page_header(page[:length]) is None for length in range(size))
    assert parse_page_header(page[:size]) is not None
    assert parse_page_header(b"...." + page, 4) == parse_page_header(page)


def damaged(lsn: int, offset: int, field: str, value: int) -> bytes:
    page = bytearray(header_at(lsn))
    struct.pack_into(field, page, offset, value)
    return bytes(page)


@pytest.mark.parametrize(
    ("page", "lsn", "message"),
    [
        (bytes(40), SECOND, "invalid magic number 0000 (expected D113)"),
        (header_at(SECOND, major=15), SECOND, "invalid magic number D110 (expected D113)"),
        (damaged(SECOND, 2, "<H", 0x0011), SECOND, "invalid info bits 0011"),
        (damaged(SECOND, 2, "<H", 0x0003), SECOND, "invalid info bits 0003"),
        (damaged(FIRST, 2, "<H", 0x0000), FIRST, "invalid info bits 0000"),
        (damaged(FIRST, 24, "<Q", 5), FIRST, "different database system: system identifier 5"),
        (damaged(FIRST, 32, "<I", 2 * MIB), FIRST, "segment size 2097152 (expected 1048576)"),
        (damaged(FIRST, 36, "<I", 4096), FIRST, "page size 4096 (expected 8192)"),
        (damaged(SECOND, 8, "<Q", 0x1FE000), SECOND, "unexpected pageaddr 0/1FE000"),
        (damaged(SECOND, 4, "<I", 0), SECOND, "out-of-sequence timeline ID 0 (after 1)"),
        (damaged(SECOND, 16, "<I", 0), SECOND, "remaining length 0 disagrees with info bits 0001"),
        (damaged(SECOND, 2, "<H", 0), SECOND, "disagrees with info bits 0000"),
    ],
)
def test_each_check(page: bytes, lsn: int, message: str) -> None:
    with pytest.raises(WalFormatError) as caught:
        check(page, lsn, tli_min=1)
    assert message in str(caught.value)
    assert caught.value.lsn == lsn


def test_unknown_values_are_not_checked() -> None:
    check(damaged(FIRST, 24, "<Q", 5), FIRST, system_id=None)
    check(damaged(SECOND, 4, "<I", 0), SECOND)


def test_flags_have_the_bits_of_postgres() -> None:
    assert [flag.value for flag in PageFlag] == [0x1, 0x2, 0x4, 0x8]


@settings(deadline=None)
@given(lsn=lsns, size=sizes)
@example(lsn=0, size=MIB)
@example(lsn=MIB, size=MIB)
@example(lsn=MIB + PAGE, size=MIB)
@example(lsn=MIB + PAGE - 8, size=MIB)
def test_positions_there_and_back(lsn: int, size: int) -> None:
    """Behind a header: the same place. On a page boundary: the page's own address."""
    page_offset = lsn % PAGE
    header = 40 if (lsn - page_offset) % size == 0 else 24
    if 0 < page_offset <= header:
        lsn = lsn - page_offset
    assert end_lsn_of_position(usable_position(lsn, size), size) == lsn


@settings(deadline=None)
@given(lsn=lsns, size=sizes)
def test_positions_count_the_bytes_between_headers(lsn: int, size: int) -> None:
    page_lsn = lsn - lsn % PAGE
    header = 40 if page_lsn % size == 0 else 24
    here = usable_position(page_lsn, size)
    assert usable_position(page_lsn + PAGE, size) == here + PAGE - header
    assert usable_position(page_lsn + header + 8, size) == here + 8
