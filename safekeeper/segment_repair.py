"""MEND_SEGMENT: repairs a damaged segment with the bytes of another member, sent by a proposer.

    proposer -> safekeeper   the bytes of the whole segment, in order, as CopyData of any length
    safekeeper -> proposer   one CopyData, MENDED, when the segment is durably in its place

Law: only checked bytes enter the log. Every record is checked by its CRC and by its link to the
record before, across the edges to the neighbour segments that exist. The pages are checked by
system identifier and timeline. The segment was committed, so all members have the same bytes.
"""

from __future__ import annotations

import os

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.blocking import Session
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.errors import CopyEnded
from quorum_wal.safekeeper.block_sums import BlockSums
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.record_check import check_records
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.storage import durable

log = structlog.get_logger()

MENDED = b"mended"

WRONG_STATE = "55000"


class SegmentRepair:
    """Repairs the segment that begins at `lsn`. Raises SafekeeperError if it is not damaged."""

    def __init__(self, timeline: Timeline, lsn: int) -> None:
        self._timeline = timeline
        self._store = timeline.store
        self._lsn = lsn
        self._segno = lsn // self._store.wal_seg_size
        if lsn % self._store.wal_seg_size or self._segno not in timeline.holes:
            raise SafekeeperError(
                f"no damaged segment begins at {format_lsn(lsn)}", sqlstate=WRONG_STATE
            )
        self._path = timeline.holes.repair_path(self._store, self._segno)

    def run(self, session: Session) -> None:
        """Runs until the proposer disconnects. Raises SafekeeperError, StorageError."""
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
        """Writes a separate file, over the remains of an interrupted attempt."""
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
            raise SafekeeperError("the timeline was reloaded meanwhile", sqlstate=WRONG_STATE)
        name = timeline.holes.name(store, self._segno)
        durable.publish_file(self._path, store.directory / name)
        store.checked.repaired(sums)
        timeline.holes.close(store, self._segno)
        timeline.holes_changed()
        log.info(
            "WAL segment repaired",
            timeline=str(timeline.control.timeline),
            segment=name,
            lsn=format_lsn(self._lsn),
        )
