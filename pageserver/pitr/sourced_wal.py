"""`SourcedWal`: the records of a timeline, read from the archive and from safekeepers.

    sources: archive, safekeepers --> segments, fetched ahead --> records
                                        `-------> copied to a folder, if specified

Laws. Each segment is read from the timeline that the history specifies for it. The longest copy of
all sources is used. A segment that is fetched and not needed cannot cause an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from quorum_wal.backup.ordered_map import in_order
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer

FETCH_THREADS = 2
#: Segments fetched ahead, and their size. One is fetched in any case.
AHEAD_MAX, AHEAD_BYTES_MAX = 4, 128 << 20


class SourcedWal:
    """`sources` are tried in order, by several threads. `kept_in` is a folder for copies of the
    segments; some may be after the requested end."""

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
            for content in self._segments(indexer.fed_lsn // server.wal_seg_size):
                yield indexer.feed(memoryview(content)[indexer.fed_lsn % server.wal_seg_size :])
                if indexer.is_done or len(content) < server.wal_seg_size:
                    return
        except WalFormatError as error:
            raise SurveyError(f"could not read WAL: {error}") from error

    def _segments(self, first_segno: int) -> Iterator[bytes]:
        """The available part of each segment, without end."""
        ahead = min(AHEAD_MAX, max(1, AHEAD_BYTES_MAX // self._server.wal_seg_size))
        pool = ThreadPoolExecutor(FETCH_THREADS, "wal-fetch")
        try:
            for _, content in in_order(pool, self._fetch, count(first_segno), ahead):
                yield content
        finally:
            pool.shutdown(cancel_futures=True)

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
