"""`SourcedWal`: the records of a timeline, read from the archive and from safekeepers.

    sources: archive, safekeepers --> segment --> records
                                        `-------> copied to a folder, if specified

Law: each segment is read from the timeline that the history specifies for it. The longest copy of
all sources is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from quorum_wal.backup.wal_source import WalSource
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer


class SourcedWal:
    """`sources` are tried in order. `kept_in` is a folder for copies of the segments."""

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
        """One index for each segment, from a record boundary up to the end of the WAL or to the
        first record at or after `limit_lsn`. Raises SurveyError, BackupError, ObjectStoreError."""
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
            raise SurveyError(f"could not read WAL: {error}") from error

    def _fetch(self, segno: int) -> bytes:
        """The available part of a segment."""
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
