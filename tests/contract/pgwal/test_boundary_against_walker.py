"""BoundaryFinder finds the same boundary as decoding every record, wherever a chunk ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import wal_workloads
from checked_log import CheckedLog
from full_logs import FULL_LOGS, MAJORS, MIB, LogMaker
from wal_folder import WalFolder, segment_files
from walsender import receive_messages

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE

PAGES_PER_MESSAGE = 16


def finder_of(log: CheckedLog) -> BoundaryFinder:
    return BoundaryFinder(
        log.folder.start_lsn,
        wal_seg_size=log.folder.wal_seg_size,
        version_major=log.folder.major,
    )


def assert_boundary(log: CheckedLog, finder: BoundaryFinder, begin_lsn: int, end_lsn: int) -> None:
    found = finder.feed(begin_lsn, log.folder.slice(begin_lsn, end_lsn))
    expected = log.last_boundary(end_lsn)
    assert found == expected, (
        f"chunk [{Lsn(begin_lsn)}, {Lsn(end_lsn)}): {Lsn(found)}, expected {Lsn(expected)}"
    )


def assert_finds_every_boundary(log: CheckedLog, pages: int = 1) -> None:
    """Chunks of one length, from every page at which they can begin."""
    end_lsn = log.end_lsn - log.end_lsn % WAL_PAGE_SIZE
    for phase in range(1, pages + 1):
        finder = finder_of(log)
        at = log.folder.start_lsn
        next_lsn = at + phase * WAL_PAGE_SIZE
        while next_lsn <= end_lsn:
            assert_boundary(log, finder, at, next_lsn)
            at, next_lsn = next_lsn, next_lsn + pages * WAL_PAGE_SIZE


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
@pytest.mark.parametrize("pages", [1, 3, PAGES_PER_MESSAGE])
def test_at_every_page_end(full_log: LogMaker, major: int, seg_mib: int, pages: int) -> None:
    assert_finds_every_boundary(full_log(major, seg_mib), pages)


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
def test_at_any_end_a_message_can_have(
    full_log: LogMaker, rng: random.Random, major: int, seg_mib: int
) -> None:
    """Messages end at a record's end or at a page's end, after a few bytes or after 128 KiB."""
    log = full_log(major, seg_mib)
    finder = finder_of(log)
    at = log.folder.start_lsn
    while at < log.end_lsn:
        length = int(2 ** rng.uniform(3, 17.2))
        end_lsn = log.last_boundary(at + length)
        if end_lsn <= at or rng.random() < 0.5:
            page_lsn = at + max(length, WAL_PAGE_SIZE)
            end_lsn = min(page_lsn - page_lsn % WAL_PAGE_SIZE, log.end_lsn)
        assert_boundary(log, finder, at, end_lsn)
        at = end_lsn


@pytest.mark.parametrize("pg_binaries", MAJORS, indirect=True)
def test_messages_of_a_walsender(postgres_factory: Callable[..., Postgres]) -> None:
    """A real walsender keeps the law: a message that ends inside a page ends with a record."""
    postgres = postgres_factory(settings=wal_workloads.KEEP_ALL_WAL, wal_seg_size=MIB)
    postgres.pgbench("-i", "-q")
    start_lsn = min(segment_files(postgres.pg_wal, MIB)) * MIB
    load = threading.Thread(target=postgres.pgbench, args=("-c", "4", "-t", "150"))
    load.start()
    messages = receive_messages(
        postgres,
        start_lsn,
        lambda end_lsn: not load.is_alive() and end_lsn == postgres.flush_lsn(),
    )
    load.join()
    postgres.crash()
    log = CheckedLog(WalFolder.load(postgres, MIB))
    finder = finder_of(log)
    for begin_lsn, data in messages:
        end_lsn = begin_lsn + len(data)
        assert data == log.folder.slice(begin_lsn, end_lsn)
        assert_boundary(log, finder, begin_lsn, end_lsn)
        if end_lsn % WAL_PAGE_SIZE:
            assert log.last_boundary(end_lsn) == end_lsn
    ends = [begin_lsn + len(data) for begin_lsn, data in messages]
    assert sum(end_lsn % WAL_PAGE_SIZE != 0 for end_lsn in ends) > 100
    assert sum(end_lsn % WAL_PAGE_SIZE == 0 for end_lsn in ends) > 10
