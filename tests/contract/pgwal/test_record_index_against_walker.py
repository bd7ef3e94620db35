"""RecordIndexer returns exactly the records of RecordWalker, and fails as it does."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from full_logs import SWITCH_LOGS, LogMaker
from indexed_log import spans_of, walk_by_index, walk_by_walker
from wal_folder import WalFolder

from quorum_wal.pgwal.page import (
    LONG_HEADER_SIZE,
    WAL_PAGE_SIZE,
    XLP_OVERWRITE_CONTRECORD,
    parse_page_header,
)
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE, XLOG_SWITCH
from quorum_wal.pgwal.rmgr import RM_XLOG_ID
from quorum_wal.pgwal.segment import segno_of
from quorum_wal.walrecords.record_index import RecordIndexer

DAMAGED_LOGS = 8
SPLITS = 3


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_any_chunks_give_the_same_records(
    full_log: LogMaker, major: int, seg_mib: int, rng: random.Random
) -> None:
    log = full_log(major, seg_mib)
    folder = log.folder
    indexer = RecordIndexer(folder.start_lsn, wal_seg_size=folder.wal_seg_size, version_major=major)
    spans, error, end_lsn = walk_by_index(
        folder.wal, folder.start_lsn, indexer, lambda: WAL_PAGE_SIZE * rng.randrange(1, 1000)
    )
    assert spans == spans_of(log.records)
    assert (error, end_lsn) == (log.walk[1], log.end_lsn)


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_nothing_between_a_switch_and_the_next_segment_matters(
    full_log: LogMaker, major: int, seg_mib: int, rng: random.Random
) -> None:
    log = full_log(major, seg_mib)
    folder = log.folder
    wal, overwritten = bytearray(folder.wal), 0
    for record in log.records:
        if (record.rmgr_id, record.info) == (RM_XLOG_ID, XLOG_SWITCH):
            page_lsn = -(-(record.start_lsn + RECORD_HEADER_SIZE) // WAL_PAGE_SIZE) * WAL_PAGE_SIZE
            at, count = page_lsn - folder.start_lsn, record.end_lsn - page_lsn
            wal[at : at + count] = rng.randbytes(count)
            overwritten += count
    assert overwritten > 0
    spans, seg_size = spans_of(log.records), folder.wal_seg_size
    for chunk_bytes in (seg_size // 4, 2 * seg_size):
        indexer = RecordIndexer(folder.start_lsn, wal_seg_size=seg_size, version_major=major)
        found = walk_by_index(wal, folder.start_lsn, indexer, lambda size=chunk_bytes: size)
        assert found == (spans, log.walk[1], log.end_lsn)


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS[1:])
def test_damage_is_found_at_the_same_place_for_the_same_reason(
    full_log: LogMaker, major: int, seg_mib: int, rng: random.Random
) -> None:
    folder = full_log(major, seg_mib).folder
    errors = set()
    for _ in range(DAMAGED_LOGS):
        wal_lsn = folder.start_lsn + rng.randrange(0, len(folder.wal), WAL_PAGE_SIZE)
        # Whole segments: the walker waits for the padding of a switch, the indexer does not.
        end_segno = segno_of(wal_lsn, folder.wal_seg_size) + 1
        wal = bytearray(folder.slice(wal_lsn, end_segno * folder.wal_seg_size))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(wal))
            if rng.random() < 0.5:  # in the header of a page
                at -= at % WAL_PAGE_SIZE - rng.randrange(24)
            wal[at] ^= 1 << rng.randrange(8)
        errors.add(_error_of_both(wal, wal_lsn, folder, lambda: rng.randrange(1, 100)))
    assert len(errors) > 1, "the damage was not found, or nothing was damaged"


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_damage_where_a_page_begins_is_found_at_the_same_place(
    full_log: LogMaker, major: int, seg_mib: int, rng: random.Random
) -> None:
    """A page whose header says that the rest of a record is lost, but that continues it; and a
    record that begins with its page and has no valid header."""
    folder = full_log(major, seg_mib).folder
    errors = set()
    for at in rng.sample(_written_pages(folder), 40):
        begin = at - 3 * WAL_PAGE_SIZE
        wal_lsn, wal = folder.start_lsn + begin, bytearray(folder.wal[begin : at + WAL_PAGE_SIZE])
        header = parse_page_header(folder.wal[at : at + LONG_HEADER_SIZE])
        assert header is not None
        if header.is_contrecord:
            wal[at - begin + 2] ^= XLP_OVERWRITE_CONTRECORD
        else:
            wal[at - begin + header.size + 3] ^= 0x80  # the length of the record
        errors.add(_error_of_both(wal, wal_lsn, folder, lambda: rng.randrange(1, 9)))
    assert len(errors) > 1, "the damage was not found, or nothing was damaged"


def _error_of_both(
    wal: bytearray, wal_lsn: int, folder: WalFolder, chunk_pages: Callable[[], int]
) -> str:
    """Why there are no more records; both report the same."""
    indexer = RecordIndexer(
        wal_lsn, wal_seg_size=folder.wal_seg_size, version_major=folder.major, is_boundary=True
    )
    found = walk_by_index(wal, wal_lsn, indexer, lambda: WAL_PAGE_SIZE * chunk_pages())
    assert found == walk_by_walker(wal, wal_lsn, folder)
    return found[1]


def _written_pages(folder: WalFolder) -> list[int]:
    """Offsets of pages that contain records, as the three pages before them do: not pages skipped
    by a switch."""
    pages = range(0, len(folder.wal), WAL_PAGE_SIZE)
    has_records = [any(folder.wal[at + LONG_HEADER_SIZE : at + 64]) for at in pages]
    return [
        at for page, at in enumerate(pages) if page >= 3 and all(has_records[page - 3 : page + 1])
    ]


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_any_split_gives_every_record_once(
    full_log: LogMaker, major: int, seg_mib: int, rng: random.Random
) -> None:
    log = full_log(major, seg_mib)
    folder, expected = log.folder, spans_of(log.records)
    for _ in range(SPLITS):
        inner = (rng.randrange(folder.start_lsn, log.end_lsn) for _ in range(rng.randrange(1, 5)))
        cuts = sorted({folder.start_lsn, log.end_lsn, *inner})
        spans = []
        for begin_lsn, end_lsn in pairwise(cuts):
            indexer = RecordIndexer(
                begin_lsn, end_lsn, wal_seg_size=folder.wal_seg_size, version_major=major
            )
            found, _, _ = walk_by_index(
                folder.wal,
                folder.start_lsn,
                indexer,
                lambda: WAL_PAGE_SIZE * rng.randrange(1, 500),
            )
            assert all(begin_lsn <= start_lsn < end_lsn for start_lsn, _, _ in found)
            spans += found
        assert spans == expected
