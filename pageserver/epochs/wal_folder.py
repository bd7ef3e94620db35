"""`WalFolder`: WAL segments in a folder, under Postgres' file names, for the replay of an epoch.

    000000010000000000000005  000000010000000000000006  000000020000000000000006  00000002.history

If several timelines have a segment, the newest one up to the wanted timeline is used: it begins
with the same WAL.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pgwal.errors import SegmentNameError, WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.segment import parse_segment_name
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer

#: size of WAL read at once
PIECE_BYTES = 512 * WAL_PAGE_SIZE


class WalFolder:
    """Its files must not change while they are read."""

    def __init__(self, path: Path, server: ServerFacts) -> None:
        self.path = path
        self.server = server

    def segments(self, begin_lsn: int, end_lsn: int, tli: int) -> list[Path]:
        """The segments of [begin_lsn, end_lsn), in order. Raises SurveyError if one is missing."""
        seg_size = self.server.wal_seg_size
        newest: dict[int, tuple[int, Path]] = {}
        for path in self.path.iterdir():
            try:
                name = parse_segment_name(path.name, seg_size)
            except SegmentNameError:
                continue
            if not name.partial and name.tli <= tli and name.tli >= newest.get(name.segno, (0,))[0]:
                newest[name.segno] = name.tli, path
        found = []
        for segno in range(begin_lsn // seg_size, (end_lsn - 1) // seg_size + 1):
            if segno not in newest:
                raise SurveyError(f"the WAL segment at {format_lsn(segno * seg_size)} is missing")
            found.append(newest[segno][1])
        return found

    def histories(self) -> list[Path]:
        """The timeline history files."""
        return sorted(self.path.glob("*.history"))

    def records(self, begin_lsn: int, end_lsn: int, tli: int) -> Iterator[RecordIndex]:
        """The records that begin in [begin_lsn, end_lsn), even if they end later. `begin_lsn` is a
        record boundary. Raises SurveyError if WAL is missing or not valid."""
        indexer = RecordIndexer(
            begin_lsn,
            end_lsn,
            wal_seg_size=self.server.wal_seg_size,
            version_major=self.server.pg_major,
            system_id=self.server.system_id,
            is_boundary=True,
        )
        first_lsn = indexer.fed_lsn
        try:
            for path in chain(
                self.segments(begin_lsn, end_lsn, tli), self._segments_after(end_lsn, tli)
            ):
                with path.open("rb") as file:
                    file.seek(first_lsn % self.server.wal_seg_size)
                    while not indexer.is_done and (piece := file.read(PIECE_BYTES)):
                        yield indexer.feed(piece)
                first_lsn = 0
        except WalFormatError as error:
            raise SurveyError(f"could not read WAL: {error}") from error
        # If no WAL follows the last record, only its end position shows that it was the last.
        if not indexer.is_done and indexer.next_lsn < end_lsn:
            raise SurveyError(
                f"the WAL ends at {format_lsn(indexer.next_lsn)}, before {format_lsn(end_lsn)}"
            )

    def _segments_after(self, end_lsn: int, tli: int) -> Iterator[Path]:
        """The segments after `end_lsn` that exist: the last record may end in one of them."""
        seg_size = self.server.wal_seg_size
        for segno in count((end_lsn - 1) // seg_size + 1):
            try:
                yield from self.segments(segno * seg_size, (segno + 1) * seg_size, tli)
            except SurveyError:
                return
