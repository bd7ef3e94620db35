"""RecordWalker returns exactly the records that pg_waldump prints, for servers of each version."""

from __future__ import annotations

import pytest
from full_logs import FULL_LOGS, MIB, SWITCH_LOGS, LogMaker

from quorum_wal.pgwal.block_ref import decode_body
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.record import XLOG_SWITCH
from quorum_wal.pgwal.rmgr import RM_XLOG_ID

#: How much WAL is compared, over all versions.
RECORD_BYTES_MIN = 200 * 1000 * 1000


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
def test_every_record_agrees(full_log: LogMaker, major: int, seg_mib: int) -> None:
    full_log(major, seg_mib).assert_agrees()


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_the_log_has_every_kind_of_record(full_log: LogMaker, major: int, seg_mib: int) -> None:
    log = full_log(major, seg_mib)
    wal_seg_size = log.folder.wal_seg_size

    def crossing(unit: int) -> int:
        return sum(r.start_lsn // unit < (r.end_lsn - 1) // unit for r in log.records)

    assert crossing(WAL_PAGE_SIZE) > 1000
    assert crossing(wal_seg_size) > 3
    switch_starts = [
        r.start_lsn for r in log.records if (r.rmgr_id, r.info & 0xF0) == (RM_XLOG_ID, XLOG_SWITCH)
    ]
    assert {-lsn % WAL_PAGE_SIZE for lsn in switch_starts} >= {32, 24, 16, 8}
    assert {-lsn % wal_seg_size for lsn in switch_starts} >= {24, 16, 8}
    assert log.end_lsn % WAL_PAGE_SIZE == 0
    assert len({r.rmgr_id for r in log.records}) >= 15


@pytest.mark.parametrize(("major", "seg_mib"), FULL_LOGS)
def test_blocks_agree(full_log: LogMaker, major: int, seg_mib: int) -> None:
    log = full_log(major, seg_mib)
    for index, expected in log.dump.blocks.items():
        body = decode_body(log.records[index], major)
        found = [
            (b.block_id, str(b.relation), b.fork, b.block_number, b.image is not None)
            for b in body.blocks
        ]
        assert found == expected, f"blocks of the record at {log.records[index].start_lsn}"


@pytest.mark.parametrize(("major", "seg_mib"), SWITCH_LOGS)
def test_page_images_are_compressed_in_every_way_the_server_offers(
    full_log: LogMaker, major: int, seg_mib: int
) -> None:
    log = full_log(major, seg_mib)
    images = [
        block.image
        for record in log.records
        for block in decode_body(record, major).blocks
        if block.image is not None
    ]
    methods = {image.compression for image in images}
    assert methods == {None, *log.compression_methods}
    assert {image.is_applied for image in images} == {True, False}
    for image in images:
        if image.compression is None:
            assert len(image.data) + image.hole_length == 8192


def test_volume(full_log: LogMaker) -> None:
    volume = sum(sum(record.total_length for record in full_log(*key).records) for key in FULL_LOGS)
    assert volume >= RECORD_BYTES_MIN, f"{volume / MIB:.0f} MiB of records"
