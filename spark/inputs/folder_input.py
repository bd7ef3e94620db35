"""A folder of WAL segments as an input: `pg_wal` of a server, or the files that pg_receivewal or an
archive_command has written, compressed or not.

    |== 05 ==|== 06 ==|== 07 == last record |00000000|     end_lsn: the end of the last record
    |== 05 ==|== 06 ==|== 07 = damage = more pages ==|     end_lsn: after the damage, to report it

Law: the log ends where Postgres would end a recovery, at the first invalid record. But if a later
page shows that the log continues, the record is damaged; damage is never taken for the end.
Every executor must see the folder under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.inputs.segment_file import RemovedSegment
from quorum_wal.spark.inputs.segment_folder import SegmentFolder, open_folder
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk
from quorum_wal.walrecords.record_index import RecordIndexer

#: attempts to read a folder whose files are renamed meanwhile
TRIES = 3

T = TypeVar("T")


@dataclass(frozen=True)
class FolderInput:
    """`tli` None: the newest timeline that has WAL or a history file in the folder."""

    path: str
    tli: int | None = None
    poll_seconds: float = 1.0
    ends_at_record: bool = True

    def facts(self) -> ServerFacts:
        return self._asked(lambda folder: folder.facts)

    def last_tli(self) -> int:
        return self._asked(lambda folder: folder.history.tli)

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        return self._asked(lambda folder: self._extent(folder, from_lsn))

    def _extent(self, folder: SegmentFolder, from_lsn: int | None) -> tuple[int, int]:
        segno = min(folder.files) if from_lsn is None else from_lsn // folder.facts.wal_seg_size
        behind = segno
        while behind in folder.files:
            behind += 1
        first_lsn = folder.start_lsn(segno)
        if behind == segno:
            return first_lsn, first_lsn
        return first_lsn, _end_of_log(folder, segno, behind - 1)

    def newest_lsn(self, from_lsn: int = 0) -> int:
        return max(from_lsn, self._asked(lambda folder: _end_of_log(folder, 0, max(folder.files))))

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        end_lsn = self.newest_lsn(lsn) if end_lsn is None else end_lsn
        folder, tries = self._asked(lambda folder: folder), TRIES
        seg_size = folder.facts.wal_seg_size
        while lsn < end_lsn:
            before_lsn = lsn
            try:
                for chunk in folder.chunks(lsn // seg_size, lsn):
                    lsn = chunk.lsn + len(chunk.data)
                    yield WalChunk(chunk.lsn, chunk.data[: end_lsn - chunk.lsn], chunk.name)
                    if lsn >= end_lsn:
                        return
            except RemovedSegment:
                tries -= 1
                if tries == 0:
                    raise
                folder = self._asked(lambda folder: folder)
                continue
            if lsn == before_lsn or lsn % seg_size:
                raise LostWal(
                    lsn,
                    f"folder {self.path} has WAL up to {format_lsn(lsn)}, expected up to "
                    f"{format_lsn(end_lsn)}",
                )

    def _asked(self, question: Callable[[SegmentFolder], T]) -> T:
        """Retries if a file was renamed meanwhile: pg_receivewal removes `.partial`."""
        for _ in range(TRIES - 1):
            try:
                return question(self._open())
            except RemovedSegment:
                continue
        return question(self._open())

    def _open(self) -> SegmentFolder:
        return open_folder(Path(self.path), self.tli)


def _end_of_log(folder: SegmentFolder, floor_segno: int, last: int) -> int:
    """The end of the last whole record in segment `last`; if no record ends in it, of an earlier
    segment."""
    for first in range(last, floor_segno - 1, -1):
        if first not in folder.files:
            return folder.start_lsn(first + 1)
        try:
            end_lsn = _decoded_end(folder, first, last)
        except RemovedSegment:
            raise
        except LostWal:
            return folder.start_lsn(last + 1)
        if end_lsn is not None:
            return end_lsn
    return folder.start_lsn(max(floor_segno, min(folder.files)))


def _decoded_end(folder: SegmentFolder, first: int, last: int) -> int | None:
    """The end of the last record; None if none ends in these segments. Raises LostWal.

    Later pages are looked at after the failure. So a record that is whole by then is no damage:
    the server has written on meanwhile."""
    indexer, segno = _decode(folder, first, last)
    if indexer.failure is not None:
        failure_lsn = indexer.failure.lsn
        if segno < last or folder.continues_after(failure_lsn):
            again, _ = _decode(folder, first, last)
            if again.failure is not None and again.failure.lsn == failure_lsn:
                return folder.start_lsn(last + 1)
    end_lsn = indexer.next_lsn
    return end_lsn if end_lsn > folder.start_lsn(first) else None


def _decode(folder: SegmentFolder, first: int, last: int) -> tuple[RecordIndexer, int]:
    """The indexer at the first failure or at the end, and its segment. Raises LostWal."""
    facts = folder.facts
    indexer = RecordIndexer(
        folder.start_lsn(first),
        wal_seg_size=facts.wal_seg_size,
        version_major=facts.pg_major,
        system_id=facts.system_id,
    )
    for segno in range(first, last + 1):
        for chunk in folder.chunks(segno, folder.start_lsn(segno)):
            indexer.feed(chunk.data)
            if indexer.failure is not None:
                return indexer, segno
    return indexer, last
