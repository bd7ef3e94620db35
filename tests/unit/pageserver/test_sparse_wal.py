"""`SparseWal` writes valid WAL: the given records at their positions, others without effect."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import pytest

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.epochs.sparse_wal import XLOG_NOOP, SparseWal, WalRecord
from quorum_wal.pgwal.record import XLOG_SWITCH, Record
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker
from tests.wal_log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE, XLOG, WalLog

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
SEED_VARIABLE = "SK_SPARSE_WAL_SEED"
#: Among them those whose header crosses a page, and those that span segments.
LENGTHS = (26, 32, 40, 64, 300, 8_000, 8_160, 8_168, 20_000, 500_000, 1_200_000, 2_500_000)


def random_log(chance: random.Random) -> WalLog:
    log = WalLog()
    segments = chance.choice((1, 3, 8))
    lengths = LENGTHS[: chance.randint(1, len(LENGTHS))]
    while log.lsn < START_LSN + segments * WAL_SEG_SIZE:
        if chance.random() < 0.01:
            log.switch()
        elif chance.random() < 0.02:
            log.fill_page("P")
        else:
            log.append(f"R{len(log.ends)}", chance.choice(lengths))
    return log


def records_in(wal: bytes, start_lsn: int) -> list[Record]:
    walker = RecordWalker(
        start_lsn, wal_seg_size=WAL_SEG_SIZE, version_major=SERVER.pg_major, system_id=SYSTEM_ID
    )
    walker.feed(wal)
    found = []
    while (record := walker.next()) is not NEED_DATA:
        found.append(record)
    return found


def written(folder: Path, log: WalLog, kept: list[Record], begin_lsn: int, end_lsn: int) -> bytes:
    """The written WAL of the range. Checks the files and the result."""
    given: list[Path] = []
    wal = SparseWal(SERVER, log.tli, begin_lsn, folder, given.append)
    for record in kept:
        wal.append(WalRecord(record.start_lsn, record.data))
    last_lsn = wal.finish(end_lsn)
    assert sorted(folder.iterdir()) == given
    segments = [path.read_bytes() for path in given]
    assert {len(segment) for segment in segments} == {WAL_SEG_SIZE}
    first_lsn = begin_lsn - begin_lsn % WAL_SEG_SIZE
    found = b"".join(segments)[begin_lsn - first_lsn : end_lsn - first_lsn]
    last = records_in(found, begin_lsn)[-1]
    assert (last.start_lsn, last.end_lsn) == (last_lsn, end_lsn)
    return found


def without_links(record: Record) -> tuple[int, bytes, bytes]:
    """Where it is, and its bytes but for the previous record and the CRC."""
    return record.start_lsn, record.data[:8] + record.data[16:20], record.data[24:]


def is_filler(record: Record) -> bool:
    return record.rmgr_id == XLOG and record.info in (XLOG_NOOP, XLOG_SWITCH)


@pytest.mark.parametrize("number", range(20))
def test_random_logs(number: int, tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
    print(f"{SEED_VARIABLE}={seed}")
    chance = random.Random(seed)
    log = random_log(chance)
    records = records_in(log.read(START_LSN, log.lsn), START_LSN)
    begin = chance.randrange(len(records))
    records = records[begin : begin + 1 + chance.randrange(len(records) - begin)]
    share = chance.choice((0, 0.001, 0.1, 0.5, 1))
    kept = [each for each in records if chance.random() < share and not is_filler(each)]
    begin_lsn, end_lsn = records[0].start_lsn, records[-1].end_lsn
    found = records_in(written(tmp_path, log, kept, begin_lsn, end_lsn), begin_lsn)
    assert [without_links(each) for each in found if not is_filler(each)] == [
        without_links(each) for each in kept
    ]


def test_segments_without_records_are_a_switch_each(tmp_path: Path) -> None:
    log = WalLog()
    while log.lsn < START_LSN + 6 * WAL_SEG_SIZE - 3000:
        log.append("R", 1000)
    records = records_in(log.read(START_LSN, log.lsn), START_LSN)
    found = records_in(
        written(tmp_path, log, [records[2], records[-3]], START_LSN, records[-1].end_lsn), START_LSN
    )
    assert [(each.start_lsn // WAL_SEG_SIZE, each.info) for each in found] == [
        (1, XLOG_NOOP), (1, records[2].info), (1, XLOG_SWITCH),
        *((segno, XLOG_SWITCH) for segno in range(2, 6)),
        (6, XLOG_NOOP), (6, records[-3].info), (6, XLOG_NOOP),
    ]  # fmt: skip
    segments = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert not any(any(segment[64:]) for segment in segments[1:5])
