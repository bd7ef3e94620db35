"""`PageWal` refuses WAL in which the page depends on more than the records that touch it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.epochs.touch_survey import TouchSurveyor
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.pitr import page_wal
from quorum_wal.pageserver.pitr.page_wal import PageWal
from quorum_wal.pageserver.pitr.promoted_server import StopPoint
from quorum_wal.walrecords.record_index import RecordIndexer
from tests.wal_log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE, XLOG, WalLog

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
XACT, SMGR, CLOG, DATABASE, TABLESPACE, HEAP = 1, 2, 3, 4, 5, 10
FORK, BLOCK = Fork(1663, 5, 16400, ForkKind.MAIN), 3
OTHER = Fork(1663, 5, 16401, ForkKind.MAIN)
FPI, WILL_INIT = 0xB0, 0x40


def main_data(data: bytes) -> bytes:
    return bytes([255, len(data)]) + data


def touch(fork: Fork, block: int, number: int = 0, flags: int = 0) -> bytes:
    """A block reference without an image or data."""
    return struct.pack("<BBHIIII", number, flags, 0, *relation(fork), block)


def relation(fork: Fork) -> tuple[int, int, int]:
    return fork.tablespace, fork.database, fork.number


def locator(fork: Fork) -> bytes:
    return struct.pack("<III", *relation(fork))


def truncation(fork: Fork) -> bytes:
    return main_data(struct.pack("<I", 2) + locator(fork) + struct.pack("<i", 7))


def drop(fork: Fork) -> bytes:
    """The end of a transaction: its time, that it drops files, one of them."""
    return main_data(struct.pack("<qIi", 0, 4, 1) + locator(fork))


def fed(log: WalLog) -> tuple[PageWal, TouchSurveyor]:
    wanted, surveyor = PageWal(SERVER, FORK, BLOCK), TouchSurveyor(SERVER.pg_major)
    indexer = RecordIndexer(
        START_LSN, wal_seg_size=WAL_SEG_SIZE, version_major=SERVER.pg_major, is_boundary=True
    )
    index = indexer.feed(bytes(log.wal))
    wanted.feed(index, surveyor.feed(index))
    return wanted, surveyor


def log_of(*records: tuple[bytes, int, int]) -> WalLog:
    log = WalLog()
    for body, rmgr_id, info in records:
        log.write(body, rmgr_id=rmgr_id, info=info)
    return log


def replayed(wanted: PageWal, log: WalLog, folder: Path) -> list[tuple[int, int, bytes]]:
    """(resource manager, info, bytes) of the records up to the end of the log."""
    stop = wanted.write(START_LSN, StopPoint(log.starts[-1], log.lsn, 1), folder, lambda _: None)
    assert (stop.end_lsn, stop.tli) == (log.lsn, 1)
    indexer = RecordIndexer(
        START_LSN, log.lsn, wal_seg_size=WAL_SEG_SIZE, version_major=SERVER.pg_major
    )
    (segment,) = folder.iterdir()
    index = indexer.feed(segment.read_bytes())
    assert int(index.start_lsn[-1]) == stop.record_lsn
    found = []
    for at in index.at.tolist():
        record = index.data[at:].tobytes()
        record = record[: int.from_bytes(record[:4], "little")]
        found.append((record[17], record[16], record))
    return found


TOUCHES = (
    (touch(FORK, BLOCK), HEAP, 0x00),
    (touch(FORK, BLOCK + 1), HEAP, 0x00),
    (touch(OTHER, BLOCK), HEAP, 0x00),
    (main_data(bytes(8)), CLOG, 0x00),
)


def test_what_touches_the_page_and_what_replay_needs_is_written(tmp_path: Path) -> None:
    log = log_of(*TOUCHES, (touch(OTHER, 1), HEAP, 0x00))
    wanted, surveyor = fed(log)
    assert wanted.is_enough(FORK, BLOCK, 1, surveyor.finish())
    records = replayed(wanted, log, tmp_path)
    assert [rmgr for rmgr, _, _ in records] == [HEAP, XLOG, CLOG, XLOG]


@pytest.mark.parametrize("room", [0, 24, 48, 56, 64, 72, 80, 88, 200])
@pytest.mark.parametrize("count", [1, 2])
def test_other_pages_that_are_written_do_not_exist_later(
    room: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of another file are written together with the page. There is room before it is changed
    again."""
    others = b"".join(touch(OTHER, n, n, WILL_INIT) for n in range(1, 1 + count))
    between = [(main_data(bytes(room - 26)) if room > 24 else b"", HEAP, 0x00)] if room else []
    log = log_of(
        (touch(FORK, BLOCK) + others, HEAP, 0x00), *between, (touch(FORK, BLOCK), HEAP, 0x00)
    )
    wanted, surveyor = fed(log)
    is_enough = wanted.is_enough(FORK, BLOCK, 1, surveyor.finish())
    assert is_enough == (room == 0 or room >= 24 + 26 * count)
    if is_enough and room:
        records = replayed(wanted, log, tmp_path)
        assert [(rmgr, info) for rmgr, info, _ in records][:2] == [(HEAP, 0), (XLOG, FPI)]
        assert records[1][2].count(struct.pack("<III", *relation(OTHER))) == count
        monkeypatch.setattr(page_wal, "ZEROED_MAX", count - 1)
        wanted, surveyor = fed(log)
        assert not wanted.is_enough(FORK, BLOCK, 1, surveyor.finish())


@pytest.mark.parametrize(
    ("record", "is_enough"),
    [
        ((main_data(locator(FORK) + bytes(4)), SMGR, 0x10), True),
        ((truncation(OTHER), SMGR, 0x20), True),
        ((drop(OTHER), XACT, 0x80), True),
        ((truncation(FORK), SMGR, 0x20), False),
        ((drop(FORK), XACT, 0x80), False),
        ((main_data(struct.pack("<II", 6, 1663)), DATABASE, 0x10), True),
        ((main_data(struct.pack("<II", 5, 1663)), DATABASE, 0x10), False),
        ((main_data(struct.pack("<I", 99)), TABLESPACE, 0x10), True),
        ((main_data(struct.pack("<I", 1663)), TABLESPACE, 0x10), False),
    ],
    ids=[
        "its file is created", "another one is truncated", "another one is dropped",
        "its file is truncated", "its file is dropped",
        "another database is created", "its database is created",
        "another tablespace is dropped", "its tablespace is dropped",
    ],
)  # fmt: skip
def test_changes_of_its_file(record: tuple[bytes, int, int], is_enough: bool) -> None:
    wanted, surveyor = fed(log_of(*TOUCHES, record))
    assert wanted.is_enough(FORK, BLOCK, 1, surveyor.finish()) == is_enough


def test_another_page_another_timeline_or_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, surveyor = fed(log_of(*TOUCHES))
    touches = surveyor.finish()
    assert wanted.is_enough(FORK, BLOCK, 1, touches)
    assert not wanted.is_enough(FORK, BLOCK + 1, 1, touches)
    assert not wanted.is_enough(OTHER, BLOCK, 1, touches)
    assert not wanted.is_enough(FORK, BLOCK, 2, touches)
    for limit, value in (("RECORDS_MAX", 1), ("RECORD_BYTES_MAX", 50)):
        with monkeypatch.context() as patch:
            patch.setattr(page_wal, limit, value)
            wanted, surveyor = fed(log_of(*TOUCHES))
        assert not wanted.is_enough(FORK, BLOCK, 1, surveyor.finish())
