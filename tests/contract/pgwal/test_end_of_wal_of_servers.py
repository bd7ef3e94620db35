"""find_end_of_wal() stops where the server that wrote the log stopped, whatever bytes follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import wal_workloads
from checked_log import CheckedLog
from full_logs import FULL_LOGS, MIB, LogMaker
from test_boundary_against_walker import assert_finds_every_boundary
from wal_folder import WalFolder, segment_files

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.end_of_wal import EndOfWal, find_end_of_wal
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, parse_page_header
from quorum_wal.pgwal.record import XLOG_OVERWRITE_CONTRECORD
from quorum_wal.pgwal.rmgr import RM_XLOG_ID
from quorum_wal.pgwal.segment import format_segment_name, segno_of

DAMAGES = 60


def end_of(folder: WalFolder) -> EndOfWal:
    return find_end_of_wal(
        folder.read,
        folder.start_lsn,
        wal_seg_size=folder.wal_seg_size,
        version_major=folder.major,
    )


def assert_ends_as_dumped(log: CheckedLog) -> EndOfWal:
    """We and pg_waldump find the same records and the same last one."""
    log.assert_agrees()
    end = end_of(log.folder)
    assert end.last_record_lsn == log.dump.records[-1][0]
    assert end.end_lsn == log.end_lsn
    return end


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
def test_after_a_crash(full_log: LogMaker, major: int, seg_mib: int) -> None:
    """The last record ends on a page boundary, as full_log() makes it."""
    end = assert_ends_as_dumped(full_log(major, seg_mib))
    assert end.end_lsn % WAL_PAGE_SIZE == 0


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
def test_torn_at_any_place(
    full_log: LogMaker, rng: random.Random, major: int, seg_mib: int
) -> None:
    """After the tear there is nothing, or other bytes followed by another part of the log."""
    log = full_log(major, seg_mib)
    folder = log.folder
    span = min(log.end_lsn - folder.start_lsn, 3 * MIB)
    for _ in range(DAMAGES):
        torn_lsn = log.end_lsn - rng.randrange(8, span, 8)
        expected_lsn = log.last_boundary(torn_lsn)
        start_lsn = log.last_boundary(max(folder.start_lsn, torn_lsn - rng.randrange(200_000)))
        torn = folder.slice(start_lsn, torn_lsn)
        if rng.random() < 0.7 and not log.is_switch_padding(torn_lsn):
            stale_lsn = folder.start_lsn + torn_lsn % WAL_PAGE_SIZE + 8
            torn += bytes(byte ^ 0xFF for byte in folder.slice(torn_lsn, torn_lsn + 8))
            torn += folder.slice(stale_lsn, stale_lsn + MIB)
        end = end_of(replace(folder, start_lsn=start_lsn, wal=torn))
        assert end.end_lsn == expected_lsn, (
            f"torn at {Lsn(torn_lsn)}, decoded from {Lsn(start_lsn)}: {end}"
        )


# The logs of all versions are above; the servers below are of one version each.


@pytest.mark.parametrize("pg_binaries", [18], indirect=True)
def test_last_record_ends_with_its_segment(postgres_factory: Callable[..., Postgres]) -> None:
    """With the next segment missing, and with the next segment existing but never written."""
    postgres = postgres_factory(settings=wal_workloads.KEEP_ALL_WAL, wal_seg_size=MIB)
    last_lsn = wal_workloads.last_record_ends_with(postgres, MIB)
    postgres.crash()
    for segno, file in segment_files(postgres.pg_wal, MIB).items():
        if segno >= segno_of(last_lsn, MIB):
            file.unlink()
    end = assert_ends_as_dumped(CheckedLog(WalFolder.load(postgres, MIB)))
    assert end.end_lsn == last_lsn
    assert end.reason == f"there is no WAL at {last_lsn}"
    next_segment = format_segment_name(1, segno_of(last_lsn, MIB), MIB)
    (postgres.pg_wal / next_segment).write_bytes(bytes(MIB))
    end = assert_ends_as_dumped(CheckedLog(WalFolder.load(postgres, MIB)))
    assert end.end_lsn == last_lsn
    assert "invalid magic number 0000" in end.reason


@pytest.mark.parametrize("pg_binaries", [16], indirect=True)
def test_torn_as_pg_waldump_sees_it(
    postgres_factory: Callable[..., Postgres], rng: random.Random
) -> None:
    """Each tear is made in the files, the last one first, so that each is the end of the log."""
    postgres = postgres_factory(settings=wal_workloads.KEEP_ALL_WAL, wal_seg_size=MIB)
    wal_workloads.long_records(postgres, rng, MIB)
    postgres.pgbench("-i", "-q")
    postgres.crash()
    files = segment_files(postgres.pg_wal, MIB)
    end_lsn = CheckedLog(WalFolder.load(postgres, MIB)).end_lsn
    tears = [end_lsn - rng.randrange(8, 2 * MIB, 8) for _ in range(3)]
    for torn_lsn in sorted(tears, reverse=True):
        with files[segno_of(torn_lsn, MIB)].open("r+b") as segment:
            segment.seek(torn_lsn % MIB)
            rest = segment.read(4096)
            segment.seek(torn_lsn % MIB)
            segment.write(bytes(byte ^ 0xFF for byte in rest))
        log = CheckedLog(WalFolder.load(postgres, MIB))
        end = assert_ends_as_dumped(log)
        assert end.end_lsn == log.last_boundary(torn_lsn) <= torn_lsn


@pytest.mark.parametrize("pg_binaries", [15], indirect=True)
def test_stale_pages_of_a_recycled_segment(postgres_factory: Callable[..., Postgres]) -> None:
    """After the end there are whole, valid pages, of the segment that the file contained before."""
    settings = wal_workloads.KEEP_ALL_WAL | {"wal_keep_size": 0, "min_wal_size": "32MB"}
    postgres = postgres_factory(settings=settings, wal_seg_size=MIB)
    with postgres.connect() as connection:
        wal_workloads.fill(connection, 8 * MIB)
        # Two checkpoints: segments older than the one before the last are renamed for future use.
        connection.execute("CHECKPOINT")
        connection.execute("CHECKPOINT")
        wal_workloads.fill(connection, 3 * MIB)
    wal_workloads.last_record_ends_with(postgres, WAL_PAGE_SIZE)
    postgres.crash()
    log = CheckedLog(WalFolder.load(postgres, MIB))
    end = assert_ends_as_dumped(log)
    stale = parse_page_header(log.folder.slice(end.end_lsn, end.end_lsn + WAL_PAGE_SIZE))
    assert stale is not None
    assert 0 < stale.page_lsn < end.end_lsn
    assert "unexpected pageaddr" in end.reason


@pytest.mark.parametrize("pg_binaries", [15, 18], indirect=True)
def test_overwritten_contrecord(postgres_factory: Callable[..., Postgres]) -> None:
    """Two crashes lose the rest of a record, once from a segment on, once from a page on.

    The server continues after the remaining part; so do we, and so does BoundaryFinder.
    """
    postgres = postgres_factory(settings=wal_workloads.KEEP_ALL_WAL, wal_seg_size=MIB)
    first_lsn = wal_workloads.crash_with_last_message(postgres, 3 * MIB)
    for segno, file in segment_files(postgres.pg_wal, MIB).items():
        if segno > segno_of(first_lsn, MIB):
            file.unlink()
    postgres.start()
    postgres.pgbench("-i", "-q")
    second_lsn = wal_workloads.crash_with_last_message(postgres, 100_000)
    lost_lsn = second_lsn - second_lsn % WAL_PAGE_SIZE + 4 * WAL_PAGE_SIZE
    with segment_files(postgres.pg_wal, MIB)[segno_of(lost_lsn, MIB)].open("r+b") as segment:
        segment.seek(lost_lsn % MIB)
        segment.write(bytes(MIB - lost_lsn % MIB))
    postgres.start()
    postgres.pgbench("-c", "2", "-t", "50")
    postgres.crash()
    log = CheckedLog(WalFolder.load(postgres, MIB))
    assert_ends_as_dumped(log)
    overwritten = [
        int.from_bytes(record.data[26:34], "little")
        for record in log.records
        if (record.rmgr_id, record.info) == (RM_XLOG_ID, XLOG_OVERWRITE_CONTRECORD)
    ]
    assert overwritten == [first_lsn, second_lsn]
    assert_finds_every_boundary(log)
