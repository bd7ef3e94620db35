"""BoundaryFinder against the writer's own list of boundaries, and what it refuses."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from odd_wal import MIB, PAGE, OddWal, random_log

from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn

RANDOM_LOGS = 40
CHUNK = 16 * PAGE


def finder_of(writer: OddWal) -> BoundaryFinder:
    return BoundaryFinder(
        writer.start_lsn, wal_seg_size=writer.wal_seg_size, version_major=writer.major
    )


def assert_finds(writer: OddWal, cuts: list[int]) -> None:
    """Chunks that end at `cuts`."""
    finder = finder_of(writer)
    for begin_lsn, end_lsn in pairwise([writer.start_lsn, *cuts]):
        chunk = writer.wal[begin_lsn - writer.start_lsn : end_lsn - writer.start_lsn]
        found = finder.feed(begin_lsn, bytes(chunk))
        assert found == finder.record_end_lsn
        assert finder.end_lsn == end_lsn
        expected = writer.boundary_at(end_lsn)
        assert found == expected, (
            f"chunk [{Lsn(begin_lsn)}, {Lsn(end_lsn)}): {Lsn(found)}, expected {Lsn(expected)}"
        )


def page_ends(writer: OddWal) -> list[int]:
    return list(range(writer.start_lsn + PAGE, writer.lsn + 1, PAGE))


def assert_finds_everywhere(writer: OddWal) -> None:
    """Each pair of page ends as one chunk, after one chunk up to it, and before one to the end."""
    ends = page_ends(writer)
    for first, begin_lsn in enumerate(ends):
        for end_lsn in ends[first + 1 :]:
            assert_finds(writer, [begin_lsn, end_lsn, ends[-1]])
    assert_finds(writer, ends)


def test_end_of_a_record_inside_a_page_is_trusted() -> None:
    """Nothing is read: the bytes need not even be WAL."""
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    assert finder.feed(2 * MIB, b"x" * 104) == 2 * MIB + 104
    assert finder.feed(2 * MIB + 104, memoryview(b"x" * 3 * PAGE)) == 2 * MIB + 104 + 3 * PAGE


def test_records_across_pages() -> None:
    writer = OddWal(3 * MIB - 4 * PAGE)
    for length in (3000, 6000, 9000, 30, 40_000, 100):
        writer.record(length)
    assert_finds_everywhere(writer)


def test_record_that_ends_with_its_page() -> None:
    writer = OddWal()
    writer.record(60)
    writer.fill_page_to(0)
    assert_finds(writer, [writer.lsn])
    assert writer.boundary_at(writer.lsn) == writer.lsn


@pytest.mark.parametrize("rest", [1, 7, 8, 9, 16, 17])
def test_a_short_rest_of_a_long_record(rest: int) -> None:
    """So short that it might be the end of a switch record, but it is not."""
    writer = OddWal()
    writer.record(60)
    writer.record(writer.room() + 2 * (PAGE - 24) + rest)
    writer.record(60)
    writer.record(3 * PAGE)
    assert_finds_everywhere(writer)


@pytest.mark.parametrize("rest", [8, 16])
def test_a_short_rest_of_a_short_record(rest: int) -> None:
    writer = OddWal()
    writer.fill_page_to(64)
    writer.record(64 + rest)
    writer.record(3 * PAGE)
    assert_finds_everywhere(writer)


STALE = OddWal()
STALE.record(5 * PAGE)
STALE.record(100)


@pytest.mark.parametrize("room", [2000, 32, 24, 16, 8])
@pytest.mark.parametrize("last_page_of_segment", [True, False])
@pytest.mark.parametrize(
    "padding", [b"\0", bytes(STALE.wal[PAGE : 2 * PAGE]), bytes(STALE.wal[5 * PAGE :])]
)
def test_switch(room: int, last_page_of_segment: bool, padding: bytes) -> None:
    """Its record ends with its segment; the padding may be stale pages of a recycled segment."""
    writer = OddWal(4 * MIB - (2 if last_page_of_segment else 6) * PAGE)
    writer.record(60)
    writer.fill_page_to(0)
    writer.fill_page_to(room)
    switch_lsn = writer.switch(padding)
    writer.record(60)
    writer.record(2 * PAGE)
    if last_page_of_segment and room < 24:
        assert writer.records[-3].end_lsn == 5 * MIB
        del writer.wal[5 * MIB - writer.start_lsn :]
        assert_finds(writer, page_ends(writer))
        assert_finds(writer, [*page_ends(writer)[::7], writer.lsn])
        assert writer.boundary_at(5 * MIB - 1) == switch_lsn
    else:
        assert writer.records[-3].end_lsn == 4 * MIB
        assert_finds_everywhere(writer)


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_lost_continuation(pages: int) -> None:
    """Up to where the record was lost, the boundary is its start; then the log continues."""
    writer = OddWal()
    writer.record(60)
    writer.abandon(6 * PAGE, pages)
    writer.record(3 * PAGE)
    assert_finds_everywhere(writer)


def test_a_new_finder_continues_where_an_old_one_stopped() -> None:
    """From any boundary, also inside a page."""
    writer = random_log(random.Random(3), MIB)
    for start_lsn in writer.boundaries[:-1:10]:
        rest = OddWal(0)
        rest.start_lsn, rest.wal = start_lsn, writer.wal[start_lsn - writer.start_lsn :]
        rest.ends = [end_lsn for end_lsn in writer.ends if end_lsn > start_lsn]
        first_end = start_lsn - start_lsn % PAGE + PAGE
        assert_finds(rest, [end for end in range(first_end, writer.lsn, PAGE) if end > start_lsn])


def test_random_logs() -> None:
    for seed in random.Random(4).sample(range(1 << 30), RANDOM_LOGS):
        rng = random.Random(seed)
        writer = random_log(rng, 2 * MIB)
        boundaries = writer.boundaries
        cuts, at = [], writer.start_lsn
        while at < boundaries[-1]:
            page_end = at - at % PAGE + PAGE * rng.choice([1, 1, 2, 3, 16])
            boundary = rng.choice(boundaries)
            at = boundary if at < boundary < page_end else min(page_end, boundaries[-1])
            cuts.append(at)
        try:
            assert_finds(writer, cuts)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_gap() -> None:
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    finder.feed(2 * MIB, b"x" * 104)
    with pytest.raises(WalFormatError, match="WAL begins at 0/200070, expected 0/200068"):
        finder.feed(2 * MIB + 112, b"x" * 8)


def test_a_length_that_no_walsender_sends() -> None:
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    with pytest.raises(WalFormatError, match="WAL at 0/200000 is 100 bytes long"):
        finder.feed(2 * MIB, b"x" * 100)


def test_nothing_new() -> None:
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    assert finder.feed(2 * MIB, b"") == 2 * MIB


@pytest.mark.parametrize(
    ("major", "address", "message"),
    [
        (15, 2 * MIB, "magic number D110 (expected D113), pageaddr 0/200000"),
        (16, 3 * MIB, "magic number D113 (expected D113), pageaddr 0/300000"),
    ],
)
def test_unexpected_wal(major: int, address: int, message: str) -> None:
    writer = OddWal(address, major=major)
    writer.record(2 * PAGE)
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    with pytest.raises(WalFormatError) as caught:
        finder.feed(2 * MIB, bytes(writer.wal[:PAGE]))
    assert "invalid page header at 0/200000" in str(caught.value)
    assert message in str(caught.value)


def test_invalid_record_length() -> None:
    writer = OddWal()
    writer.record(60)
    writer.fill_page_to(0)
    writer.wal[writer.records[1].start_lsn - writer.start_lsn] = 23
    writer.wal[writer.records[1].start_lsn - writer.start_lsn + 1] = 0
    with pytest.raises(WalFormatError, match="invalid record length at 0/200068"):
        finder_of(writer).feed(writer.start_lsn, bytes(writer.wal))


def test_an_end_inside_a_page_costs_nothing() -> None:
    """Takes a thousand chunks of 128 KiB in a small part of the time that reading them needs."""
    finder = BoundaryFinder(2 * MIB, wal_seg_size=MIB, version_major=16)
    chunk = bytes(CHUNK)
    finder.feed(2 * MIB, chunk[:8])
    began = time.process_time()
    for number in range(1000):
        finder.feed(2 * MIB + 8 + number * CHUNK, chunk)
    assert time.process_time() - began < 0.1
