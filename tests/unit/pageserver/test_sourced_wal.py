"""`SourcedWal` fetches segments ahead; what it returns is as if it did not."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest

from quorum_wal.backup.wal_source import WalSourceError
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.pitr.sourced_wal import SourcedWal
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import parse_segment_name
from tests.wal_log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE, WalLog

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
SEGMENTS = 6


def log_of_segments() -> WalLog:
    log = WalLog()
    while log.lsn < START_LSN + SEGMENTS * WAL_SEG_SIZE - 100_000:
        log.append(f"R{len(log.ends)}", 60_000)
    return log


class Source:
    """A WalSource with the WAL of a log. It cannot answer for segments after `last_segno`, and has
    nothing before `held_segno` until that segment has been asked for."""

    server = SERVER

    def __init__(self, log: WalLog, last_segno: int = 1 << 30, held_segno: int = 0) -> None:
        self._log = log
        self._last_segno = last_segno
        self._held_segno = held_segno
        self._is_asked = Event()

    def history(self, tli: int) -> bytes | None:
        raise AssertionError("not read")

    def segment(self, name: str) -> bytes:
        segno = parse_segment_name(name, WAL_SEG_SIZE).segno
        if segno > self._last_segno:
            raise WalSourceError("the source went away")
        if segno == self._held_segno:
            self._is_asked.set()
        elif segno < self._held_segno:
            assert self._is_asked.wait(10), "the next segment was not asked for"
        return bytes(self._log.read(segno * WAL_SEG_SIZE, (segno + 1) * WAL_SEG_SIZE))


def starts(source: Source, limit_lsn: int | None, kept_in: Path | None = None) -> list[int]:
    wal = SourcedWal(SERVER, TimelineHistory(1), [source], kept_in)
    found = [index.start_lsn for index in wal.records(START_LSN, limit_lsn)]
    return [int(lsn) for lsn in np.concatenate(found)]


@pytest.mark.parametrize("position", [1, 7, 40])
def test_the_records_before_a_limit(position: int, tmp_path: Path) -> None:
    """Segments after the limit may fail."""
    log = log_of_segments()
    limit_lsn = log.starts[position]
    last_segno = log.ends[position] // WAL_SEG_SIZE
    assert starts(Source(log, last_segno), limit_lsn, tmp_path) == log.starts[:position]
    for segno in range(START_LSN // WAL_SEG_SIZE, (limit_lsn - 1) // WAL_SEG_SIZE + 1):
        content = (tmp_path / f"0000000100000000{segno:08X}").read_bytes()
        assert content == log.read(segno * WAL_SEG_SIZE, (segno + 1) * WAL_SEG_SIZE)


def test_all_records_up_to_the_end() -> None:
    log = log_of_segments()
    assert starts(Source(log), None) == log.starts


def test_a_needed_segment_that_fails() -> None:
    log = log_of_segments()
    with pytest.raises(WalSourceError, match="went away"):
        starts(Source(log, START_LSN // WAL_SEG_SIZE + 1), None)


def test_the_next_segment_is_fetched_meanwhile() -> None:
    log = log_of_segments()
    held_segno = START_LSN // WAL_SEG_SIZE + 1
    assert starts(Source(log, held_segno=held_segno), None) == log.starts


def test_the_records_before_a_position() -> None:
    log = log_of_segments()
    wal = SourcedWal(SERVER, TimelineHistory(1), [Source(log)])
    index = next(wal.records(START_LSN, None))
    for count in (0, 1, len(index)):
        lsn = log.starts[count]
        before = index.before(lsn)
        assert before.start_lsn.tolist() == log.starts[:count]
        assert before.end_lsn.tolist() == log.ends[:count]
        assert len(before.at) == len(before.tli) == count
