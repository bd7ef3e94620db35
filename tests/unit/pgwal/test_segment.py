"""Segment numbers and names, against names that Postgres itself gave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import (
    SegmentName,
    check_wal_seg_size,
    format_segment_name,
    parse_segment_name,
    segment_start_lsn,
    segno_of,
)

MIB = 1 << 20
SIZES = [MIB << power for power in range(11)]


@pytest.mark.parametrize("size", SIZES)
def test_possible_sizes(size: int) -> None:
    check_wal_seg_size(size)


@pytest.mark.parametrize("size", [0, -MIB, 1, MIB // 2, MIB + 1, 3 * MIB, 2 << 30])
def test_impossible_sizes(size: int) -> None:
    with pytest.raises(SegmentNameError, match="power of two between 1 MiB and 1 GiB"):
        check_wal_seg_size(size)


@pytest.mark.parametrize(
    ("lsn", "size", "name"),
    [
        ("0/1000000", 16 * MIB, "000000010000000000000001"),
        ("A/FEFFFFFF", 16 * MIB, "000000010000000A000000FE"),
        ("A/FFFFFFFF", 16 * MIB, "000000010000000A000000FF"),
        ("B/0", 16 * MIB, "000000010000000B00000000"),
        ("A/FEFFFFFF", 1 * MIB, "000000010000000A00000FEF"),
        ("A/FEFFFFFF", 1024 * MIB, "000000010000000A00000003"),
    ],
)
def test_name_of_a_position(lsn: str, size: int, name: str) -> None:
    """As pg_walfile_name() answers."""
    assert format_segment_name(1, segno_of(Lsn.parse(lsn), size), size) == name


def test_partial() -> None:
    name = format_segment_name(3, 7, 16 * MIB, partial=True)
    assert name == "000000030000000000000007.partial"
    assert parse_segment_name(name, 16 * MIB) == SegmentName(3, 7, partial=True)


@settings(deadline=None)
@given(
    tli=st.integers(1, 0xFFFFFFFF), lsn=st.integers(0, (1 << 64) - 1), size=st.sampled_from(SIZES)
)
def test_there_and_back(tli: int, lsn: int, size: int) -> None:
    segno = segno_of(lsn, size)
    assert parse_segment_name(format_segment_name(tli, segno, size), size) == SegmentName(
        tli, segno
    )
    assert segment_start_lsn(segno, size) <= lsn < segment_start_lsn(segno, size) + size


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00000001000000000000001",
        "0000000100000000000000011",
        "00000001000000000000000a",
        "00000001000000000000000G",
        "00000001 0000000 0000001",
        "000000010000000000000001.done",
        "000000010000000000000001.partial.partial",
        "00000002.history",
        # with 16 MiB segments there are 256 in a log
        "000000010000000000000100",
    ],
)
def test_not_a_segment_name(name: str) -> None:
    with pytest.raises(SegmentNameError, match="invalid WAL segment name"):
        parse_segment_name(name, 16 * MIB)
