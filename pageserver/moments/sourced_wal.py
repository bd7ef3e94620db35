"""`SourcedWal`: the records of a timeline, out of the archive and live safekeepers.

    sources: archive, safekeepers --> segment --> records
                                        `-------> a folder that keeps it, if there is one

Law: a segment is of the timeline that the history names for it; of several sources the one that has
most of it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from backup.wal_source import WalSource
from consensus.messages import ServerFacts
from pageserver.errors import SurveyError
from pgwal.errors import WalFormatError
from pgwal.history import TimelineHistory
from pgwal.segment import format_segment_name
from walrecords.record_index import RecordIndex, RecordIndexer


class SourcedWal:
    """`sources` are asked in their order. Without `kept_in` nothing is kept."""

    def __init__(
        self,
        server: ServerFacts,
        history: TimelineHistory,
        sources: Sequence[WalSource],
        kept_in: Path | None = None,
    ) -> None:
        self._server = server
        self._history = history
        self._sources = sources
        self._kept_in = kept_in

    def records(self, begin_lsn: int, limit_lsn: int | None) -> Iterator[RecordIndex]:
        """Segment by segment, from a boundary of records until they end, or begin at or behind
        `limit_lsn`. Raises SurveyError, BackupError, ObjectStoreError."""
        server = self._server
        indexer = RecordIndexer(
            begin_lsn,
            limit_lsn,
            wal_seg_size=server.wal_seg_size,
            version_major=server.pg_major,
            system_id=server.system_id,
            is_boundary=True,
        )
        try:
            while not indexer.is_done:
                lsn = indexer.fed_lsn
                content = self._fetch(lsn // server.wal_seg_size)
                yield indexer.feed(content[lsn % server.wal_seg_size :])
                if len(content) < server.wal_seg_size:
                    return
        except WalFormatError as error:
            raise SurveyError(f"WAL cannot be surveyed: {error}") from error

    def _fetch(self, segno: int) -> bytes:
        """As much of a segment as there is."""
        seg_size = self._server.wal_seg_size
        tli = self._history.tli_at((segno + 1) * seg_size - 1)
        name = format_segment_name(tli, segno, seg_size)
        found = b""
        for source in self._sources:
            if len(found) < seg_size:
                found = max(found, source.segment(name), key=len)
        if found and self._kept_in is not None:
            (self._kept_in / name).write_bytes(found)
        return found
