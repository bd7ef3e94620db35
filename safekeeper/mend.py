"""MEND_SEGMENT: a damaged segment comes back, from another member by way of a proposer.

    proposer -> safekeeper   the bytes of the whole segment, in order, as CopyData of any length
    safekeeper -> proposer   one CopyData, MENDED, when the segment is in its place, durably

Law: the log gets nothing that was not checked: every record by its CRC, and by its link to the one
before, from the segment before to the one after, as far as those are there; the pages by system
identifier and timeline. It was committed, so whoever has it has these bytes.
"""

from __future__ import annotations

import os

import structlog

from pgwal.lsn import format_lsn
from pgwire.blocking import Session
from pgwire.copy_stream import CopyStream
from pgwire.errors import CopyEnded
from safekeeper.block_sums import BlockSums
from safekeeper.errors import SafekeeperError
from safekeeper.record_check import check_records
from safekeeper.timeline import Timeline
from storage import durable

log = structlog.get_logger()

MENDED = b"mended"

WRONG_STATE = "55000"


class Mender:
    """Of the segment that begins at `lsn`. Raises SafekeeperError unless that is a hole."""

    def __init__(self, timeline: Timeline, lsn: int) -> None:
        self._timeline = timeline
        self._store = timeline.store
        self._lsn = lsn
        self._segno = lsn // self._store.wal_seg_size
        if lsn % self._store.wal_seg_size or self._segno not in timeline.holes:
            raise SafekeeperError(
                f"no damaged segment begins at {format_lsn(lsn)}", sqlstate=WRONG_STATE
            )
        self._path = timeline.holes.mended_path(self._store, self._segno)

    def run(self, session: Session) -> None:
        """Until the proposer leaves. Raises SafekeeperError, StorageError."""
        stream = session.start_copy_both()
        try:
            sums = self._receive(stream)
            self._check()
            self._put_in_place(sums)
            stream.send(MENDED)
            while True:
                stream.drain()
        except CopyEnded:
            return

    def _receive(self, stream: CopyStream) -> BlockSums:
        """Into a file of its own; what an interrupted attempt left there is overwritten."""
        seg_size, path = self._store.wal_seg_size, self._path
        sums = BlockSums(self._lsn)
        durable.make_directory(path.parent)
        with durable.storage_errors(path, "create"):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while sums.end_lsn < self._lsn + seg_size:
                for data in stream.drain():
                    if sums.end_lsn + len(data) > self._lsn + seg_size:
                        raise SafekeeperError("more than a segment was sent", sqlstate="08P01")
                    durable.write_all(fd, data, sums.end_lsn - self._lsn, path)
                    sums.extend(data)
            durable.sync_data(fd, path)
        finally:
            os.close(fd)
        return sums

    def _check(self) -> None:
        """Raises WalDamaged."""
        timeline, seg_size = self._timeline, self._store.wal_seg_size
        begin_lsn, first_lsn = self._lsn - seg_size, timeline.control.local_start_lsn
        if begin_lsn < first_lsn or begin_lsn // seg_size in timeline.holes:
            begin_lsn = self._lsn
        facts = self._store.facts(first_lsn)
        check_records(self._read, begin_lsn, self._lsn + seg_size, facts)

    def _read(self, lsn: int, length: int) -> bytes:
        if lsn // self._store.wal_seg_size != self._segno:
            return self._store.read(lsn, length)
        with durable.storage_errors(self._path, "read"), self._path.open("rb") as file:
            return os.pread(file.fileno(), length, lsn - self._lsn)

    def _put_in_place(self, sums: BlockSums) -> None:
        timeline, store = self._timeline, self._timeline.store
        if store is not self._store or self._segno not in timeline.holes:
            raise SafekeeperError("the timeline was loaded anew meanwhile", sqlstate=WRONG_STATE)
        name = timeline.holes.name(store, self._segno)
        durable.publish_file(self._path, store.directory / name)
        store.checked.mended(sums)
        timeline.holes.close(store, self._segno)
        timeline.holes_changed()
        log.info(
            "WAL segment mended",
            timeline=str(timeline.control.timeline),
            segment=name,
            lsn=format_lsn(self._lsn),
        )
