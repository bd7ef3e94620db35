"""find_end_of_wal(): the first bytes that do not continue the log end it; it raises nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_wal import MIB, PAGE, OddWal, random_log
from wal_log import SYSTEM_ID

from quorum_wal.pgwal.end_of_wal import EndOfWal, find_end_of_wal


def end_of(
    writer: OddWal, wal: bytes | bytearray | None = None, start_lsn: int | None = None
) -> EndOfWal:
    """`wal` begins where the writer's does; by default it is the writer's."""
    content = bytes(writer.wal if wal is None else wal)

    def read(lsn: int, length: int) -> bytes:
        assert 0 < length <= writer.wal_seg_size
        assert lsn // writer.wal_seg_size == (lsn + length - 1) // writer.wal_seg_size
        return content[lsn - writer.start_lsn : lsn - writer.start_lsn + length]

    return find_end_of_wal(
        read,
        writer.start_lsn if start_lsn is None else start_lsn,
        wal_seg_size=writer.wal_seg_size,
        version_major=writer.major,
        system_id=SYSTEM_ID,
    )


def log_of(*lengths: int) -> OddWal:
    writer = OddWal()
    for length in lengths:
        writer.record(length)
    return writer


def test_where_the_bytes_end() -> None:
    writer = log_of(60, 3 * PAGE, 100)
    end = end_of(writer)
    assert (end.end_lsn, end.last_record_lsn) == (writer.lsn, writer.records[-1].start_lsn)
    assert end.reason == f"there is no WAL at 0/{writer.lsn:X}"


def test_zeros() -> None:
    writer = log_of(60, 3 * PAGE, 100)
    end = end_of(writer, writer.wal + bytes(MIB))
    assert end.end_lsn == writer.lsn
    assert "expected at least 24, got 0" in end.reason


def test_zeros_behind_a_page() -> None:
    writer = log_of(60)
    writer.fill_page_to(0)
    end = end_of(writer, writer.wal + bytes(MIB))
    assert end.end_lsn == writer.lsn
    assert "invalid magic number 0000" in end.reason


@pytest.mark.parametrize("behind", [b"", bytes(MIB)])
def test_last_record_ends_with_its_segment(behind: bytes) -> None:
    writer = OddWal(3 * MIB - PAGE)
    writer.fill_page_to(0)
    assert writer.lsn == 3 * MIB
    assert end_of(writer, writer.wal + behind).end_lsn == 3 * MIB


def test_stale_pages_of_a_recycled_segment() -> None:
    """From a page on, and from the middle of a page on."""
    writer, stale = log_of(60), OddWal(MIB)
    writer.fill_page_to(0)
    for _ in range(4000):
        stale.record(60)
    end = end_of(writer, writer.wal + stale.wal[PAGE:])
    assert end.end_lsn == writer.lsn
    assert "unexpected pageaddr 0/102000" in end.reason
    writer.record(60)
    end = end_of(writer, writer.wal + stale.wal[len(writer.wal) :])
    assert end.end_lsn == writer.lsn
    assert end.last_record_lsn == writer.records[-1].start_lsn


def test_stale_record_where_a_new_one_would_start() -> None:
    """Valid in itself, at its own place, but its predecessor was another record."""
    writer, other = log_of(60, 60), log_of(124, 60)
    assert other.records[1].start_lsn == writer.lsn
    end = end_of(writer, writer.wal + other.records[1].data)
    assert end.end_lsn == writer.lsn
    assert "record with incorrect prev-link" in end.reason


def test_torn_at_every_8_bytes() -> None:
    writer = log_of(60, 200, PAGE, 100)
    writer.abandon(3 * PAGE, 1)
    writer.record(500)
    for at in range(0, len(writer.wal), 8):
        expected = writer.boundary_at(writer.start_lsn + at)
        for behind in (b"", bytes(byte ^ 0xFF for byte in writer.wal[at : at + PAGE])):
            assert end_of(writer, writer.wal[:at] + behind).end_lsn == expected


def test_switch_counts_with_its_whole_segment() -> None:
    writer = log_of(60)
    switch_lsn = writer.switch()
    assert writer.lsn == 3 * MIB
    end = end_of(writer)
    assert (end.end_lsn, end.last_record_lsn) == (3 * MIB, switch_lsn)
    # The content of the padding does not matter: it may be stale on the primary, too.
    stale = bytes(writer.wal[: PAGE * 2]) + b"x" * (MIB - 2 * PAGE)
    assert end_of(writer, stale).end_lsn == 3 * MIB
    # But all bytes below the end must be readable.
    end = end_of(writer, writer.wal[:-1])
    assert (end.end_lsn, end.last_record_lsn) == (switch_lsn, writer.records[0].start_lsn)


def test_overwritten_contrecord() -> None:
    writer = log_of(60)
    void_lsn = writer.abandon(3 * PAGE, 2)
    lost = 3 * PAGE - len(writer.wal) % PAGE
    writer.record(60)
    assert end_of(writer).end_lsn == writer.lsn
    end = end_of(writer, writer.wal[: 2 * PAGE])
    assert lost > 0
    assert (end.end_lsn, end.last_record_lsn) == (void_lsn, writer.records[0].start_lsn)


def test_no_record_at_all() -> None:
    writer = OddWal()
    for wal in (b"", bytes(100), bytes(PAGE), b"\xff" * PAGE):
        end = end_of(writer, wal)
        assert (end.end_lsn, end.last_record_lsn) == (writer.start_lsn, 0)
        assert end.reason


def test_start_at_any_boundary() -> None:
    writer = random_log(random.Random(5), 2 * MIB)
    for start_lsn in writer.boundaries[:-1:7]:
        end = end_of(writer, start_lsn=start_lsn)
        assert (end.end_lsn, end.last_record_lsn) == (writer.lsn, writer.records[-1].start_lsn)


def test_start_of_a_segment_inside_a_record() -> None:
    writer = OddWal(3 * MIB - PAGE)
    writer.record(4 * PAGE)
    straddling_end = writer.lsn
    end = end_of(writer, start_lsn=3 * MIB)
    assert (end.end_lsn, end.last_record_lsn) == (straddling_end, 0)
    writer.record(60)
    end = end_of(writer, start_lsn=3 * MIB)
    assert (end.end_lsn, end.last_record_lsn) == (writer.lsn, writer.records[-1].start_lsn)
    # A page of the rest is missing: then nothing of it is trusted.
    assert end_of(writer, writer.wal[: 3 * PAGE], start_lsn=3 * MIB).end_lsn == 3 * MIB


def test_elsewhere_a_page_that_starts_inside_a_record_is_no_boundary() -> None:
    writer = log_of(3 * PAGE, 60)
    end = end_of(writer, start_lsn=writer.start_lsn + PAGE)
    assert end.end_lsn == writer.start_lsn + PAGE
    assert "contrecord is requested" in end.reason


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=3000), at=st.integers(0, 3 * PAGE))
def test_never_raises_and_never_exceeds_the_bytes(data: bytes, at: int) -> None:
    writer = log_of(60, 2 * PAGE, 100, PAGE, 60)
    wal = writer.wal[:at] + data
    end = end_of(writer, wal)
    assert writer.start_lsn <= end.end_lsn <= writer.start_lsn + len(wal) + 7
    assert end.end_lsn >= writer.boundary_at(writer.start_lsn + at)
